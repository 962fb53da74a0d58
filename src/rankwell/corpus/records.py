"""The records that all stages exchange, and the ranking order.

There is one order of documents in rankwell: score descending as a 32-bit float, equal scores by document id descending.
It is trec_eval's, so its figures always agree with our lists, and it is total, so a run has only one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwell.core.arrays import Scores
from rankwell.core.errors import RankwellError, name_instead


@dataclass(frozen=True, slots=True)
class Query:
    """A query; ``type`` is the kind of answer it wants (location, numeric, person, description, entity), if known."""

    qid: str
    text: str
    type: str | None = None


Metadata = Mapping[str, Any]
"""What a document has besides: texts, numbers, dates, booleans, and lists of these, by the names of fields."""


@dataclass(frozen=True, slots=True)
class Document:
    """A passage or document; ``title`` may be empty. Searches can return and filter by its ``metadata``."""

    docid: str
    text: str
    title: str = ""
    metadata: Metadata | None = field(default=None, repr=False, hash=False)

    @property
    def contents(self) -> str:
        """The text to index and rank: the title, if any, and the text."""
        return f"{self.title} {self.text}" if self.title else self.text

    @classmethod
    def split(cls, docid: str, contents: str, title: int, metadata: Metadata | None = None) -> Document:
        """The document with these contents, of which the first ``title`` characters are the title."""
        text, heading = (contents[title + 1 :], contents[:title]) if title else (contents, "")
        return cls(docid, text, heading, metadata)


@dataclass(frozen=True, slots=True)
class TermWeights:
    """A document's term weights from a model: a positive number for each word."""

    docid: str
    weights: Mapping[str, float]


def ranking_order(docids: Sequence[str], scores: Scores) -> list[int]:
    """Positions of ``docids`` in THE order.

    >>> ranking_order(["a", "b", "c"], np.array([1, 2, 1], np.float32))
    [1, 2, 0]
    """
    if bool(np.all(scores[:-1] > scores[1:])):
        return list(range(len(docids)))
    values = scores.tolist()
    return sorted(range(len(docids)), key=lambda i: (values[i], docids[i]), reverse=True)


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """One query's documents in THE order. Make it with :meth:`of`, which sorts and checks."""

    docids: tuple[str, ...]
    scores: Scores

    @classmethod
    def of(cls, docids: Iterable[str], scores: Iterable[float] | Scores) -> Ranking:
        """Sort ``docids`` by ``scores``. Raises for NaN and for repeated documents."""
        names = tuple(docids)
        # Adding 0 turns -0.0 into 0.0, so that equal scores are also equal bits.
        values = (
            np.fromiter(scores, np.float32) + np.float32(0)
            if not isinstance(scores, np.ndarray)
            else (scores.astype(np.float32) + np.float32(0))
        )
        if len(names) != len(values):
            raise ValueError(f"{len(names)} documents but {len(values)} scores")
        if bool(np.isnan(values).any()):
            raise RankwellError(f"document {names[int(np.isnan(values).argmax())]} has the score NaN")
        if len(set(names)) != len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise RankwellError(f"document {twice} is ranked twice")
        order = ranking_order(names, values)
        return cls(tuple([names[i] for i in order]), values[order])

    def head(self, depth: int) -> Ranking:
        """The first ``depth`` documents."""
        return Ranking(self.docids[:depth], self.scores[:depth])

    def before(self, rest: Ranking) -> Ranking:
        """These documents, and below them the others of another ranking, whose order stays."""
        others = rest.select(set(rest.docids).difference(self.docids).__contains__)
        below = self.scores[-1] - np.arange(1, len(others) + 1)  # their own scores, moved, might round to equal ones
        return Ranking.of([*self.docids, *others.docids], np.concatenate([self.scores, below]))

    def select(self, keep: Callable[[str], bool]) -> Ranking:
        """The documents whose ids ``keep`` accepts."""
        places = [place for place, docid in enumerate(self.docids) if keep(docid)]
        return Ranking(tuple([self.docids[place] for place in places]), self.scores[places])

    def __len__(self) -> int:
        return len(self.docids)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return zip(self.docids, self.scores.tolist(), strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranking) and self.docids == other.docids and np.array_equal(self.scores, other.scores)

    __hash__ = None  # type: ignore[assignment]


class Run(Mapping[str, Ranking]):
    """A system's rankings by query id, in the order of the queries."""

    if not TYPE_CHECKING:
        __getattr__ = name_instead(to_pandas="pandas.DataFrame(run.to_dict()) is a frame of scores")

    def __init__(self, rankings: Mapping[str, Ranking] | None = None, *, name: str = "rankwell"):
        self.name = name
        self._rankings: dict[str, Ranking] = dict(rankings or {})

    @classmethod
    def from_scores(cls, scores: Mapping[str, Mapping[str, float]], *, name: str = "rankwell") -> Run:
        """Make a run from ``{qid: {docid: score}}``."""
        return cls({qid: Ranking.of(by_doc.keys(), by_doc.values()) for qid, by_doc in scores.items()}, name=name)

    def to_dict(self) -> dict[str, dict[str, float]]:
        """The scores as ``{qid: {docid: score}}``, as ranx and pytrec_eval take them."""
        return {
            qid: dict(zip(ranking.docids, map(float, ranking.scores), strict=True)) for qid, ranking in self.items()
        }

    def head(self, depth: int) -> Run:
        """The run cut to the first ``depth`` documents of each query."""
        return Run({qid: ranking.head(depth) for qid, ranking in self.items()}, name=self.name)

    def without_identical_ids(self) -> Run:
        """The run without documents that have the id of their query, as BEIR evaluates ArguAna, Quora and others."""
        rankings = {
            qid: ranking.select(qid.__ne__) if qid in ranking.docids else ranking for qid, ranking in self.items()
        }
        return Run(rankings, name=self.name)

    def __getitem__(self, qid: str) -> Ranking:
        return self._rankings[qid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rankings)

    def __len__(self) -> int:
        return len(self._rankings)

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {len(self):,} queries, {sum(map(len, self.values())):,} documents)"

    def _repr_html_(self) -> str:
        best = ((qid, *ranked) for qid, ranking in islice(self.items(), 5) for ranked in islice(ranking, 5))
        rows = ((qid, docid, f"{score:.3f}") for qid, docid, score in best)
        return html_table(repr(self), ("query", "document", "score"), rows)


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for notebooks."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"


GRADE_LIMIT = 2**63
"""Grades lie below it, and above its negative."""


class Qrels(Mapping[str, Mapping[str, int]]):
    """Judgments: ``qrels[qid][docid]`` is the grade. Documents without an entry are unjudged."""

    def __init__(self, grades: Mapping[str, Mapping[str, int]]):
        self._grades = {qid: dict(by_doc) for qid, by_doc in grades.items()}
        for qid, by_doc in self._grades.items():
            if by_doc and not -GRADE_LIMIT < min(by_doc.values()) <= max(by_doc.values()) < GRADE_LIMIT:
                raise RankwellError(f"query {qid!r} has a grade of over 63 bits")

    def __getitem__(self, qid: str) -> Mapping[str, int]:
        return self._grades[qid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._grades)

    def __len__(self) -> int:
        return len(self._grades)

    def __repr__(self) -> str:
        return f"Qrels({len(self)} queries, {sum(map(len, self.values()))} judgments)"
