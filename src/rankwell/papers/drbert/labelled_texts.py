"""Labelled texts to train a classifier: a label and a text, or two, in either order, with tabs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import InputError, excerpt
from rankwell.corpus.formats.lines import FilePath, open_lines
from rankwell.corpus.query_types import COARSE_TYPES, QUERY_TYPES


@dataclass(frozen=True, eq=False)
class LabelledTexts:
    """Texts, the second texts if they are pairs, and the class of each as a number in ``names``."""

    texts: list[str]
    others: list[str] | None
    classes: NDArray[np.int64]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)


def read_labelled(path: FilePath, names: Sequence[str] | None = None) -> LabelledTexts:
    """Read labelled texts. ``names`` are the classes of a model that exists already.

    The coarse:fine labels of the question classification data (``NUM:dist``) become the five query types.
    """
    rows = _read_rows(path)
    column = 0 if len({cells[0] for _, cells in rows}) <= len({cells[-1] for _, cells in rows}) else -1
    labels = [cells[column] for _, cells in rows]
    texts = [cells[1:] if column == 0 else cells[:-1] for _, cells in rows]
    for (number, _), label, row_texts in zip(rows, labels, texts, strict=True):
        if not label.strip():
            raise InputError(path, number, "the label is empty")
        if not all(text.strip() for text in row_texts):
            raise InputError(path, number, f"the text of the label {excerpt(label)} is empty")
    if all(label.partition(":")[0] in COARSE_TYPES for label in labels):
        labels = [COARSE_TYPES[label.partition(":")[0]] for label in labels]
    known = _class_names(path, labels) if names is None else tuple(names)
    place = {name: number for number, name in enumerate(known)}
    for (number, _), label in zip(rows, labels, strict=True):
        if label not in place:
            raise InputError(path, number, f"the label {excerpt(label)} is not one of the classes {', '.join(known)}")
    classes = np.array([place[label] for label in labels], np.int64)
    others = [cells[1] for cells in texts] if len(texts[0]) == 2 else None
    return LabelledTexts([cells[0] for cells in texts], others, classes, known)


def _read_rows(path: FilePath) -> list[tuple[int, list[str]]]:
    first, lines = open_lines(path, "labelled texts")
    columns = first.count("\t") + 1
    if columns not in (2, 3):
        expected = "a label and a text, or a label and two texts, with tabs between them"
        raise InputError(
            path, None, f"found {columns} column{'s' * (columns != 1)} on the first line, expected {expected}"
        )
    rows = []
    for number, line in lines:
        if not line:
            continue
        cells = line.split("\t")
        if len(cells) != columns:
            raise InputError(
                path, number, f"found {len(cells)} columns, expected {columns} as on the first line: {excerpt(line)}"
            )
        rows.append((number, cells))
    return rows


def _class_names(path: FilePath, labels: Sequence[str]) -> tuple[str, ...]:
    """The classes in a fixed order: the five query types in their own, others alphabetically."""
    distinct = set(labels)
    if len(distinct) < 2:
        raise InputError(path, None, f"every text has the label {excerpt(labels[0])}, expected two labels or more")
    if distinct <= set(QUERY_TYPES):
        return QUERY_TYPES
    if len(distinct) > 2 and len(distinct) > len(labels) / 2:
        raise InputError(path, None, f"{len(distinct):,} labels for {len(labels):,} texts: no column looks like labels")
    return tuple(sorted(distinct))
