"""Windows by default: a document longer than the room its template leaves is read in parts as large as that room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rankwell.core.types import Rows
from rankwell.inputs.kernels import match_stems
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.sentences import sentence_marks, sentence_starts
from rankwell.inputs.templates import MARKER_PAIRS, SpecialTokens, Template
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows, cut_windows

_NO_LIMIT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Fitting(Windows):
    """Windows as large as what the query leaves, each overlapping the next by half; a document that fits is one.

    As words they have no limit: pieces count, and how many fit is decided pair by pair.
    """

    size: int = _NO_LIMIT
    stride: int = _NO_LIMIT


def window_fields(
    template: Template, tokenizer: Tokenizer, fields: Mapping[str, Pieces], windows: Windows | None
) -> tuple[dict[str, Pieces], Rows]:
    """The fields of the windows of pairs, a row for each window, and the pair each window belongs to.

    Rows of ``fields`` belong to pairs as in :func:`~rankwell.inputs.templates.lay_out_pairs`.
    """
    document = fields["document"]
    whole = np.arange(len(document))
    if windows is None:
        return dict(fields), whole
    if isinstance(windows, Fitting):
        costs, room = _costs_and_room(template, tokenizer.special, fields)
        # A window that begins within a marked word marks what is left of it.
        begins, ends, pair_of = fit_windows(document, costs, room, spare=2 if template.markers else 0)
        if len(pair_of) == len(whole):
            return dict(fields), whole
        cut = document.cut(begins, ends - begins)
    else:
        sentences = None
        if windows.unit == "sentences":
            sentences = sentence_starts(document, sentence_marks(tokenizer))
        cut, pair_of = cut_windows(document, windows, sentences)
    return {name: cut if name == "document" else rows.take(pair_of) for name, rows in fields.items()}, pair_of


def fit_windows(document: Pieces, costs: Rows, room: Rows, spare: int = 0) -> tuple[Rows, Rows, Rows]:
    """Where the windows of each row begin and end, and the row each belongs to.

    ``costs`` (T,) are the places a piece takes, ``room`` (N,) the places there are for each row, of which windows leave
    ``spare``. They begin and end between words, as long as no word is longer than a quarter of the room. The last
    reaches the end and is full.
    """
    cost = np.concatenate([[0], np.cumsum(costs)])  # of all pieces before one
    # Where the word of a piece begins, and the next word after it; the end of the last row begins a word, too.
    at = np.arange(len(costs) + 1)
    fresh = np.append(~document.continues, True)
    word = np.maximum.accumulate(np.where(fresh, at, 0))
    next_word = np.minimum.accumulate(np.where(fresh, at, len(costs))[::-1])[::-1]

    need = cost[document.ends] - cost[document.begins]
    room = np.maximum(np.where(need <= room, room, room - spare), 1)
    half = np.maximum(room // 2, 1)
    counts = np.maximum(-(-(need - room) // half), 0) + 1
    owners = np.repeat(np.arange(len(document)), counts)
    order = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    first, end, room, half = document.begins[owners], document.ends[owners], room[owners], half[owners]

    begins = np.searchsorted(cost, cost[first] + order * half)
    begins = _snap(begins, word[begins], cost, room)
    last = order == counts[owners] - 1
    late = np.searchsorted(cost, cost[end] - room)
    late = np.maximum(np.minimum(_snap(late, next_word[late], cost, room), end - 1), first)
    begins = np.where(last, late, begins)

    ends = np.minimum(np.searchsorted(cost, cost[begins] + room, side="right") - 1, end)
    ends = np.where(ends < end, _snap(ends, word[ends], cost, room), ends)
    following = np.append(begins[1:], 0)
    # A piece that takes more room than there is is left to the template, which cuts and counts it.
    ends = np.maximum(ends, np.where(last, end, np.maximum(following, begins + 1)))
    return begins, ends, owners


def _snap(places: Rows, words: Rows, cost: Rows, room: Rows) -> Rows:
    """The places moved to the edge of their word, where that is near enough for windows still to overlap."""
    return np.where(np.abs(cost[places] - cost[words]) <= room // 4, words, places)


def _costs_and_room(template: Template, special: SpecialTokens, fields: Mapping[str, Pieces]) -> tuple[Rows, Rows]:
    """The places each piece of a document takes, markers included, and how many its pair has."""
    query, document = fields["query"], fields["document"]
    openings = {}
    if template.markers and len(query.stems) == len(query.ids) and len(document.stems) == len(document.ids):
        marks = np.empty(len(query.ids), np.int32), np.empty(len(document.ids), np.int32)
        parts = query.stems, query.ends, document.stems, document.ends
        match_stems(*parts, MARKER_PAIRS, template.mark_unmatched_query, *marks)
        openings = {"query": (marks[0] > 0) & query.opens, "document": (marks[1] > 0) & document.opens}
    # [CLS], and the separators: one at the end, and one or more before each field but the first.
    room = np.full(len(document), template.max_length - 2 + special.between)
    for f in template.fields:
        if f.name not in fields:
            continue
        need = fields[f.name].lengths()
        room -= f.alone + special.between * (
            (need > 0) | (f.name != "type")
        )  # an empty type vanishes together with its [SEP]
        if f.name in openings and f.cap:
            before = np.concatenate([[0], np.cumsum(openings[f.name])])
            need = need + 2 * (before[fields[f.name].ends] - before[fields[f.name].begins])
        if f.cap:
            room -= np.minimum(need, f.cap)
    costs = np.ones(len(document.ids), np.int64)
    if openings:
        costs += 2 * openings["document"]
    return costs, room
