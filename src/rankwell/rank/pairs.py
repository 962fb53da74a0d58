"""Pairs to score as rows of distinct texts, and the runs they come from and become."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from rankwell.core.arrays import Rows, Scores
from rankwell.core.errors import RankwellError, excerpt
from rankwell.corpus.records import Ranking, Run
from rankwell.corpus.sources import resolve_documents
from rankwell.rank.cache import Keys, join_hashes, text_hashes
from rankwell.rank.texts import Documents

PAIRS_AT_A_TIME = 4096


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs as rows of distinct texts: pair ``i`` has the query ``queries[query_of[i]]``, the type
    ``types[type_of[i]]`` ("" for none) and the document in row ``document_of[i]`` of ``documents``.

    Pairs of a run also have its queries' document ids, in the order of the pairs.
    """

    queries: Sequence[str]
    query_of: Rows
    types: Sequence[str]
    type_of: Rows
    documents: Documents
    document_of: Rows
    docids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.query_of)

    def take(self, rows: Rows) -> Pairs:
        """Some of the pairs."""
        return replace(
            self, query_of=self.query_of[rows], type_of=self.type_of[rows], document_of=self.document_of[rows]
        )

    def keys(self, scope: str) -> Keys:
        """The pairs' keys in a score cache."""
        return join_hashes(
            text_hashes([scope], "model"),
            text_hashes(self.queries, "query")[self.query_of],
            text_hashes(self.types, "type")[self.type_of],
            text_hashes(self.documents.texts(), "document")[self.document_of],
        )


def split_rankings(docids: Mapping[str, tuple[str, ...]], scores: Scores) -> dict[str, Ranking]:
    """The rankings of queries from the scores of all their documents, one query after the other."""
    parts = np.split(scores, np.cumsum([len(names) for names in docids.values()]))[:-1]
    return {qid: Ranking.of(names, part) for (qid, names), part in zip(docids.items(), parts, strict=True)}


def groups_of_queries(run: Run, depth: int, most: int | None = None) -> list[list[str]]:
    """Consecutive queries with at most ``most`` candidates together, to bound memory."""
    groups: list[list[str]] = []
    room = 0
    for qid, ranking in run.items():
        size = min(depth, len(ranking))
        if not groups or size > room:
            groups.append([])
            room = most or 4 * PAIRS_AT_A_TIME
        groups[-1].append(qid)
        room -= size
    return groups


# What rankers' ``predict`` and ``rank`` take and return


Pair = tuple[str, str]


class PredictOptions(TypedDict, total=False):
    """CrossEncoder's keywords. Scores do not depend on ``batch_size``: rankwell sizes its batches by tokens."""

    batch_size: int
    show_progress_bar: bool | None
    activation_fn: Callable[[Any], Any] | None
    apply_softmax: bool
    convert_to_numpy: bool
    convert_to_tensor: bool


def checked_name(model: Any) -> str | Path:
    """The name or folder of a model. Raises for anything else."""
    if not isinstance(model, str | Path):
        raise RankwellError(f'the model is {excerpt(repr(model))}, expected a name or folder, as in Ranker("my-model")')
    return model


def check_keywords(options: Mapping[str, Any]) -> None:
    """Raise for a keyword that :class:`PredictOptions` does not have."""
    known = PredictOptions.__annotations__
    wrong = next((name for name in options if name not in known), None)
    if wrong is not None:
        raise RankwellError(f"no keyword is called {wrong!r} (known: activation, types, {', '.join(known)})")


def convert(scores: Any, options: PredictOptions) -> Any:
    """Scores as the caller wants them: through an ``activation_fn`` of torch, as an array or a tensor."""
    activate, as_tensor = options.get("activation_fn"), options.get("convert_to_tensor", False)
    if activate is None and not as_tensor:
        return scores
    import torch

    tensor = torch.from_numpy(np.atleast_1d(np.asarray(scores)))
    tensor = tensor if activate is None else activate(tensor)
    if np.ndim(scores) == 0:
        tensor = tensor[0]
    return tensor if as_tensor else tensor.numpy()[()]


def is_pair(value: Any) -> bool:
    """Whether a value is a (query, document) pair."""
    listed = isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str)
    return listed and len(value) == 2 and all(isinstance(text, str) for text in value)


def checked_pairs(pairs: Any) -> list[Pair]:
    """The pairs as a list. Raises, naming the first one that is wrong."""
    listed: list[Pair] = list(pairs) if isinstance(pairs, Iterable) else [pairs]
    for place, pair in enumerate(listed, 1):
        if not is_pair(pair):
            problem = f"pair {place} is {excerpt(repr(pair))}"
            raise RankwellError(f"{problem}; expected (query, document), two strings, or a list of such pairs")
    return listed


def documents_to_rank(query: Any, documents: Any, top_k: Any = None) -> tuple[Sequence[Any], list[str]]:
    """The ids and texts of documents of any kind.

    Texts in a list have their places as ids, as in CrossEncoder; a dict's keys and records' ids are ids themselves.
    """
    example = 'ranker.rank("how do bees keep warm", ["The cluster shivers.", "Tea."])'
    if not isinstance(query, str):
        raise RankwellError(f"the query is {excerpt(repr(query))}, expected a string, as in {example}")
    if isinstance(documents, str | bytes | os.PathLike) or not isinstance(documents, Iterable):
        given = excerpt(repr(documents))
        raise RankwellError(f"the documents are {given}, expected a list of texts or {{id: text}}, as in {example}")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int | np.integer) or top_k < 1):
        raise RankwellError(f"top_k is {top_k!r}, expected a whole number from 1, or None for all documents")
    keyed = isinstance(documents, Mapping)
    listed = documents if keyed or hasattr(documents, "columns") else list(documents)
    if not keyed and isinstance(listed, list) and all(isinstance(text, str) for text in listed):
        return range(len(listed)), listed
    records = list(resolve_documents(listed))
    ids = list(documents) if keyed else [record.docid for record in records]
    return ids, [record.contents for record in records]


def best_first(
    scores: Scores, ids: Sequence[Any], texts: Sequence[str] | None, top_k: int | None
) -> list[dict[str, Any]]:
    """The results of ``rank``: ``corpus_id`` and ``score``, and with ``texts`` also ``text``."""
    order = np.argsort(-scores, kind="stable")[:top_k].tolist()
    return [
        {"corpus_id": ids[i], "score": float(scores[i])} | ({} if texts is None else {"text": texts[i]}) for i in order
    ]
