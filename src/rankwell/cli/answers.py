"""Printing answers: ranked texts for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from rankwell.corpus.records import Query
    from rankwell.rank.answers import Answer, AnswerMatches, Match
    from rankwell.rank.requests import RunResult

AsJson = Annotated[
    bool, typer.Option("--json", help="Print the answers as JSON, one line per query, with the words to highlight.")
]
SHOWN = 10
"""Answers per question, unless told."""
LINES = 3


def print_answers(result: RunResult, *, as_json: bool, filter: str | None = None) -> None:
    """Print the answers of each query, best first, or why there are none."""
    from rankwell.corpus.records import Ranking
    from rankwell.rank.answers import did_you_mean, explain_nothing, match_answers, plain_text, read_answers
    from rankwell.rank.relevance import nothing_fits

    console = make_console(soft_wrap=True)
    for query in result.queries:
        rated = result.relevance.get(query.qid, {})
        answers = read_answers(result.run.get(query.qid, Ranking.of((), ())), result.texts, rated)
        answers = [replace(answer, text=plain_text(answer.docid, answer.text)) for answer in answers]
        matches, meant = match_answers(query.text, answers, result.texts), did_you_mean(result.texts, query.text)
        if as_json:
            print(_as_json(query, answers, matches, meant, rated))
        else:
            if len(result.queries) > 1:
                console.print(f"[bold]{query.qid}[/bold]  ", end="")
                console.print(query.text, markup=False)
            if meant:
                console.print(f"Did you mean: {meant}?", style="bold", markup=False)
            if answers:
                show_answers(console, answers, matches)
            else:
                why = f"nothing found: {explain_nothing(result.texts, query.text, filter)}"
                console.print(f"N{(nothing_fits(rated) if rated else why)[1:]}.\n", markup=False)


def make_console(**options: Any) -> Console:
    """A console that leaves a closed pipe to the caller; rich would exit with the code of an error."""
    from rich.console import Console

    class PipedConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PipedConsole(highlight=False, **options)


def show_answers(
    console: Console, answers: Sequence[Answer], matches: Sequence[AnswerMatches], lines: int = LINES
) -> None:
    """Print ranked texts below their titles, each shortened to where most of the query's words are."""
    for rank, (answer, words) in enumerate(zip(answers, matches, strict=True), 1):
        console.print(f"[bold]{rank:>3}[/bold]  {answer.score:.3f}  ", end="")
        console.print(answer.docid, style="cyan", markup=False, end="\n" if answer.relevance is None else "  ")
        if answer.relevance is not None:
            console.print(f"relevance {answer.relevance:.2f}", style="dim")
        if answer.title:
            _show_text(console, answer.title, words.title, 1, style="bold")
        if answer.text:
            _show_text(console, answer.text, words.text, lines)
        if answer.metadata:
            listed = {n: ", ".join(map(str, v)) if isinstance(v, list) else v for n, v in answer.metadata.items()}
            shown = "  ".join(f"{name}: {value}" for name, value in listed.items())
            room = console.width - 6
            shown = shown if len(shown) <= room else f"{shown[: room - 1].rstrip()}…"
            console.print(f"     {shown}", style="dim", markup=False)
        if answer.contents or answer.metadata:
            console.print()


def _show_text(console: Console, text: str, matches: Sequence[Match], lines: int, style: str = "") -> None:
    """Print a text in at most ``lines`` lines, with the query's words in colour."""
    from rich.text import Text

    from rankwell.rank.answers import snippet

    text = text.replace("\n", " ").replace("\t", " ")
    begin, end = snippet(text, matches, lines * (console.width - 6))
    shown = Text(("… " if begin else "") + text[begin:end] + (" …" if end < len(text) else ""), style)
    shift = (2 if begin else 0) - begin
    for word in matches:
        if begin <= word.begin and word.end <= end:
            shown.stylize("bold green", word.begin + shift, word.end + shift)
    for line in shown.wrap(console, console.width - 6):
        line.rstrip()
        console.print(Text(" " * 5) + line)


def _as_json(
    query: Query,
    answers: Sequence[Answer],
    matches: Sequence[AnswerMatches],
    meant: str | None,
    rated: Mapping[str, float],
) -> str:
    from rankwell.rank.relevance import nothing_fits

    rows = [
        {
            "rank": rank,
            "id": answer.docid,
            "score": answer.score,
            "relevance": answer.relevance,
            "title": answer.title,
            "text": answer.text,
            "metadata": answer.metadata,
            "title_matches": [[word.begin, word.end] for word in words.title],
            "matches": [[word.begin, word.end] for word in words.text],
        }
        for rank, (answer, words) in enumerate(zip(answers, matches, strict=True), 1)
    ]
    record = {"qid": query.qid, "query": query.text, "did_you_mean": meant, "results": rows}
    record |= {"nothing": nothing_fits(rated)} if rated and not rows else {}
    return json.dumps(record, ensure_ascii=False)
