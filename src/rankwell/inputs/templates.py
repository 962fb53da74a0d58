"""Templates: how a query and a document (and a type, or a second document) become one sequence.

    mono    [CLS] Q [SEP] D [SEP]               monoBERT
    typed   [CLS] T [SEP] Q [SEP] D [SEP]       DR-BERT; without a type, T and its [SEP] are left out
    single  [CLS] Q [SEP]                       a classifier of texts
    pair    [CLS] Q [SEP] D [SEP]               a classifier of pairs, which share the room fairly
    nli     [CLS] D [SEP] Q [SEP]               an NLI classifier: D is the premise, Q the hypothesis
    twin    [CLS] Q [SEP] [CLS] D [SEP]         each text as a bi-encoder reads it, its positions counted from 0
    prompt  … Q … D …                           a language model's, with the words of its prompt around the texts

A template is data: its fields, each with a segment id and a cap. Exact-match markers combine with each of them.
The query gets up to ``max_query`` pieces however long the document is; the document gets the rest. A longer query keeps
what room the document leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows
from rankwell.core.errors import RankwellError
from rankwell.core.registry import Registry
from rankwell.corpus.analyser import FUNCTION_WORDS, Analyzer
from rankwell.inputs.batching import Sequences
from rankwell.inputs.kernels import lay_out, match_stems
from rankwell.inputs.pieces import Pieces, UnmarkedWords, stem_number

MARKER_PAIRS = 20
NO_LIMIT = 0


@dataclass(frozen=True, slots=True)
class Field:
    """A part of a template; ``cap`` is its maximum number of pieces, 0 for a share of what the others leave.

    A field that is ``alone`` begins with its own ``[CLS]``, from which its positions are counted.
    """

    name: str
    segment: int
    cap: int = NO_LIMIT
    alone: bool = False


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The vocabulary ids a template writes; ``first_marker`` begins 20 pairs ``[e1] [/e1] [e2] …``, -1 for none.

    ``between`` is how many separators stand between two fields: BERT has one, MPNet and RoBERTa have two.
    """

    cls: int
    sep: int
    first_marker: int = -1
    between: int = 1


@dataclass(frozen=True, slots=True)
class Template:
    """A named layout with its limits. ``markers`` puts ``[ek] … [/ek]`` around words that match the query's."""

    name: str = "mono"
    max_length: int = 512
    max_query: int = 64
    markers: bool = False
    mark_unmatched_query: bool = False
    unmarked: UnmarkedWords = "stop words"

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.max_query < 1:
            raise RankwellError(f"max_query is {self.max_query}; it must be at least 1")
        self.check_length(between=1)

    def check_length(self, between: int) -> None:
        """Raise if ``max_length`` cannot hold every field with ``between`` separators between two."""
        fields = self.fields
        separators = 1 + (len(fields) - 1) * between
        least = 1 + separators + sum(f.cap + f.alone + (f.cap == NO_LIMIT) for f in fields)
        if self.max_length < least:
            problem = f"the template {self.name} with a query of {self.max_query} needs a length of at least {least}"
            raise RankwellError(f"{problem}, not {self.max_length}")

    def require(self, *names: str) -> None:
        """Raise unless the template reads exactly these fields, apart from a query type."""
        fields = [f.name for f in self.fields if f.name != "type"]
        if set(fields) == set(names):
            return
        raise RankwellError(f"the model's template {self.name} reads {' and '.join(fields)}, not {' and '.join(names)}")

    @property
    def fields(self) -> tuple[Field, ...]:
        """The parts in their order."""
        return TEMPLATES[self.name](self.max_query)


TEMPLATES: Registry[Callable[[int], tuple[Field, ...]]] = Registry("template")
_FIELDS: dict[str, Callable[[int], tuple[Field, ...]]] = {
    "mono": lambda max_query: (Field("query", 0, max_query), Field("document", 1)),
    "typed": lambda max_query: (Field("type", 0, 16), Field("query", 0, max_query), Field("document", 1)),
    "single": lambda max_query: (Field("query", 0),),
    "pair": lambda max_query: (Field("query", 0), Field("document", 1)),
    "nli": lambda max_query: (Field("document", 0), Field("query", 1, max_query)),
    "twin": lambda max_query: (Field("query", 0, max_query), Field("document", 1, alone=True)),
    "prompt": lambda max_query: (Field("query", 0, max_query), Field("document", 0)),
}
for _name, _fields in _FIELDS.items():
    TEMPLATES.register(_name)(_fields)


