"""Classifies texts or pairs of texts with a trained encoder: query types, natural language inference.

    single   [CLS] A [SEP]                one text
    pair     [CLS] A [SEP] B [SEP]        two texts, which share the room if both are long

These are the inputs of transformers' ``BertForSequenceClassification``, so a checkpoint scores the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import MissingExtraError
from rankwell.core.progress import track
from rankwell.inputs.batching import Sequences
from rankwell.inputs.reader import Reader
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.rank.engines.engine import Engine

TEXTS_AT_A_TIME = 8192


def lay_out_texts(reader: Reader, texts: Sequence[str], others: Sequence[str] | None = None) -> Sequences:
    """Lay out texts as sequences, or pairs of texts with the template ``pair``."""
    if others is None:
        return reader.lay_out({"query": reader.encode(texts)}).sequences
    reader = replace(reader, template=replace(reader.template, name="pair"))
    return reader.lay_out({"query": reader.encode(texts), "document": reader.encode(others)}).sequences


class Classifier:
    """A classifier ready to use.

    >>> classifier = Classifier.from_pretrained("types-model")                     # doctest: +SKIP
    >>> labels, probabilities = classifier.predict(["who wrote emma"])             # doctest: +SKIP
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        *,
        max_length: int = 512,
        segments: int = 2,
    ):
        self.engine = engine
        self.labels = tuple(labels)
        self.reader = Reader.of_texts(tokenizer, max_length, segments=segments)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, max_length: int | None = None, engine: Mapping[str, Any] | None = None
    ) -> Classifier:
        """Load a classifier's folder, rankwell's or transformers', with the labels that its ``config.json`` names.

        ``engine`` holds options of :class:`~rankwell.rank.engines.torch_engine.TorchEngine` (device, dtype, budget).
        """
        if find_spec("torch") is None:
            raise MissingExtraError("torch", "models", "classifying with a model")
        from rankwell.models.checkpoints.config import check_length
        from rankwell.models.checkpoints.heads import load_classifier
        from rankwell.rank.engines.torch_engine import TorchEngine

        loaded = load_classifier(folder)
        config = loaded.model.encoder.config
        limit = min(config.max_position_embeddings, loaded.tokenizer.max_length or config.max_position_embeddings)
        check_length(folder, max_length or limit, config)
        return cls(
            TorchEngine(loaded.model, "full", **(engine or {})),
            loaded.tokenizer,
            loaded.labels,
            max_length=max_length or limit,
            segments=config.type_vocab_size,
        )

    def logits(self, texts: Sequence[str] | Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """The logits (texts, classes) of texts, or of pairs of texts."""
        parts = [np.zeros((0, len(self.labels)), np.float32)]
        for begin in track(range(0, len(texts), TEXTS_AT_A_TIME), "classifying", unit="groups of texts"):
            first, second = _columns(texts[begin : begin + TEXTS_AT_A_TIME])
            parts.append(self.engine.logits(lay_out_texts(self.reader, first, second)))
        return np.concatenate(parts)

    def predict(self, texts: Sequence[str] | Sequence[tuple[str, str]]) -> tuple[list[str], NDArray[np.float32]]:
        """The likeliest label of each text, and the probabilities (texts, classes) in the order of ``labels``."""
        logits = self.logits(texts).astype(np.float64)
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = (raised / raised.sum(axis=1, keepdims=True)).astype(np.float32)
        return [self.labels[number] for number in logits.argmax(axis=1)], probabilities


def _columns(texts: Sequence[str] | Sequence[tuple[str, str]]) -> tuple[list[str], list[str] | None]:
    """The texts, and the second texts if they are pairs."""
    if isinstance(texts[0], str):
        return cast("list[str]", list(texts)), None
    pairs = cast("Sequence[tuple[str, str]]", texts)
    return [first for first, _ in pairs], [second for _, second in pairs]
