"""A classifier of several classes as a ranker; by default one of natural language inference: does the document entail
the query?

    [CLS] document [SEP] query [SEP]      premise, hypothesis

The document is the premise and the query the hypothesis. Entailment has a direction: in the pairs such models learn
from, a long text may entail a short one, hardly ever the reverse, and a document that answers a query says what the
query is about and more. The score of a pair is log p(entailment).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rankwell.core.errors import InputError
from rankwell.inputs.batching import Sequences
from rankwell.inputs.templates import Template
from rankwell.models.checkpoints.config import RankerConfig, check_length, read_ranker_config
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.folders import load_classifier
from rankwell.models.devices import chosen_device, resolve
from rankwell.rank.engines.engine import CHECKPOINTS, TORCH_OPTIONS, Engine, LoadedModel, Logits
from rankwell.rank.engines.torch_engine import TorchEngine

ENTAILMENT = "entailment"


class EntailmentEngine(Engine):
    """The two logits of a ranker from a classifier's: all other classes together, and entailment.

    It cannot be explained: attention explains the score of one class, not that of a class against the others.
    """

    def __init__(self, classifier: Engine, column: int):
        self.classifier = classifier
        self.column = column

    def logits(self, sequences: Sequences) -> Logits:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        return self.submit(sequences)()

    def submit(self, sequences: Sequences) -> Callable[[], Logits]:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        finish = self.classifier.submit(sequences)
        return lambda: against_the_rest(finish(), self.column)

    @property
    def tokens_at_once(self) -> int:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        return self.classifier.tokens_at_once

    @property
    def device(self) -> str:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        return self.classifier.device

    @property
    def precision(self) -> str:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        return self.classifier.precision


def against_the_rest(logits: Logits, column: int) -> Logits:
    """Two logits (N, 2) whose softmax is that of one class among all (N, classes).

    >>> against_the_rest(np.log(np.array([[0.25, 0.25, 0.5]], np.float32)), 2).tolist()
    [[-0.6931471824645996, -0.6931471824645996]]
    """
    others = np.logaddexp.reduce(np.delete(logits.astype(np.float64), column, axis=1), axis=1)
    return np.stack([others, logits[:, column].astype(np.float64)], axis=1).astype(np.float32)


@CHECKPOINTS.register("classifier")
def load_entailment(folder: Path, changes: Mapping[str, Any], options: Mapping[str, Any]) -> LoadedModel:
    """Load a classifier as a ranker; its option ``label`` names the class that means relevant.

    One of entailment reads the document first; one whose class was named reads the query first.
    """
    label = options.get("label")
    column = describe(folder).relevance_column(label)
    assert column is not None
    classifier = load_classifier(folder, trust_remote_code=bool(options.get("trust_remote_code")))
    encoder = classifier.model.encoder.config
    length = min(Template().max_length, encoder.max_position_embeddings)
    outputs = classifier.model.outputs
    if outputs <= column:
        raise InputError(folder, None, f"{outputs} outputs, none of them for {ENTAILMENT}")
    # The length a classifier was trained with is that of its sentences, not that of windows.
    name = "nli" if (label or ENTAILMENT).lower() == ENTAILMENT else "mono"
    stated = read_ranker_config(folder) or RankerConfig(
        template=Template(name=name, max_length=length, max_query=min(64, length - 4))
    )
    config = stated.changed(changes)
    if config.apart or config.similarity or config.attention_layers is not None:
        raise InputError(folder, None, "a judge of entailment reads both texts together, under one rule in all layers")
    check_length(folder, config.template.max_length, encoder.max_position_embeddings)
    computing = {key: value for key, value in options.items() if key not in TORCH_OPTIONS}
    computing["dtype"] = resolve(computing.get("dtype"), "judge", chosen_device(computing.get("device")))
    engine: Engine = TorchEngine(classifier.model, config.attention, **computing)
    if outputs > 1:
        engine = EntailmentEngine(engine, column)
    return LoadedModel(engine, classifier.tokenizer, config, encoder.type_vocab_size)
