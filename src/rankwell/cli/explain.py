"""``rankwell explain``: why a document has its score for a query."""

from __future__ import annotations

import os
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwell.cli.answers import make_console
from rankwell.cli.options import needs, output_file
from rankwell.core.errors import RankwellError
from rankwell.core.files import read_lines
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.models.spec import AttentionRule

if TYPE_CHECKING:
    from rich.console import Console

    from rankwell.rank.explain import Explanation, Head, Token, Word

MOST_SPLIT = 12


def explain(
    context: typer.Context,
    query: Annotated[str, typer.Option("--query", help="The query's text.")],
    document: Annotated[
        str | None, typer.Option("--document", help="The document: its text, a file, or - for standard input.")
    ] = None,
    docid: Annotated[str | None, typer.Option("--id", help="The document's id in --collection.")] = None,
    collection: Annotated[
        str | None,
        typer.Option("--collection", "--index", help="The collection of --id: an index, a system, a file or a folder."),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="A checkpoint folder, or a name on the Hugging Face hub.")
    ] = DEFAULT,
    type: Annotated[str | None, typer.Option("--type", help="The query's type, for a model that takes one.")] = None,
    attention: Annotated[
        AttentionRule | None, typer.Option("--attention", help="Attention rule. Default: the model's.")
    ] = None,
    layer: Annotated[int | None, typer.Option("--layer", help="Layer, from 1. Default: the last.")] = None,
    head: Annotated[
        str, typer.Option("--head", help="Attention head, from 1, or mean: the mean over all heads.")
    ] = "mean",
    compare_attention: Annotated[
        AttentionRule | None, typer.Option("--compare-attention", help="Another attention rule to compare with.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", callback=output_file, help="Output file for a picture (.png, .svg, .pdf)."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain the score of a document for a query.

    Shows the tokens as the model sees them, split words and how the attention rule treats them, shared words, and what
    the query attends to.

    Examples:

        rankwell explain --model my-model --query "what kind of fish is bogue" --document "Bogus fish is a plague."

        rankwell explain --query "what kind of fish is bogue" --id 7 --collection my-index

        rankwell explain --model my-model --query … --document … --layer 6 --head 3 --out map.png

        rankwell explain --model my-model --query … --document … --attention strm --compare-attention full --out two.pdf
    """
    from rankwell.plots.attention_map import draw_attention
    from rankwell.plots.pictures import check_picture
    from rankwell.rank.explain import attention_maps
    from rankwell.rank.explain import explain as explain_pair
    from rankwell.rank.ranker import Ranker
    from rankwell.rank.texts import read_text

    needs(context, {"docid": "collection"})
    if (document is None) == (docid is None):
        raise RankwellError("give the document as --document TEXT, or as --id ID with --collection")
    if out is not None:
        check_picture(out)
    shown: Head = "mean" if head == "mean" else _number(head)
    text = read_text(collection, docid) if collection is not None and docid is not None else _read(document or "")
    ranker = Ranker.from_pretrained(model, engine={"device": "cpu", "dtype": "fp32"})
    explanations = [explain_pair(ranker, query, text, type, attention=attention)]
    if compare_attention == explanations[0].rule:
        raise RankwellError(f"--compare-attention {compare_attention}: the model already uses this rule")
    if compare_attention is not None:
        explanations.append(explain_pair(ranker, query, text, type, attention=compare_attention))
    view = explanations[0].view(layer, shown)  # raises for wrong numbers before anything is printed or written
    if out is not None:
        maps = attention_maps([*explanations[1:], explanations[0]], layer, shown)
        draw_attention(maps, out, title=view.capitalize())
    if json:
        content = explanations[0].as_dict(layer, shown)
        for other in explanations[1:]:
            content["compared"] = other.as_dict(layer, shown)
        print(dumps(content, ensure_ascii=False))
        return
    console = make_console(markup=False)
    _print(console, explanations)
    console.print(f"\nStrongest attention, query → document ({view})", style="bold")
    links = explanations[0].strongest(layer, shown)
    for link in links:
        bar = "█" * max(1, round(20 * link.weight / (links[0].weight or 1)))
        console.print(f"  {link.source.text:>16} → {link.target.text:<20} {link.weight:.4f}  {bar}")
    if out is not None:
        print(f"\n{out}")


def _number(head: str) -> int:
    """The number of an attention head."""
    try:
        return int(head)
    except ValueError:
        raise RankwellError(f"--head {head}: expected a number from 1, or mean") from None


def _read(document: str) -> str:
    """The document itself, or the contents of the file of that name."""
    if document != "-" and not os.path.isfile(document):
        return document
    return "\n".join(line for _, line in read_lines(document)).strip()


def _print(console: Console, explanations: Sequence[Explanation]) -> None:
    """The scores, what was truncated, the tokens and the words."""
    explanation = explanations[0]
    for shown in explanations:
        logits = " ".join(f"{value:.4f}" for value in shown.logits)
        figures = f"score {shown.score:.4f}   p(relevant) {shown.probability:.4f}   logits {logits}"
        console.print(f"{shown.rule:<7} {figures}")
    if len(explanation.windows) > 1:
        place = f"{explanation.window} of {len(explanation.windows)}"
        console.print(f"window  {place}, the best; the score is the whole document's")
    for cut in explanation.cut:
        start = cut.text if len(cut.text) <= 50 else cut.text[:50] + "…"
        console.print(f"cut     {cut.pieces} pieces of the {cut.field}: {start}", style="yellow")
    _print_tokens(console, explanation)
    _print_words(console, explanation)


def _print_tokens(console: Console, explanation: Explanation) -> None:
    """One row per field; tokens of one word are joined by a dot, positions count from 1."""
    from rich.table import Table
    from rich.text import Text

    table = Table("field", "segment", "places", "pieces", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("type", "query", "document"):
        tokens = [token for token in explanation.tokens if token.field == name]
        if not tokens:
            continue
        line = Text()
        for before, token in zip([None, *tokens], tokens, strict=False):
            if before is not None:
                line.append("·" if before.word == token.word else " ", style="dark_orange")
            line.append(token.piece, style=_style(token, explanation))
        places = f"{tokens[0].position + 1}–{tokens[-1].position + 1}"
        table.add_row(name, str(tokens[0].segment), places, line)
    console.print(f"\n{len(explanation.tokens)} tokens, template {explanation.template.name}", style="bold")
    console.print(table)


def _style(token: Token, explanation: Explanation) -> str:
    if token.marker:
        return "magenta"
    hidden = "italic dim " if explanation.rule != "full" and not token.last else ""
    return hidden + ("green" if token.match else "")


def _print_words(console: Console, explanation: Explanation) -> None:
    """The split words and how the rule treats them, and the words both sides share."""
    console.print("\nSplit words" if explanation.split_words else "\nNo split words", style="bold")
    distinct = {(word.field, word.text): word for word in explanation.split_words}
    for word in list(distinct.values())[:MOST_SPLIT]:
        pieces = [explanation.tokens[i].piece for i in word.positions]
        full = explanation.rule == "full"
        treatment = "each piece is visible on its own" if full else f"visible to other words only as {pieces[-1]}"
        console.print(f"  {word.field:<9} {word.text} = {' '.join(pieces)}: {treatment}")
    if len(distinct) > MOST_SPLIT:
        console.print(f"  and {len(distinct) - MOST_SPLIT} more; --json has all", style="dim")
    matches: dict[int, list[Word]] = {}
    for word in explanation.words:
        if word.match:
            matches.setdefault(word.match, []).append(word)
    console.print("\nSame stem in query and document" if matches else "\nNo stem in common", style="bold")
    for number in sorted(matches):
        sides = ({w.text: None for w in matches[number] if w.field == f} for f in ("query", "document"))
        query_words, document_words = (", ".join(side) or "(cut)" for side in sides)
        times = sum(word.field == "document" for word in matches[number])
        mark = f"[e{number}] " if explanation.template.markers else ""
        console.print(
            f"  {mark}{query_words} = {document_words}" + (f" ({times} times)" if times > 1 else ""), style="green"
        )
