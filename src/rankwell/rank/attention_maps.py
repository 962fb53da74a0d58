"""Turns explanations into attention maps of a readable size, which :mod:`rankwell.plots.attention` draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_text
from rankwell.plots.attention import AttentionMap, Label, draw_attention, draw_rule
from rankwell.rank.explain import Explanation, Head, Token, View, as_json

MOST_WORDS = 24
MOST_WORDS_OF_RULE = 10


def write_explanations(
    explanations: Sequence[Explanation],
    out: Path,
    view: View,
    *,
    picture: Literal["attention", "rule"] = "attention",
    words: int | None = None,
) -> None:
    """Write an explanation, and the one it is compared with, as JSON or as a picture of at most ``words`` words."""
    drawn = [*explanations[1:], explanations[0]]
    if out.suffix.lower() == ".json":
        with atomic_text(out) as file:
            file.write(as_json(explanations, view) + "\n")
    elif picture == "rule":
        rules = [rule_map(explanation, most=words or MOST_WORDS_OF_RULE) for explanation in drawn]
        draw_rule(rules, out, title="Which columns are open to a row")
    else:
        maps = attention_maps(drawn, view.layer, view.head, most=words or MOST_WORDS)
        draw_attention(maps, out, title=f"{view}".capitalize())


def attention_maps(
    explanations: Sequence[Explanation], layer: int | None = None, head: Head = "mean", *, most: int = MOST_WORDS
) -> list[AttentionMap]:
    """The query's attention to the document, for one or more explanations of the same tokens.

    Of a document with more than ``most`` words, those that share a piece with a matching or split word of the query are
    shown, then those that the query attends to most. The note says so.
    """
    if any(explanation.tokens != explanations[0].tokens for explanation in explanations):
        raise RankwellError("only explanations of the same tokens can be compared in one picture")
    weights = [explanation.weights(layer, head) for explanation in explanations]
    first = explanations[0]
    query = [first.tokens[i] for i in first.positions("query")]
    split = {i for word in first.split_words for i in word.positions}
    alike = {token.id for token in query if token.match or token.position in split}
    columns, note = _choose(first, np.max(weights, axis=0), most, lambda token: token.id in alike)
    if note:
        note += ": those that share a piece with a matching or split word of the query, then those with the highest"
        note += " weights. "
    rows = first.positions("query")
    shares = [matrix[np.ix_(rows, columns)].sum() / max(1, len(rows)) for matrix in weights]
    rules = [f" ({explanation.rule})" if len(explanations) > 1 else "" for explanation in explanations]
    parts = [f"{share:.0%}{rule}" for share, rule in zip(shares, rules, strict=True)]
    note += f"The columns get {' and '.join(parts)} of the query's attention; the rest goes to other tokens."
    titles = [f"{shown.rule} attention, score {shown.score:.3f}".replace("-", "−") for shown in explanations]
    return [
        _map(explanation, title, rows, columns, matrix, note, layer)
        for explanation, title, matrix in zip(explanations, titles, weights, strict=True)
    ]


def rule_map(explanation: Explanation, *, most: int = MOST_WORDS_OF_RULE) -> AttentionMap:
    """Which token may attend to which; of a long document the split words, then those attended to most."""
    split = {i for word in explanation.split_words for i in word.positions}
    weights = explanation.weights()
    columns, note = _choose(explanation, weights, most, lambda token: token.position in split)
    if note:
        note += ": split ones, then those with the query's highest weights."
    others = [token.position for token in explanation.tokens if token.field != "document"]
    positions = np.union1d(np.array(others, np.int64), columns)
    return _map(explanation, f"{explanation.rule} attention", positions, positions, weights, note)


def _map(
    explanation: Explanation,
    title: str,
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    weights: NDArray[np.float32],
    note: str,
    layer: int | None = None,
) -> AttentionMap:
    cells = np.ix_(rows, columns)
    labels = [Label(token.piece, token.position, token.word, token.last, token.match) for token in explanation.tokens]
    across, down = [labels[i] for i in columns], [labels[i] for i in rows]
    return AttentionMap(title, down, across, weights[cells], explanation.open_in(layer)[cells], note)


def _choose(
    explanation: Explanation, weights: NDArray[np.float32], most: int, wanted: Callable[[Token], bool]
) -> tuple[NDArray[np.int64], str]:
    """The document's positions to show, in their order: all, or the wanted words and those with the highest weights."""
    units = _units([token for token in explanation.tokens if token.field == "document"])
    words = [unit for unit in units if any(character.isalnum() for token in unit for character in token.piece)]
    if len(words) <= most:
        return explanation.positions("document"), ""
    highest = weights[explanation.positions("query")].max(axis=0, initial=0.0)

    def order(unit: list[Token]) -> tuple[bool, float]:
        return not any(map(wanted, unit)), -float(max(highest[token.position] for token in unit))

    shown = sorted(words, key=order)[:most]
    note = f"Shown are {len(shown)} of the document's {len(words)} words"
    return np.array(sorted(token.position for unit in shown for token in unit), np.int64), note


def _units(tokens: Sequence[Token]) -> list[list[Token]]:
    """Words as lists of their tokens; a marked word comes with its markers."""
    units: list[list[Token]] = []
    inside = False
    for token in tokens:
        closing = token.marker > 0 and token.piece.startswith("[/")
        if units and (inside or closing or units[-1][-1].word == token.word):
            units[-1].append(token)
        else:
            units.append([token])
        inside = not closing and (inside or token.marker > 0)
    return units
