"""What rankers' ``predict`` and ``rank`` take and return: pairs, documents of any kind, and CrossEncoder's keywords."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from rankwell.core.errors import RankwellError, excerpt
from rankwell.core.types import Scores
from rankwell.corpus.sources import resolve_documents

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
        found = excerpt(repr(model))
        raise RankwellError(f'the model is {found}, expected a name or folder, as in Ranker("my-model")')
    return model


def check_options(options: Mapping[str, Any]) -> None:
    """Raise for a keyword that is none of :class:`PredictOptions`."""
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
        found = excerpt(repr(documents))
        raise RankwellError(f"the documents are {found}, expected a list of texts or {{id: text}}, as in {example}")
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
