"""Late-interaction checkpoints: encoders that were trained to compare texts word by word, as ColBERT is.

Three forms of folders are read: Stanford's with ``artifact.metadata``, PyLate's, and the multi-vector encoders of
sentence-transformers.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rankwell.core.errors import InputError
from rankwell.core.manifest import read_object
from rankwell.inputs.batching import Sequences
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.describe import Checkpoint
from rankwell.models.vector_layers import Dense, read_dense

QUERY_LENGTH, DOCUMENT_LENGTH = 32, 180
"""PyLate's lengths of checkpoints that record none."""
MODULES = ("Transformer", "Dense", "MultiVectorMask", "Normalize")


@dataclass(frozen=True, eq=False)
class LateInteraction:
    """How texts are read whose words are compared, and what becomes of the encoder's states.

    ===================  ===============================================================================================
    ``layers``           map the states to word vectors
    ``prompts``          the marks of queries and of documents, which follow ``[CLS]``, as names and as pieces
    ``query_length``     maximum tokens of a query; shorter ones are filled up with the token ``expansion``, if there is
                         one. Only if the model ``attends`` to it, other tokens do
    ``document_length``  maximum tokens of a document
    ``skipped``          tokens of documents that are not compared, such as punctuation marks
    ===================  ===============================================================================================
    """

    layers: tuple[Dense, ...]
    prompts: tuple[str, str]
    marks: tuple[Pieces, Pieces]
    query_length: int
    document_length: int
    expansion: int | None
    attends: bool
    skipped: NDArray[np.int32]

    def expand(self, queries: Sequences) -> Sequences:
        """Fill up queries to their common length."""
        if self.expansion is None:
            return queries
        rows, size = len(queries), self.query_length
        real = np.arange(size) < queries.lengths()[:, None]
        tokens, words = (
            np.full((rows, size), self.expansion, np.int32),
            np.tile(np.arange(size, dtype=np.int32), (rows, 1)),
        )
        tokens[real], words[real] = queries.tokens, queries.words
        places = np.tile(np.arange(size, dtype=np.int32), rows)
        segments, last = np.zeros(rows * size, np.int8), np.ones(rows * size, np.bool_)
        return Sequences(tokens.ravel(), segments, places, words.ravel(), last, size * np.arange(1, rows + 1))


def read_late_interaction(
    checkpoint: Checkpoint, tensors: Mapping[str, Tensor], tokenizer: Tokenizer
) -> LateInteraction | None:
    """What a folder records; None if its model was not trained for late interaction."""
    if not checkpoint.compares_words:
        return None
    folder = checkpoint.folder
    if "HF_ColBERT" in checkpoint.architectures:
        if "linear.weight" not in tensors:
            raise InputError(folder, None, "the weights lack linear.weight")
        layers: tuple[Dense, ...] = (Dense(tensors["linear.weight"].float()),)
        settings = _stanford_settings(checkpoint)
    else:
        other = next((kind for kind, _ in checkpoint.modules if kind not in MODULES), None)
        if other is not None:
            problem = f"word vectors pass a module {other}; expected {', '.join(MODULES)} and no other"
            raise InputError(folder / "modules.json", None, problem)
        places = [place for kind, place in checkpoint.modules if kind == "Dense"]
        layers = tuple(read_dense(folder / place, "token_embeddings") for place in places)
        masked = dict(checkpoint.modules).get("MultiVectorMask")
        settings = (
            checkpoint.sentence_settings if masked is None else _multi_vector_settings(checkpoint, masked, tokenizer)
        )
    prompts = tuple(
        str(settings.get(f"{kind}_prefix", mark) or "") for kind, mark in (("query", "[Q] "), ("document", "[D] "))
    )
    expands, token = settings.get("do_query_expansion") is not False, settings.get("expansion_token") or "[MASK]"
    if expands and (expansion := tokenizer.token_id(token)) < 0:
        raise InputError(folder, None, f"queries are filled up with {token}, which the vocabulary lacks")
    skipped = settings.get("skiplist_words")
    ids = [tokenizer.token_id(word) for word in (string.punctuation if skipped is None else skipped)]
    return LateInteraction(
        layers,
        (prompts[0], prompts[1]),
        (_mark(prompts[0], tokenizer), _mark(prompts[1], tokenizer)),
        int(settings.get("query_length") or QUERY_LENGTH),
        int(settings.get("document_length") or DOCUMENT_LENGTH),
        expansion if expands else None,
        bool(settings.get("attend_to_expansion_tokens")),
        np.array(sorted(number for number in ids if number >= 0), np.int32),
    )


def _stanford_settings(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """PyLate's names for what ``artifact.metadata`` records."""
    path = checkpoint.folder / "artifact.metadata"
    recorded = read_object(path) if path.is_file() else {}
    return {
        "query_prefix": recorded.get("query_token_id") or "[unused0]",
        "document_prefix": recorded.get("doc_token_id") or "[unused1]",
        "query_length": recorded.get("query_maxlen"),
        "document_length": recorded.get("doc_maxlen"),
        "attend_to_expansion_tokens": recorded.get("attend_to_mask_tokens"),
        "skiplist_words": None if recorded.get("mask_punctuation", True) else (),
    }


def _multi_vector_settings(checkpoint: Checkpoint, masked: str, tokenizer: Tokenizer) -> Mapping[str, Any]:
    """PyLate's names for what sentence-transformers records."""
    path = checkpoint.folder / "sentence_bert_config.json"
    recorded, mask = read_object(path), read_object(checkpoint.folder / masked / "config.json")
    expansion, prompts = recorded.get("query_expansion"), checkpoint.sentence_settings.get("prompts") or {}
    if (expansion or {}).get("strategy", "fixed") != "fixed" or mask.get("keep_only_token_ids"):
        raise InputError(path, None, "queries are filled up to other than a fixed length, or only some tokens are kept")
    longest = recorded.get("max_seq_length") or tokenizer.max_length
    return {
        "query_prefix": prompts.get("query"),
        "document_prefix": prompts.get("document"),
        "query_length": (expansion or {}).get("length") or recorded.get("query_length") or longest,
        "document_length": recorded.get("document_length") or longest,
        "do_query_expansion": expansion is not None,
        "expansion_token": (expansion or {}).get("token"),
        "attend_to_expansion_tokens": (expansion or {}).get("attend"),
        "skiplist_words": mask.get("skiplist_words") or (),
    }


def _mark(prompt: str, tokenizer: Tokenizer) -> Pieces:
    """A mark as pieces: a token of the vocabulary, or else what the tokenizer makes of it."""
    known = [number for name in (prompt, prompt.strip()) if prompt and (number := tokenizer.token_id(name)) >= 0]
    ids = np.array(known[:1], np.int32) if known else tokenizer.literal(prompt)
    return Pieces.plain(ids, np.zeros(len(ids), np.bool_), np.array([len(ids)], np.int64))
