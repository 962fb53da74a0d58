"""``rankwell explain``: why a pair has its score."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankwell.models.checkpoints.names import DEFAULT

if TYPE_CHECKING:
    from rich.console import Console

    from rankwell.rank.explain import Explanation, Head, Token, Word
    from rankwell.rank.ranker import Ranker

Rule = Literal["full", "strm", "strict", "exact_match"]
MOST_SPLIT = 12


def explain(
    query: Annotated[str, typer.Option("--query", help="The query's text.")],
    document: Annotated[str, typer.Option("--document", help="The document's text.")],
    model: Annotated[str, typer.Option("--model", help="A checkpoint folder, or a name on the hub.")] = DEFAULT,
    type: Annotated[str | None, typer.Option("--type", help="The query's type, for a model that takes one.")] = None,
    attention: Annotated[Rule | None, typer.Option("--attention", help="A rule instead of the model's own.")] = None,
    markers: Annotated[
        bool | None,
        typer.Option("--markers/--no-markers", help="Mark matching words, or not, whatever the model does."),
    ] = None,
    layer: Annotated[int | None, typer.Option("--layer", help="Counted from 1; the last, where none is named.")] = None,
    head: Annotated[str, typer.Option("--head", help="Counted from 1, or mean: the mean over all heads.")] = "mean",
    compare_attention: Annotated[
        Rule | None, typer.Option("--compare-attention", help="Another rule to set beside it.")
    ] = None,
    picture: Annotated[
        Literal["attention", "rule"], typer.Option("--picture", help="Who attends to what, or who may.")
    ] = "attention",
    words: Annotated[
        int | None, typer.Option("--words", min=1, help="The most words of the document in a picture.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A picture (.png, .svg, .pdf) or everything as .json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show why a document has its score for a query.

    The tokens as the model sees them, the words that are split and how the attention rule treats them,
    the words both sides share, and what the query attends to.

    **Examples**

        rankwell explain --model my-model --query "what kind of fish is bogue" --document "Bogus fish is a plague."

        rankwell explain --model my-model --query … --document … --layer 6 --head 3 --out map.png

        rankwell explain --model my-model --query … --document … --attention strm --compare-attention full --out two.pdf
    """
    from rankwell.core.errors import RankwellError
    from rankwell.core.files import atomic_text
    from rankwell.plots.attention import draw_attention, draw_rule, rule_text
    from rankwell.plots.pictures import FORMATS
    from rankwell.rank.attention_maps import MOST_WORDS, MOST_WORDS_OF_RULE, attention_maps, rule_map
    from rankwell.rank.explain import explain as explain_pair

    if out is not None and out.suffix.lower() not in (".json", *FORMATS):
        raise RankwellError(f"{out}: expected a name that ends in .json, {', '.join(FORMATS)}")
    chosen = _head(head)
    ranker = _load(model, markers)
    own = explain_pair(ranker, query, document, type, attention=attention, markers=markers)
    own.weights(layer, chosen)  # wrong numbers are found before anything is printed or written
    others = []
    if compare_attention is not None:
        if compare_attention == own.rule:
            raise RankwellError(f"the model already attends by the rule {own.rule}; compare it with another")
        others.append(explain_pair(ranker, query, document, type, attention=compare_attention, markers=markers))

    layer = own.attention.shape[0] if layer is None else layer
    where = f"layer {layer}, " + (f"mean of {own.attention.shape[1]} heads" if chosen == "mean" else f"head {chosen}")
    if as_json or (out is not None and out.suffix.lower() == ".json"):
        found = own.as_dict(layer, chosen)
        if others:
            found["compared"] = others[0].as_dict(layer, chosen)
        text = json.dumps(found, ensure_ascii=False)
    if out is not None and out.suffix.lower() == ".json":
        with atomic_text(out) as file:
            file.write(text + "\n")
    elif out is not None and picture == "rule":
        rules = [rule_map(one, most=words or MOST_WORDS_OF_RULE) for one in (*others, own)]
        draw_rule(rules, out, title="Which columns are open to a row")
    elif out is not None:
        maps = attention_maps([*others, own], layer, chosen, most=words or MOST_WORDS)
        draw_attention(maps, out, title=where[0].upper() + where[1:])
    if as_json:
        print(text)
        return
    _print(own, others, layer, chosen, where)
    if picture == "rule":
        print("\n" + rule_text(rule_map(own, most=words or MOST_WORDS_OF_RULE)))
    if out is not None:
        print(f"\n{out}")