@dataclass
class TruncationReport:
    """Counts of what did not fit. Several threads may share a report."""

    pairs: int = 0
    pairs_cut: int = 0
    pieces_cut: dict[str, int] = field(default_factory=dict)
    """Tokens that were left out, by field."""
    longest: dict[str, int] = field(default_factory=dict, compare=False)
    """The length in tokens of the longest text that was truncated, by field."""
    pairs_windowed: int = 0
    """Pairs that were read in more than one window."""
    windows: int = 0
    """The windows they were read in."""
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def count(
        self,
        fields: Sequence[Field],
        cut: NDArray[np.int64],
        owners: Rows | None = None,
        lengths: NDArray[np.int64] | None = None,
    ) -> None:
        """Add a batch: ``cut`` (W, fields) are the pieces left out of each window, of ``lengths`` that there were.

        ``owners`` (W,), ascending, are the pairs the windows belong to; without them, each row is a pair.
        """
        batch = TruncationReport()
        if lengths is not None:
            longest = np.where(cut > 0, lengths, 0).max(axis=0, initial=0).tolist()
            batch.longest = {f.name: length for f, length in zip(fields, longest, strict=True) if length}
        if owners is not None and len(cut):
            first = np.flatnonzero(np.diff(owners, prepend=-1))
            sizes = np.diff(first, append=len(owners))
            # A truncated query counts once, however many windows it is read with.
            once, together = np.maximum.reduceat(cut, first), np.add.reduceat(cut, first)
            cut = np.where([f.cap == NO_LIMIT for f in fields], together, once)
            batch.pairs_windowed = int((sizes > 1).sum())
            batch.windows = int(sizes[sizes > 1].sum())
        batch.pairs, batch.pairs_cut = len(cut), int((cut.sum(axis=1) > 0).sum())
        batch.pieces_cut = dict(zip((f.name for f in fields), cut.sum(axis=0).tolist(), strict=True))
        self.add(batch)

    def add(self, other: TruncationReport) -> None:
        """Add what another report counted."""
        with self._lock:
            self.pairs += other.pairs
            self.pairs_cut += other.pairs_cut
            self.pairs_windowed += other.pairs_windowed
            self.windows += other.windows
            for name, count in other.pieces_cut.items():
                self.pieces_cut[name] = self.pieces_cut.get(name, 0) + count
            for name, length in other.longest.items():
                self.longest[name] = max(length, self.longest.get(name, 0))

    def advice(self) -> str | None:
        """What to change so that nothing is truncated; None if nothing was."""
        if not self.pairs_cut:
            return None
        advice = [str(self)]
        if longest := self.longest.get("query"):
            advice.append(f"--set max_query={longest} keeps whole queries")
        if self.pieces_cut.get("document"):
            advice.append("--windows reads long documents whole")
        return "; ".join(advice)

    def clear(self) -> None:
        """Start again from zero."""
        with self._lock:
            self.pairs = self.pairs_cut = self.pairs_windowed = self.windows = 0
            self.pieces_cut, self.longest = {}, {}

    def __str__(self) -> str:
        tokens = ", ".join(f"{count:,} {name} tokens" for name, count in self.pieces_cut.items() if count)
        parts = [f"truncated: {tokens} ({self.pairs_cut:,} of {self.pairs:,} pairs)"] if tokens else []
        if self.windows:
            parts.append(f"read in windows: {self.pairs_windowed:,} of {self.pairs:,} pairs ({self.windows:,} windows)")
        return "; ".join(parts) or "nothing truncated"


