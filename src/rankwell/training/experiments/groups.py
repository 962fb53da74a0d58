"""Groups of queries in which an experiment's variants are compared apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rankwell.core.errors import RankwellError
from rankwell.corpus.datasets import Dataset
from rankwell.corpus.records import Query
from rankwell.evaluation.breakdowns import Groups, length_groups, type_groups
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.names import find_model
from rankwell.training.data.prepare import Collection, Split, find_types
from rankwell.training.recipe import Recipe

GroupKind = Literal["split words", "length", "type"]


def query_groups(
    kind: GroupKind, recipe: Recipe, collection: Collection, split: Split, pool: Path, device: str | None = None
) -> Groups:
    """The groups of a split's queries: with and without a split word, by number of words, or by type."""
    if kind == "length":
        return length_groups(split.queries)
    if kind == "type":
        return type_groups(_types(recipe, collection.dataset, split, pool, device))
    return split_word_groups(split.queries, Tokenizer.open(find_model(recipe.model.start)))


def split_word_groups(queries: Sequence[Query], tokenizer: Tokenizer) -> Groups:
    """Queries with a word that the tokenizer cuts into several pieces, and those without."""
    pieces = tokenizer.encode([query.text for query in queries])
    spans = zip(pieces.begins.tolist(), pieces.ends.tolist(), strict=True)
    cut = [bool(pieces.continues[begin:end].any()) for begin, end in spans]
    having = frozenset(query.qid for query, has in zip(queries, cut, strict=True) if has)
    return {"with a split word": having, "without": frozenset(query.qid for query in queries) - having}


def _types(recipe: Recipe, dataset: Dataset, split: Split, pool: Path, device: str | None) -> dict[str, str]:
    """The recipe's types, even where its template has no place for them."""
    source = "auto" if recipe.data.types == "none" else recipe.data.types
    types = find_types(source, dataset, split.name, split.queries, pool, device)
    if not types:
        raise RankwellError(f"{dataset.name}: no query of the split {split.name!r} has a type to group by")
    return types