def _head(name: str) -> Head:
    from rankwell.core.errors import RankwellError

    if name == "mean":
        return "mean"
    try:
        return int(name)
    except ValueError:
        raise RankwellError(f"no head {name!r}: expected a number from 1, or mean") from None


def _load(name: str, markers: bool | None) -> Ranker:
    """The model in exact float32, with new markers where they are asked for and it has none."""
    from rankwell.models.checkpoints.folders import add_markers
    from rankwell.rank.ranker import Ranker

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        ranker = Ranker.from_pretrained(name, engine={"device": "cpu"})
    for warning in caught:
        typer.echo(f"warning: {warning.message}", err=True)
    if markers and ranker.tokenizer.special.first_marker < 0:
        engine: Any = ranker.engine
        add_markers(engine.model, ranker.tokenizer)
        typer.echo(f"warning: {name} has no markers: new ones are used, untrained", err=True)
    return ranker


def _print(own: Explanation, others: list[Explanation], layer: int, head: Head, where: str) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    for one in (own, *others):
        logits = " ".join(f"{value:.4f}" for value in one.logits)
        console.print(f"{one.rule:<7} score {one.score:.4f}   p(relevant) {one.probability:.4f}   logits {logits}")
    if len(own.windows) > 1:
        console.print(f"window  {own.window} of {len(own.windows)}, the best; the score is the whole document's")
    for cut in own.cut:
        start = cut.text if len(cut.text) <= 50 else cut.text[:50] + "…"
        console.print(f"cut     {cut.pieces} pieces of the {cut.field}: {start}", style="yellow")
    _print_tokens(console, own)
    _print_words(console, own)
    console.print(f"\nStrongest attention, query → document ({where})", style="bold")
    links = own.strongest(layer, head)
    for link in links:
        bar = "█" * max(1, round(20 * link.weight / (links[0].weight or 1)))
        console.print(f"  {link.source.text:>16} → {link.target.text:<20} {link.weight:.4f}  {bar}")


def _print_tokens(console: Console, own: Explanation) -> None:
    """A row for each field; pieces of one word are joined by a dot, places count from 1."""
    from rich.table import Table
    from rich.text import Text

    table = Table("field", "segment", "places", "pieces", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("type", "query", "document"):
        tokens = [token for token in own.tokens if token.field == name]
        if not tokens:
            continue
        line = Text()
        for before, token in zip([None, *tokens], tokens, strict=False):
            if before is not None:
                line.append("·" if before.word == token.word else " ", style="dark_orange")
            line.append(token.piece, style=_style(token, own))
        places = f"{tokens[0].position + 1}–{tokens[-1].position + 1}"
        table.add_row(name, str(tokens[0].segment), places, line)
    console.print(f"\n{len(own.tokens)} tokens, template {own.template.name}", style="bold")
    console.print(table)


def _style(token: Token, own: Explanation) -> str:
    if token.marker:
        return "magenta"
    hidden = "italic dim " if own.rule != "full" and not token.last else ""
    return hidden + ("green" if token.match else "")


def _print_words(console: Console, own: Explanation) -> None:
    """The split words and what the rule makes of them, and the words both sides share."""
    console.print("\nSplit words" if own.split_words else "\nNo word is split", style="bold")
    distinct = {(word.field, word.text): word for word in own.split_words}
    for word in list(distinct.values())[:MOST_SPLIT]:
        pieces = [own.tokens[i].piece for i in word.positions]
        console.print(f"  {word.field:<9} {word.text} = {' '.join(pieces)}: {_treatment(own, pieces)}")
    if len(distinct) > MOST_SPLIT:
        console.print(f"  and {len(distinct) - MOST_SPLIT} more; --json has all", style="dim")
    matches: dict[int, list[Word]] = {}
    for word in own.words:
        if word.match:
            matches.setdefault(word.match, []).append(word)
    console.print("\nSame stem in query and document" if matches else "\nNo stem is shared", style="bold")
    for number in sorted(matches):
        sides = ({w.text: None for w in matches[number] if w.field == f} for f in ("query", "document"))
        asked, found = (", ".join(side) or "(cut)" for side in sides)
        times = sum(word.field == "document" for word in matches[number])
        mark = f"[e{number}] " if own.template.markers else ""
        console.print(f"  {mark}{asked} = {found}" + (f" ({times} times)" if times > 1 else ""), style="green")


def _treatment(own: Explanation, pieces: list[str]) -> str:
    if own.rule == "full":
        return "each piece can be matched alone"
    return f"seen by other words as {pieces[-1]} alone"