def lay_out_pairs(
    template: Template,
    special: SpecialTokens,
    fields: Mapping[str, Pieces],
    report: TruncationReport | None = None,
    *,
    segments: int = 2,
    owners: Rows | None = None,
) -> Sequences:
    """Lay out pairs: row ``i`` of each field belongs to pair ``i``.

    ``type`` may be missing, for all pairs or, as an empty row, for some. ``segments`` is the checkpoint's number of
    segment ids. If rows are windows, ``owners`` are their pairs, so that ``report`` counts pairs.
    """
    template.check_length(special.between)
    layout = [f for f in template.fields if f.name in fields or f.name != "type"]
    pairs = len(fields["query"])
    marks = _marks(template, special, fields) if template.markers else {}
    offsets = np.cumsum([0, *(len(fields[f.name].ids) for f in layout)])
    begins = np.stack([fields[f.name].begins + offset for f, offset in zip(layout, offsets, strict=False)], axis=1)
    ends = np.stack([fields[f.name].ends + offset for f, offset in zip(layout, offsets, strict=False)], axis=1)
    for column, f in enumerate(layout):
        if f.name == "type":
            begins[ends[:, column] == begins[:, column], column] = -1
    parts = [fields[f.name] for f in layout]
    room = int(
        (1 + special.between * len(layout) + sum(f.alone for f in layout)) * pairs
        + sum(np.minimum(p.lengths() * 3, template.max_length).sum() for p in parts)
    )
    room = min(room, pairs * template.max_length)
    tokens, positions, words = (np.empty(room, np.int32) for _ in range(3))
    token_segments, last = np.empty(room, np.int8), np.empty(room, np.bool_)
    sequence_ends, cut = np.empty(pairs, np.int64), np.empty((pairs, len(layout)), np.int64)
    word_marks, opens = np.zeros(0, np.int32), np.zeros(0, np.bool_)
    if marks:
        word_marks = np.concatenate([marks.get(f.name, np.zeros(len(fields[f.name].ids), np.int32)) for f in layout])
        opens = np.concatenate([p.opens if len(p.opens) else np.zeros(len(p.ids), np.bool_) for p in parts])
    size = lay_out(
        np.concatenate([p.ids for p in parts]),
        np.concatenate([p.continues for p in parts]),
        word_marks,
        opens,
        begins,
        ends,
        np.array([f.cap for f in layout], np.int64),
        np.array([min(f.segment, segments - 1) for f in layout], np.int8),
        np.array([f.alone for f in layout], np.bool_),
        special.cls,
        special.sep,
        special.first_marker,
        special.between,
        template.max_length,
        tokens,
        token_segments,
        positions,
        words,
        last,
        sequence_ends,
        cut,
    )
    if report is not None:
        report.count(layout, cut, owners, ends - begins)
    return Sequences(tokens[:size], token_segments[:size], positions[:size], words[:size], last[:size], sequence_ends)


def _marks(template: Template, special: SpecialTokens, fields: Mapping[str, Pieces]) -> dict[str, NDArray[np.int32]]:
    if special.first_marker < 0:
        raise RankwellError("this model has no marker tokens, so its template cannot use markers")
    query, document = fields["query"], fields["document"]
    if "other" in fields:
        raise RankwellError("markers are not defined for a template with two documents")
    if len(query.stems) != len(query.ids) or len(document.stems) != len(document.ids):
        raise RankwellError("markers need the stems of the query's and the document's words")
    return match_words(query, document, mark_unmatched=template.mark_unmatched_query, unmarked=template.unmarked)


def match_words(
    query: Pieces, document: Pieces, *, mark_unmatched: bool = False, unmarked: UnmarkedWords = "stop words"
) -> dict[str, NDArray[np.int32]]:
    """The number of the query term that each piece matches, 0 for none (see :func:`match_stems`)."""
    query_stems = query.stems
    if unmarked == "function words":  # what the query leaves unmarked is unmarked in the document, too
        query_stems = np.where(np.isin(query_stems, _function_stems()), np.int32(-1), query_stems)
    marks = {"query": np.empty(len(query.ids), np.int32), "document": np.empty(len(document.ids), np.int32)}
    stems = query_stems, query.ends, document.stems, document.ends
    match_stems(*stems, MARKER_PAIRS, mark_unmatched, marks["query"], marks["document"])
    return marks


@cache
def _function_stems() -> NDArray[np.int32]:
    """The stems of function words, as numbers."""
    terms = Analyzer.english().stems(sorted(FUNCTION_WORDS))
    return np.array([stem_number(term) for term in terms if term is not None], np.int32)
