"""Measures as values that print as their own notation: ``RR@10``, ``AP(rel=2)``, ``RBP(p=0.9)@20``.

A measure is a plain function of a :class:`JudgedRanking`, registered by one decorator line. Its keyword-only arguments
are its parameters. The notation is that of ir-measures::

    NAME [ "(" parameter "=" value, … ")" ] [ "@" cut-off ]
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError, excerpt
from rankwell.core.registry import Domain, Registry, Value

# What a measure sees of a ranking: documents are looked up only here


Grades = NDArray[np.int64]
Ranks = NDArray[np.int64]

UNJUDGED = -1
"""The document has no judgment: it does not occur in the query's, or with a negative grade (pooled but not judged)."""


@dataclass(frozen=True, slots=True, eq=False)
class JudgedRanking:
    """The input of a measure: one query's grades.

    ``grades`` has, from rank 1 on, a grade of 0 or more, or :data:`UNJUDGED`. ``judged`` has the grades of all judged
    documents, retrieved or not, the highest first.
    """

    grades: Grades
    judged: Grades

    def relevant_ranks(self, rel: int, cutoff: int | None = None) -> Ranks:
        """The ranks (from 1) of the retrieved documents with a grade of at least ``rel``."""
        return np.flatnonzero(self.grades[:cutoff] >= rel) + 1

    def relevant_count(self, rel: int) -> int:
        """The number of judged documents with a grade of at least ``rel``."""
        return int(np.count_nonzero(self.judged >= rel))


def judge(docids: Sequence[str], grades: Mapping[str, int]) -> JudgedRanking:
    """Look the ranked ``docids`` up in one query's judgments.

    >>> judge(["a", "b", "c"], {"b": 2, "c": -1, "d": 3}).grades.tolist()
    [-1, 2, -1]
    """
    judged = np.array([grade for grade in grades.values() if grade >= 0], np.int64)
    judged[::-1].sort()
    found = np.array(list(map(grades.get, docids, repeat(UNJUDGED))), np.int64)
    return JudgedRanking(np.maximum(found, UNJUDGED), judged)


# The notation


Summary = Literal["mean", "sum"]


DEPTH = Domain(int, lambda depth: depth >= 1, "a whole number of 1 or more", 10)
RECALL = Domain(float, lambda recall: 0 <= recall <= 1, "a recall level from 0 to 1", 0.1)
MULTIPLE = Domain(float, lambda times: 0 < times < 1e6, "a positive multiple of the number of relevant documents", 0.5)

PARAMETERS: Mapping[str, Domain] = MappingProxyType(
    {
        "rel": Domain(int, lambda grade: grade >= 0, "a whole number of 0 or more", 2),
        "p": Domain(float, lambda p: 0 < p < 1, "a number between 0 and 1", 0.8),
        "beta": Domain(float, lambda beta: 0 < beta < 1e6, "a positive number", 2.0),
        "max_rel": Domain(int, lambda grade: 1 <= grade <= 60, "a whole number from 1 to 60", 3),
        "trec_eval": Domain(int, lambda version: version in (9, 10), "9 or 10", 9),
        "dcg": Domain(str, lambda form: form in ("log2", "exp-log2"), "log2 or exp-log2", "exp-log2"),
    }
)

ALIASES: Mapping[str, str] = MappingProxyType(
    {"MAP": "AP", "MRR": "RR", "NDCG": "nDCG", "RPrec": "Rprec", "BPref": "Bpref", "Precision": "P", "Recall": "R"}
)

NAMES_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "RR": "recip_rank",
        "Success": "hit hits hit_rate hitrate hr",
        "Rprec": "Rprec_mult",
        "AP": "map_cut",
        "IPrec": "iprec_at_recall 11pt_avg",
        "nDCG": "ndcg_cut",
        "SetP": "set_P",
        "SetR": "set_recall",
        "SetF": "set_F",
        "NumQ": "num_q",
        "NumRet": "num_ret",
        "NumRel": "num_rel",
        "NumRelRet": "num_rel_ret",
    }
)
"""Names in trec_eval and elsewhere that differ by more than capitals; used only for hints."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasureKind:
    """What all measures of one name share; registered by :func:`measure`."""

    name: str
    compute: Callable[..., float]
    defaults: Mapping[str, Value]
    cutoff: Domain | None
    cutoff_required: bool
    summary: Summary


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure with its parameters and cut-off.

    >>> MEASURES["AP"](rel=2) @ 100
    AP(rel=2)@100
    """

    kind: MeasureKind
    parameters: tuple[tuple[str, Value], ...] = ()
    cutoff: int | float | None = None

    @property
    def summary(self) -> Summary:
        """How the values of the queries become one figure: counts are summed, others are averaged."""
        return self.kind.summary

    @property
    def level(self) -> int:
        """The lowest grade that counts as relevant: ``rel``, or 1 if the measure has no such parameter."""
        return int(dict(self.parameters).get("rel", self.kind.defaults.get("rel", 1)))

    def __call__(self, **parameters: Value) -> Measure:
        """The measure with these parameters. Defaults are dropped, so that equal measures print alike."""
        values = dict(self.parameters)
        for name, value in parameters.items():
            if name not in self.kind.defaults:
                known = ", ".join(self.kind.defaults) or "none"
                raise RankwellError(f"{self.kind.name} has no parameter {excerpt(name)} (it has: {known})")
            read = PARAMETERS[name].read(value)
            if read is None:
                raise RankwellError(f"{self.kind.name}({name}={value}): {name} must be {PARAMETERS[name].meaning}")
            values[name] = read
        defaults = self.kind.defaults
        changed = [name for name in defaults if name in values and values[name] != defaults[name]]
        return replace(self, parameters=tuple((name, values[name]) for name in changed))

    def __matmul__(self, cutoff: Value) -> Measure:
        """The measure at this cut-off."""
        domain = self.kind.cutoff
        if domain is None:
            raise RankwellError(f"{self.kind.name} takes no cut-off (found {self.kind.name}@{cutoff})")
        read = domain.read(cutoff)
        if read is None or isinstance(read, str):
            raise RankwellError(f"{self.kind.name}@{cutoff}: the cut-off must be {domain.meaning}")
        return replace(self, cutoff=read)

    def function(self) -> Callable[[JudgedRanking], float]:
        """The measure as a function of one query's ranking."""
        arguments = dict(self.parameters)
        if self.cutoff is not None:
            arguments["cutoff"] = self.cutoff
        elif self.kind.cutoff is not None and self.kind.cutoff_required:
            raise RankwellError(
                f"{self.kind.name} needs a cut-off, for example {self.kind.name}@{self.kind.cutoff.example}"
            )
        return partial(self.kind.compute, **arguments)

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value}" for name, value in self.parameters)
        cutoff = "" if self.cutoff is None else f"@{self.cutoff}"
        return self.kind.name + (f"({arguments})" if arguments else "") + cutoff

    __repr__ = __str__


