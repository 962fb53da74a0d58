"""Engines: from laid-out sequences to logits. Each backend is one; all must agree with the torch one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.inputs.batching import Sequences
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.names import find_model

Logits = NDArray[np.float32]


class Engine(Protocol):
    """What a :class:`~rankwell.rank.ranker.Ranker` needs of a backend."""

    def logits(self, sequences: Sequences) -> Logits:
        """The head's outputs ``(sequences, 1 or 2)`` in the order given; batching is the engine's business."""
        ...


def relevance(logits: Logits) -> NDArray[np.float32]:
    """One score a pair: log p(relevant) of two logits (monoBERT's), or the one score itself."""
    if logits.shape[1] == 1:
        return logits[:, 0]
    difference = (logits[:, 0] - logits[:, 1]).astype(np.float64)
    return (-np.logaddexp(0.0, difference)).astype(np.float32)


def probability(logits: Logits) -> NDArray[np.float32]:
    """p(relevant): of two logits their softmax, of one score its sigmoid."""
    margin = logits[:, -1] - (logits[:, 0] if logits.shape[1] == 2 else 0)
    return np.exp(-np.logaddexp(0.0, -margin.astype(np.float64))).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model as a backend loads it; ``segments`` is how many segment ids its encoder knows."""

    engine: Engine
    tokenizer: Tokenizer
    config: RankerConfig
    segments: int


# Each module has a function load(folder, changes, options) -> Loaded; none is imported before it is asked for, because
# only the first may import torch.
BACKENDS = {
    "torch": "rankwell.rank.engines.torch_loading",
    "onnx": "rankwell.rank.engines.onnx_engine",
    "openvino": "rankwell.rank.engines.openvino_engine",
}


def load(folder: str | Path, backend: str, changes: Mapping[str, Any], options: Mapping[str, Any]) -> Loaded:
    """Load ``folder``, or a model of that name (``models.checkpoints.names``), with the backend of that name;
    ``changes`` replace parts of the model's configuration.
    """
    if backend not in BACKENDS:
        raise RankwellError(f"no backend is called {backend!r} (known: {', '.join(BACKENDS)})")
    if backend == "torch" and find_spec("torch") is None:
        raise MissingExtraError("torch", "models", "scoring with the torch backend")
    loaded: Loaded = import_module(BACKENDS[backend]).load(find_model(folder), changes, options)
    return loaded
