"""What the engines of exported models share: opening a folder, padding batches. Never imports torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.checksums import verify_folder
from rankwell.core.progress import computed
from rankwell.inputs.batching import Sequences, take_sequences, token_batches
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import check_length
from rankwell.models.checkpoints.export import GRAPHS, Backend, ExportRecord, check_unchanged, read_export
from rankwell.models.spec import under_rule
from rankwell.rank.engines.engine import Engine, LoadedModel, Logits

Grids = dict[str, NDArray[Any]]


class ExportedEngine(Engine):
    """Scores batches of similar lengths; ``budget`` is how many tokens (padding included) are computed at a time."""

    def __init__(self, record: ExportRecord, budget: int):
        self.record = record
        self.budget = budget

    @abstractmethod
    def open_graph(self) -> Callable[[Grids], NDArray[Any]]:
        """A function that computes the logits of a batch, for one call of ``logits``; calls may run in parallel."""

    def logits(self, sequences: Sequences) -> Logits:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        sequences = under_rule(sequences, self.record.attention)
        compute = self.open_graph()
        logits = np.empty((len(sequences), 2 if self.record.head == "two_logits" else 1), np.float32)
        for rows in token_batches(sequences.lengths(), self.budget):
            grids = pad_sequences(take_sequences(sequences, rows))
            logits[rows] = compute({name: grids[name] for name in self.record.inputs})
            computed(len(rows))
        return logits

    @property
    def tokens_at_once(self) -> int:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        return self.budget

    @property
    def precision(self) -> str:
        """See :class:`~rankwell.rank.engines.engine.Engine`. It was chosen when the model was exported."""
        return self.record.precision


def load_exported(
    folder: Path, backend: Backend, changes: Mapping[str, Any], make: Callable[[ExportRecord, Path], Engine]
) -> LoadedModel:
    """Load a folder that was exported for ``backend``; raises if the graph does not allow ``changes``."""
    verify_folder(folder, editable=True)
    record, config = read_export(folder, backend)
    config = config.changed(changes)
    check_unchanged(record, config)
    check_length(folder, config.template.max_length, record.positions)
    engine = make(record, folder / GRAPHS[backend])
    return LoadedModel(engine, Tokenizer.open(folder), config, record.segments)


def pad_sequences(batch: Sequences) -> Grids:
    """The inputs of an exported graph, (B, L) each."""
    lengths = batch.lengths()
    real = np.arange(lengths.max()) < lengths[:, None]

    def spread(values: NDArray[Any], dtype: type[np.generic], padding: int | bool) -> NDArray[Any]:
        grid = np.full(real.shape, padding, dtype)
        grid[real] = values
        return grid

    return {
        "tokens": spread(batch.tokens, np.int32, 0),
        "segments": spread(batch.segments, np.int32, 0),
        "real": real,
        # Padding is a complete word of its own, so that it can attend to something under every rule.
        "words": spread(batch.words, np.int32, -1),
        "last": spread(batch.last, np.bool_, True),
    }