MEASURES: Registry[Measure] = Registry("measure")


def measure(
    name: str, *, cutoff: Domain | None = None, summary: Summary = "mean"
) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """Decorator: register a function of a :class:`JudgedRanking` as the measure ``name``.

    Its keyword-only arguments with defaults are the measure's parameters (see :data:`PARAMETERS`). ``cutoff`` describes
    valid cut-offs; one is required if the function's ``cutoff`` argument has no default.
    """

    def register(compute: Callable[..., float]) -> Callable[..., float]:
        arguments = dict(inspect.signature(compute).parameters)
        at = arguments.pop("cutoff", None)
        defaults = {p.name: p.default for p in arguments.values() if p.kind is inspect.Parameter.KEYWORD_ONLY}
        required = at is not None and at.default is inspect.Parameter.empty
        kind = MeasureKind(name, compute, MappingProxyType(defaults), cutoff, required, summary)
        MEASURES.register(name)(Measure(kind))
        return compute

    return register


NOTATION = re.compile(r"(?P<name>\w+)(?:\((?P<parameters>[^()]*)\))?(?:@(?P<cutoff>[^@()\s]+))?")


def parse_measure(text: str, *, rel: int | None = None) -> Measure:
    """Read one measure.

    ``rel`` is the relevance level of a measure that has one and does not state it. trec_eval's names and other capitals
    are understood.

    >>> parse_measure("P(rel=2)@10"), parse_measure("AP", rel=2), parse_measure("nDCG@10", rel=2)
    (P(rel=2)@10, AP(rel=2), nDCG@10)
    """
    match = NOTATION.fullmatch(text)
    if (match is None or ALIASES.get(match["name"], match["name"]) not in MEASURES) and (ours := our_notation(text)):
        text, match = ours, NOTATION.fullmatch(ours)
    if match is None:
        raise RankwellError(f"{excerpt(text)} is not a measure; expected NAME, NAME@10 or NAME(rel=2)@10")
    parsed = MEASURES[ALIASES.get(match["name"], match["name"])]
    parameters: dict[str, Value] = {}
    if rel is not None and "rel" in parsed.kind.defaults:
        parameters["rel"] = rel
    for part in filter(None, map(str.strip, (match["parameters"] or "").split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise RankwellError(f"{text}: {excerpt(part)} is not a parameter; expected NAME=VALUE, for example rel=2")
        parameters[name.strip()] = value.strip().strip("'\"")
    parsed = parsed(**parameters)
    parsed = parsed @ match["cutoff"] if match["cutoff"] else parsed
    parsed.function()  # raises for a missing cut-off now, not during the evaluation
    return parsed


def our_notation(text: str) -> str | None:
    """Our notation for a measure in trec_eval's notation, or in other capitals.

    >>> our_notation("ndcg_cut_10"), our_notation("P.5"), our_notation("ndcg@10"), our_notation("Hit@3")
    ('nDCG@10', 'P@5', 'nDCG@10', 'Success@3')
    """
    names = {name.lower(): name for name in MEASURES} | {name.lower(): ours for name, ours in ALIASES.items()}
    names |= {name.lower(): ours for ours, others in NAMES_ELSEWHERE.items() for name in others.split()}
    # trec_eval puts the cut-off after the name: P_10 in its output, P.10 in its options.
    parts = re.fullmatch(r"(?P<name>\w+?)[_.](?P<cutoff>\d+(?:\.\d+)?)", text)
    if parts and (ours := names.get(parts["name"].lower())):
        return f"{ours}@{parts['cutoff']}"
    name, *rest = re.split(r"(?=\W)", text, maxsplit=1)
    same = "".join([names.get(name.lower(), ""), *rest])
    return same if NOTATION.fullmatch(same) else None


def parse_measures(measures: str | Iterable[str | Measure], *, rel: int | None = None) -> tuple[Measure, ...]:
    """Read measures separated by spaces or commas, or a list of them, without duplicates.

    >>> parse_measures("RR@10 nDCG@10, AP(rel=2)")
    (RR@10, nDCG@10, AP(rel=2))
    """
    if isinstance(measures, str):
        # Spaces and commas within parentheses belong to a measure's parameters.
        measures = filter(None, re.split(r"[\s,]+(?![^()]*\))", measures))
    parsed = [item if isinstance(item, Measure) else parse_measure(item, rel=rel) for item in measures]
    if not parsed:
        raise RankwellError("no measure is named; expected for example 'RR@10 nDCG@10'")
    return tuple(dict.fromkeys(parsed))
