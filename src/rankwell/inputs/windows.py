"""Windows: long documents in overlapping parts, so that nothing is cut silently, and one score from the parts'."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.core.types import Rows
from rankwell.inputs.pieces import Pieces

MOST_WINDOWS = 1000
"""The largest N of ``topN``."""

Unit = Literal["words", "sentences"]
_WINDOWS = re.compile(r"([0-9]{1,9})|sentences(?::([1-9][0-9]{0,8}))?")


@dataclass(frozen=True, slots=True)
class Windows:
    """How documents are cut: windows of ``size`` words every ``stride`` words, their scores joined by ``aggregate``.

    Those of ``unit`` sentences hold whole ones, as many as have ``size`` words together, and each begins with the
    sentence that holds the word ``stride`` words after the beginning of the window before it.
    """

    size: int = 100
    stride: int = 50
    aggregate: str = "max"
    unit: Unit = "words"

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise RankwellError(f"windows of {self.unit!r} are not known (known: {', '.join(get_args(Unit))})")
        if not 1 <= self.stride <= self.size:
            raise RankwellError(
                f"windows of {self.size} words every {self.stride}: the stride must be from 1 to the size"
            )
        parse_aggregate(self.aggregate)


def parse_windows(text: str) -> tuple[Unit, int]:
    """What windows are made of, and their size in words, by default 100.

    >>> parse_windows("100"), parse_windows("sentences"), parse_windows("sentences:150")
    (('words', 100), ('sentences', 100), ('sentences', 150))
    """
    found = _WINDOWS.fullmatch(text)
    if found is None:
        raise RankwellError(f"windows {text!r}: expected a number of words, or sentences, or sentences:WORDS")
    if found[1]:
        return "words", int(found[1])
    return "sentences", int(found[2] or Windows().size)


def cut_windows(
    documents: Pieces, windows: Windows, sentences: NDArray[np.bool_] | None = None
) -> tuple[Pieces, NDArray[np.int64]]:
    """The windows of all documents as rows of their own, and the document each belongs to.

    A window begins and ends between words, or between ``sentences``: whether one begins with a piece (T,). The last
    one reaches the document's end and, where the document is long enough, is as full as the others; a document that
    fits is one window. A sentence longer than a window is cut between words.
    """
    starts = np.flatnonzero(~documents.continues)  # where words begin; a text's first piece continues nothing
    first = np.searchsorted(starts, documents.begins)
    words = np.searchsorted(starts, documents.ends) - first
    if windows.unit == "words":
        begin, end, owners = _word_windows(first, words, windows)
    elif sentences is None:
        raise RankwellError("windows of sentences need to know where sentences begin")
    else:
        begin, end, owners = _sentence_windows(first, words, sentences[starts], windows)
    bounds = np.append(starts, len(documents.ids))
    begins = np.where(words[owners] > 0, bounds[begin], documents.begins[owners])
    ends = np.where(words[owners] > 0, bounds[end], documents.begins[owners])
    return documents.cut(begins, ends - begins), owners


def _word_windows(first: Rows, words: Rows, windows: Windows) -> tuple[Rows, Rows, Rows]:
    """The words windows begin and end with, and the document each belongs to, which has ``words`` from ``first`` on."""
    counts = np.maximum(1, -(-(words - windows.size) // windows.stride) + 1)
    owners = np.repeat(np.arange(len(words)), counts)
    order = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = np.maximum(np.minimum(order * windows.stride, words[owners] - windows.size), 0)
    end = np.minimum(begin + windows.size, words[owners])
    return first[owners] + begin, first[owners] + end, owners


def _sentence_windows(first: Rows, words: Rows, opens: NDArray[np.bool_], windows: Windows) -> tuple[Rows, Rows, Rows]:
    """The same of whole sentences; ``opens`` says of each word whether it begins one."""
    sentences = np.flatnonzero(opens)
    lengths = np.diff(np.append(sentences, len(opens)))
    # Of a sentence longer than a window each word is one: it is cut as if there were no sentences.
    starts = np.flatnonzero(opens | np.repeat(lengths > windows.size, lengths))
    bounds = np.append(starts, len(opens))
    # Where a window that begins with each sentence ends, and where the one after it begins, at the latest there.
    until = np.searchsorted(bounds, bounds + windows.size, side="right") - 1
    step = np.searchsorted(starts, bounds + windows.stride, side="right") - 1
    step = np.minimum(np.maximum(step, np.arange(len(bounds)) + 1), until)
    begin, stop = np.searchsorted(starts, first), np.searchsorted(starts, first + words)
    last = np.searchsorted(starts, np.maximum(first + words - windows.size, first))

    # One window after the other, of all documents at once that have not reached their last.
    owner = np.arange(len(words))
    begins, owners = [begin[:0]], [owner[:0]]
    while len(owner):
        begin = np.minimum(begin, last[owner])
        begins.append(begin)
        owners.append(owner)
        more = begin < last[owner]
        owner, begin = owner[more], step[begin[more]]
    order = np.argsort(owner := np.concatenate(owners), kind="stable")
    owner, begin = owner[order], np.concatenate(begins)[order]
    return bounds[begin], bounds[np.minimum(until[begin], stop[owner])], owner


def parse_aggregate(name: str) -> tuple[str, tuple[float, ...]]:
    """``first``, ``max``, ``mean`` or ``topN`` as a name, and the weights of the N best windows.

    >>> parse_aggregate("top2"), parse_aggregate("top3:0.5,0.3,0.2")
    (('top', (1.0, 1.0)), ('top', (0.5, 0.3, 0.2)))
    """
    head, colon, rest = name.partition(":")
    if head.startswith("top") and head[3:].isdigit() and 0 < int(head[3:]) <= MOST_WINDOWS:
        n = int(head[3:])
        return "top", _parse_weights(name, rest, n) if colon else (1.0,) * n
    if name not in ("first", "max", "mean"):
        raise RankwellError(
            f"no aggregation is called {name!r} (known: first, max, mean, top1, top2, top3, …, top3:0.5,0.3,0.2)"
        )
    return name, (1.0,)


def _parse_weights(name: str, text: str, n: int) -> tuple[float, ...]:
    try:
        weights = tuple(map(float, text.split(",")))
    except ValueError:
        weights = ()
    # The first counts in a document of one window, too: at 0, that document had no score.
    if len(weights) != n or not all(0 <= weight < np.inf for weight in weights) or weights[0] == 0:
        raise RankwellError(f"{name!r}: expected {n} weights with commas, none negative and the first above 0")
    return weights


def aggregate_windows(scores: NDArray[np.float32], owners: NDArray[np.int64], how: str) -> NDArray[np.float32]:
    """One score for each document from those of its windows, which lie together.

    ``topN`` is the mean of the N best, weighted where there are weights; of a document of fewer windows, of those.
    """
    kind, weights = parse_aggregate(how)
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    if kind == "first":
        return scores[first]
    if kind == "max":
        return np.maximum.reduceat(scores, first) if len(first) else scores
    counts = np.diff(np.append(first, len(owners)))
    if kind == "top":
        order = np.lexsort((-scores, owners))
        rank = np.arange(len(owners)) - np.repeat(first, counts)
        weight_of = np.array([*weights, 0.0], np.float32)
        scores = np.where(rank < len(weights), scores[order] * weight_of[np.minimum(rank, len(weights))], np.float32(0))
        counts = np.cumsum(weight_of)[np.minimum(counts, len(weights)) - 1]
    return (np.add.reduceat(scores, first) / counts).astype(np.float32) if len(first) else scores
