"""Filters: which documents a search may return, by their metadata.

    year >= 2015 and lang = 'de'
    lang in ('de', 'fr') and not (tags = 'draft' or price > 9.5)
    {"year": {"$gte": 2015}, "$or": [{"lang": "de"}, {"lang": "fr"}]}

A comparison holds for a document if one of its values of the field has the type of the wanted value and compares so.
Thus ``tags = 'draft'`` also looks into lists, and holds for no document without tags; ``!=`` and ``not in`` hold for
all the others. Dates are texts such as ``'2024-05-01'``. A field whose name has spaces, or is a word of this language,
is written in backquotes. The dict is that of MongoDB, which Chroma and LangChain also use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np

from rankwell.core.errors import RankwellError, excerpt
from rankwell.corpus.metadata import Column, Ids, Mask, encode_value

DEEPEST, MOST, LONGEST_NUMBER = 50, 1000, 308
"""How deep filters may be nested, how many comparisons they may have, each of which looks at all documents, and how
many characters a whole number may have."""
_HINTS = {
    "-": "; put dates and texts in quotes",
    "&": "; write and",
    "|": "; write or",
    "between": "; write >= and <=",
    "like": "; a filter compares whole values",
}
"""What to write instead, by the beginning of what is found."""
_TOKEN = re.compile(
    r"""\s*+(?:(?P<number>-?(?:\d++\.?+\d*+|\.\d++)(?:[eE][+-]?\d++)?+(?![\w.]))
    |(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<quoted>`[^`]+`)
    |(?P<name>[^\W\d][\w.-]*)
    |(?P<mark><=|>=|!=|<>|==|[=<>(),])
    |(?P<end>\Z)|(?P<other>.))""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = ("and", "or", "not", "in", "true", "false")
_MARKS, _SAME = ("=", "==", "!=", "<>", "<", "<=", ">", ">="), {"==": "=", "<>": "!="}
_DOLLARS = {"$eq": "=", "$ne": "!=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<=", "$in": "in", "$nin": "not in"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Filter:
    """A comparison of a field with values, as columns hold them, or filters combined by and, or, not."""

    operator: Literal["=", "<", "<=", ">", ">=", "and", "or", "not"]
    field: str = ""
    value: float | str = 0.0
    parts: tuple[Filter, ...] = ()

    def comparisons(self) -> Iterator[Filter]:
        """The comparisons of a field that it consists of."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.comparisons()

    def fields(self) -> Iterator[str]:
        """The fields it compares."""
        return (part.field for part in self.comparisons())

    def select(self, columns: Mapping[str, Column | Ids], documents: int) -> Mask:
        """Which of the documents it selects."""
        if self.parts:
            masks = [part.select(columns, documents) for part in self.parts]
            if self.operator == "not":
                return ~masks[0]
            join: Callable[..., Mask] = np.logical_and.reduce if self.operator == "and" else np.logical_or.reduce
            return join(masks)
        if self.field not in columns:
            return np.zeros(documents, bool)
        return columns[self.field].match(self.operator, self.value)


FilterSource = str | Mapping[str, Any] | Filter
"""A filter, its text, or a dict."""


def parse_filter(source: FilterSource | None) -> Filter | None:
    """A filter from its text or a dict; None for None. Errors say where it is wrong.

    >>> parse_filter("year >= 2015").field
    'year'
    """
    if source is None or isinstance(source, Filter):
        return source
    if not isinstance(source, str | Mapping):
        raise RankwellError(f"filter: expected a text or a dict, found {excerpt(repr(source))}")
    parsed = _Parser(source).parse() if isinstance(source, str) else _from_dict(source, "filter", 0)
    if (count := sum(1 for _ in parsed.fields())) > MOST:
        raise RankwellError(f"filter: {count:,} comparisons; the limit is {MOST:,}")
    return parsed


def _join(operator: Literal["and", "or"], parts: Sequence[Filter]) -> Filter:
    return parts[0] if len(parts) == 1 else Filter(operator, parts=tuple(parts))


def _compare(field: str, operator: str, values: Sequence[float | str]) -> Filter:
    if operator in ("!=", "not in"):
        return Filter("not", parts=(_compare(field, "=", values),))
    equal = "=" if operator == "in" else operator
    return _join("or", [Filter(equal, field, value) for value in values])  # type: ignore[arg-type]


class _Parser:
    """Reads a filter from left to right, one token ahead."""

    def __init__(self, text: str):
        self._text, self._place, self._depth, self._token = text, 0, 0, ""
        self._next()

    def parse(self) -> Filter:
        found = self._either()
        if self._kind != "end":
            self._fail("and, or, or the end")
        return found

    def _next(self) -> str:
        """Move on; returns the token that was current."""
        before, match = self._token, _TOKEN.match(self._text, self._place)
        assert match is not None  # of any character
        self._kind = match.lastgroup or ""
        self._token, self._begin, self._place = match[self._kind], match.start(self._kind), match.end()
        if self._kind == "name" and self._token.lower() in _WORDS:
            self._kind, self._token = "word", self._token.lower()
        return before

    def _fail(self, expected: str) -> NoReturn:
        found = excerpt(self._token) if self._token else "the end"
        hint = next((hint for begin, hint in _HINTS.items() if self._token.startswith(begin)), "")
        raise RankwellError(f"filter, character {self._begin + 1}: expected {expected}, found {found}{hint}")

    def _take(self, kind: str, *tokens: str, expected: str = "") -> str | None:
        """The current token, and move on, if it is one of these; else None, or an error if one is ``expected``."""
        if self._kind == kind and self._token in tokens:
            return self._next()
        return self._fail(expected) if expected else None

    def _several(self, read: Callable[[], T], kind: str, between: str) -> list[T]:
        parts = [read()]
        while self._take(kind, between):
            parts.append(read())
        return parts

    def _either(self) -> Filter:
        return _join("or", self._several(self._both, "word", "or"))

    def _both(self) -> Filter:
        return _join("and", self._several(self._one, "word", "and"))

    def _one(self) -> Filter:
        self._depth += 1
        if self._depth > DEEPEST:
            raise RankwellError(f"filter: nested more than {DEEPEST} deep")
        if self._take("word", "not"):
            found = Filter("not", parts=(self._one(),))
        elif self._take("mark", "("):
            found = self._either()
            self._take("mark", ")", expected="and, or, or )")
        else:
            found = self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> Filter:
        if self._kind not in ("name", "quoted"):
            self._fail("a field")
        field = self._next().strip("`")
        negated = self._take("word", "not")
        if self._take("word", "in"):
            self._take("mark", "(", expected="( and a list of values")
            values = self._several(self._value, "mark", ",")
            self._take("mark", ")", expected=", or )")
            return _compare(field, "not in" if negated else "in", values)
        if negated:
            self._fail("in")
        operator = self._take("mark", *_MARKS, expected="a comparison such as = or >=") or ""
        return _compare(field, _SAME.get(operator, operator), [self._value()])

    def _value(self) -> float | str:
        kind, token = self._kind, self._token
        value: Any = None
        if kind == "number":
            # Python refuses to read a whole number of thousands of digits; as a float it is too large for a filter.
            value = float(token) if len(token) > LONGEST_NUMBER or re.search(r"[.eE]", token) else int(token)
        elif kind == "text":
            value = re.sub(rf"\\(.)|{token[0]}{token[0]}", lambda found: found[1] or token[0], token[1:-1])
        elif kind == "word" and token in ("true", "false"):
            value = token == "true"
        encoded = f"s{value}" if value == "" else encode_value(value)
        if encoded is None:
            self._fail("a number, true, false, or a text in quotes, as in 'en'")
        self._next()
        return encoded


def _from_dict(source: Any, place: str, depth: int) -> Filter:
    def fail(where: str, expected: str, found: Any) -> NoReturn:
        raise RankwellError(f"{where}: expected {expected}, found {excerpt(repr(found))}")

    if not isinstance(source, Mapping) or not source or depth > DEEPEST:
        fail(place, "a dict of fields and values", source)
    parts = []
    for name, value in source.items():
        inner = f"{place}.{name}"
        if name in ("$and", "$or"):
            if not _is_list(value):
                fail(inner, "a list of filters", value)
            some = tuple(_from_dict(item, f"{inner}.{n}", depth + 1) for n, item in enumerate(value))
            parts.append(Filter("and" if name == "$and" else "or", parts=some))
        elif name == "$not":
            parts.append(Filter("not", parts=(_from_dict(value, inner, depth + 1),)))
        elif not isinstance(name, str) or name.startswith("$"):
            raise RankwellError(f"{inner}: expected a field, or $and, $or, $not")
        else:
            for dollar, operand in (value if isinstance(value, Mapping) else {"$eq": value}).items():
                if dollar not in _DOLLARS:
                    raise RankwellError(f"{inner}: expected one of {', '.join(_DOLLARS)}, found {excerpt(str(dollar))}")
                several = dollar in ("$in", "$nin")
                if several and not _is_list(operand):
                    fail(f"{inner}.{dollar}", "a list of values", operand)
                values = [encode_value(item) for item in (operand if several else [operand])]
                if len(known := [value for value in values if value is not None]) < len(values):
                    fail(f"{inner}.{dollar}", "a number, a text, true or false", operand)
                parts.append(_compare(name, _DOLLARS[dollar], known))
    return _join("and", parts)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value)
