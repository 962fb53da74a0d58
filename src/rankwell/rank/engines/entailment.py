"""A classifier of natural language inference as a ranker: how surely does a document say what the query says?

    [CLS] document [SEP] query [SEP]      premise, hypothesis

The document is the premise and the query the hypothesis. Entailment has a direction: what is long and says much may
entail what is short, as the pairs such models learn from show, and hardly ever the other way round. A document that
answers a query says what the query is about, and more. The score of a pair is log p(entailment).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rankwell.core.errors import InputError
from rankwell.core.jsonfile import read_object
from rankwell.inputs.batching import Sequences
from rankwell.models.checkpoints.config import RankerConfig, TemplateConfig, read_ranker_config
from rankwell.rank.engines.engine import Loaded, Logits
from rankwell.rank.engines.torch_engine import TorchEngine

ENTAILMENT = "entailment"


class EntailmentEngine:
    """The two logits of a ranker from a classifier's: all other classes together, and entailment."""

    def __init__(self, engine: TorchEngine, column: int):
        self.engine = engine
        self.column = column

    @property
    def device(self) -> Any:
        """Where the model is."""
        return self.engine.device

    def logits(self, sequences: Sequences) -> Logits:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        return self.submit(sequences)()

    def submit(self, sequences: Sequences) -> Callable[[], Logits]:
        """See :meth:`~rankwell.rank.engines.torch_engine.TorchEngine.submit`."""
        finish = self.engine.submit(sequences)
        return lambda: against_the_rest(finish(), self.column)


def against_the_rest(logits: Logits, column: int) -> Logits:
    """Two logits (N, 2) whose softmax is that of one class among all (N, classes).

    >>> against_the_rest(np.log(np.array([[0.25, 0.25, 0.5]], np.float32)), 2).tolist()
    [[-0.6931471824645996, -0.6931471824645996]]
    """
    others = np.logaddexp.reduce(np.delete(logits.astype(np.float64), column, axis=1), axis=1)
    return np.stack([others, logits[:, column].astype(np.float64)], axis=1).astype(np.float32)


def is_entailment(folder: Path) -> bool:
    """Whether a checkpoint's classes, as its ``config.json`` names them, have one called entailment."""
    try:
        return _column(folder) is not None
    except (OSError, InputError):
        return False  # whoever loads the folder says what is wrong with it


def load_entailment(folder: Path, changes: Mapping[str, Any], options: Mapping[str, Any]) -> Loaded:
    """A folder that :func:`is_entailment`, as ``torch_loading.load`` loads a ranker's."""
    from rankwell.models.heads import load_classifier

    column = _column(folder)
    assert column is not None
    found = load_classifier(folder)
    encoder = found.model.encoder.config
    length = min(TemplateConfig().max_length, encoder.max_position_embeddings)
    if found.model.head.out_features <= column:
        raise InputError(folder, None, f"{found.model.head.out_features} outputs, none of them for {ENTAILMENT}")
    # The length a classifier was trained with is that of its sentences, not that of windows.
    own = read_ranker_config(folder) or RankerConfig(
        template=TemplateConfig(name="nli", max_length=length, max_query=min(64, length - 4))
    )
    config = own.changed(changes)
    if config.apart or config.similarity or config.attention_layers is not None:
        raise InputError(folder, None, "a judge of entailment reads both texts together, under one rule in all layers")
    if config.template.max_length > encoder.max_position_embeddings:
        problem = f"a length of {config.template.max_length}, but the encoder has {encoder.max_position_embeddings}"
        raise InputError(folder, None, f"{problem} positions")
    engine = TorchEngine(found.model, config.attention, **options)
    return Loaded(EntailmentEngine(engine, column), found.tokenizer, config, encoder.type_vocab_size)


def _column(folder: Path) -> int | None:
    """The number of the class entailment; None where there is none, or no other besides it."""
    named = read_object(folder / "config.json").get("id2label")
    if not isinstance(named, dict) or len(named) < 2:
        return None
    labels = {str(label).lower(): number for number, label in named.items()}
    return int(labels[ENTAILMENT]) if ENTAILMENT in labels else None
