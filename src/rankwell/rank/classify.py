"""Classifying texts or pairs of texts with a trained encoder: query types, natural language inference.

    single   [CLS] A [SEP]                one text
    pair     [CLS] A [SEP] B [SEP]        two, which share the room where both are long

These are the inputs of transformers' ``BertForSequenceClassification``, so a checkpoint scores the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.core.progress import track
from rankwell.inputs.batching import Sequences
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.templates import Template, TruncationReport, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.rank.engines.engine import Engine

TEXTS_AT_A_TIME = 8192


def lay_out_texts(
    tokenizer: Tokenizer,
    texts: Pieces,
    others: Pieces | None = None,
    *,
    max_length: int = 512,
    segments: int = 2,
    report: TruncationReport | None = None,
) -> Sequences:
    """Texts, or pairs of texts, as sequences of at most ``max_length`` tokens.

    ``segments`` is how many segment ids the model knows; ``report`` counts what is cut.
    """
    # The cap of a query means nothing here; 1 is within any length.
    template = Template("single" if others is None else "pair", max_length=max_length, max_query=1)
    fields = {"query": texts} if others is None else {"query": texts, "document": others}
    return lay_out_pairs(template, tokenizer.special, fields, report, segments=segments)


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
        self.tokenizer = tokenizer
        self.labels = tuple(labels)
        self.max_length = max_length
        self.truncation = TruncationReport()
        self._segments = segments

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, max_length: int | None = None, engine: Mapping[str, Any] | None = None
    ) -> Classifier:
        """Load a classifier's folder, ours or transformers' own, with the labels its ``config.json`` names.

        ``engine`` holds options of :class:`~rankwell.rank.engines.torch_engine.TorchEngine` (device, dtype, budget).
        """
        if find_spec("torch") is None:
            raise MissingExtraError("torch", "models", "classifying with a model")
        from rankwell.models.heads import load_classifier
        from rankwell.rank.engines.torch_engine import TorchEngine

        loaded = load_classifier(folder)
        config = loaded.model.encoder.config
        limit = min(config.max_position_embeddings, loaded.tokenizer.max_length or config.max_position_embeddings)
        if max_length is not None and max_length > config.max_position_embeddings:
            limit = config.max_position_embeddings
            raise RankwellError(f"{folder}: a length of {max_length}, but the encoder has {limit} positions")
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
            sequences = lay_out_texts(
                self.tokenizer,
                self.tokenizer.encode(first),
                None if second is None else self.tokenizer.encode(second),
                max_length=self.max_length,
                segments=self._segments,
                report=self.truncation,
            )
            parts.append(self.engine.logits(sequences))
        return np.concatenate(parts)

    def predict(self, texts: Sequence[str] | Sequence[tuple[str, str]]) -> tuple[list[str], NDArray[np.float32]]:
        """The likeliest label of each text, and the probabilities (texts, classes) in the order of ``labels``."""
        logits = self.logits(texts).astype(np.float64)
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = (raised / raised.sum(axis=1, keepdims=True)).astype(np.float32)
        return [self.labels[number] for number in logits.argmax(axis=1)], probabilities


def _columns(texts: Sequence[str] | Sequence[tuple[str, str]]) -> tuple[list[str], list[str] | None]:
    """The texts, and the second ones where they are pairs."""
    if isinstance(texts[0], str):
        return cast("list[str]", list(texts)), None
    pairs = cast("Sequence[tuple[str, str]]", texts)
    return [first for first, _ in pairs], [second for _, second in pairs]
