"""Engines turn laid-out sequences into logits. There is one per backend, and all must agree with the torch one.

A module of this folder registers how a backend loads a model. It is imported when the backend is first used, because
only the torch one may import torch. Code elsewhere can register a backend in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Scores
from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.core.registry import Registry
from rankwell.inputs.batching import Sequences
from rankwell.models.checkpoints.names import find_model

if TYPE_CHECKING:  # scoring stored tokens needs torch and numpy alone
    from rankwell.inputs.tokenizer import Tokenizer
    from rankwell.models.checkpoints.config import RankerConfig

Logits = NDArray[np.float32]


class Engine(ABC):
    """A model that is ready to score sequences.

    A new engine only has to define :meth:`logits`. The rest describes it to its callers and has safe defaults.
    """

    @abstractmethod
    def logits(self, sequences: Sequences) -> Logits:
        """The head's outputs ``(sequences, outputs)`` in the order given. The engine makes the batches."""

    def submit(self, sequences: Sequences) -> Callable[[], Logits]:
        """Start scoring and return a function that waits for the logits.

        An engine that computes in the background lets its caller prepare more sequences in the meantime.
        """
        logits = self.logits(sequences)
        return lambda: logits

    @property
    def tokens_at_once(self) -> int:
        """How many tokens keep the engine busy; a service makes its batches this large."""
        return 2048

    @property
    def device(self) -> str:
        """Where the model runs, as torch names devices."""
        return "cpu"

    @property
    def precision(self) -> str:
        """The arithmetic of the scores: fp32 is exact."""
        return "fp32"

    def continue_after_fork(self) -> bool:
        """Prepare for use in a forked process, which has none of its parent's threads. False if that is impossible."""
        return False

    @property
    def explainable(self) -> bool:
        """Whether :func:`rankwell.rank.explain.explain` can show the model's attention."""
        return False


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model as a backend loads it; ``segments`` is the number of segment ids of its encoder."""

    engine: Engine
    tokenizer: Tokenizer
    config: RankerConfig
    segments: int


Loader = Callable[[Path, Mapping[str, Any], Mapping[str, Any]], LoadedModel]
"""Loads a folder, given changes to the model's configuration and the engine's options."""
BACKENDS: Registry[Loader] = Registry(
    "backend", {"torch": "rankwell.rank.engines.torch_engine", "onnx": "rankwell.rank.engines.exported"}
)
CHECKPOINTS: Registry[Loader] = Registry("checkpoint kind")
"""Models that torch computes but that are no cross-encoders, such as classifiers."""
TORCH_OPTIONS = ("label", "trust_remote_code")
"""How the torch backend loads a model: the class that means relevant, and whether code in the folder may run."""


def load(folder: str | Path, backend: str, changes: Mapping[str, Any], options: Mapping[str, Any]) -> LoadedModel:
    """Load a folder, or any name that ``models.checkpoints.names`` finds, with a backend.

    ``changes`` replace parts of the model's configuration; ``options`` are those of the backend's engine.
    """
    if backend == "torch" and find_spec("torch") is None:
        raise MissingExtraError("torch", "models", "scoring with the torch backend")
    loader = BACKENDS[backend]
    if backend != "torch" and (wrong := next((name for name in TORCH_OPTIONS if options.get(name)), None)):
        raise RankwellError(f"--{wrong.replace('_', '-')} needs --backend torch, not {backend}")
    from rankwell.rank.rankers import check_cross_encoder  # scoring stored tokens needs torch and numpy alone

    folder = find_model(folder)
    check_cross_encoder(folder)
    return loader(folder, changes, options)


def relevance(logits: Logits) -> Scores:
    """One score per pair: log p(relevant) of two logits (monoBERT's), or the one score itself."""
    if logits.shape[1] == 1:
        return logits[:, 0]
    difference = (logits[:, 0] - logits[:, 1]).astype(np.float64)
    return (-np.logaddexp(0.0, difference)).astype(np.float32)


def probability(logits: Logits) -> Scores:
    """p(relevant): the softmax of two logits, the sigmoid of one score."""
    margin = logits[:, -1] - (logits[:, 0] if logits.shape[1] == 2 else 0)
    return np.exp(-np.logaddexp(0.0, -margin.astype(np.float64))).astype(np.float32)


def softmax(logits: Logits) -> Scores:
    """p(relevant) of two logits; one score stays as it is, as in CrossEncoder."""
    return probability(logits) if logits.shape[1] == 2 else relevance(logits)


ACTIVATIONS = {None: relevance, "probability": probability, "softmax": softmax}
