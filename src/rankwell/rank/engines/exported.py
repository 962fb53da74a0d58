"""The engine of exported models: ONNX Runtime on the CPU, in fp32 or int8. Never imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.checksums import verify_folder
from rankwell.core.errors import InputError, MissingExtraError, one_line
from rankwell.core.progress import computed
from rankwell.inputs.batching import Sequences, take_sequences, token_batches
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import GRAPH, ExportRecord, check_length, check_unchanged, read_export
from rankwell.models.spec import under_rule
from rankwell.rank.engines.engine import BACKENDS, Engine, LoadedModel, Logits

Grids = dict[str, NDArray[Any]]
Graph = Callable[[Grids], NDArray[Any]]
"""Computes the logits of a batch."""


class ExportedEngine(Engine):
    """Scores batches of similar lengths; ``budget`` is how many tokens (padding included) are computed at a time.

    Calls may run in parallel.
    """

    def __init__(self, record: ExportRecord, compute: Graph, budget: int):
        self.record = record
        self.budget = budget
        self._compute = compute

    def logits(self, sequences: Sequences) -> Logits:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        sequences = under_rule(sequences, self.record.attention)
        logits = np.empty((len(sequences), 2 if self.record.head == "two_logits" else 1), np.float32)
        for rows in token_batches(sequences.lengths(), self.budget):
            grids = pad_sequences(take_sequences(sequences, rows))
            logits[rows] = self._compute({name: grids[name] for name in self.record.inputs})
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


@BACKENDS.register("onnx")
def load_onnx(folder: Path, changes: Mapping[str, Any], options: Mapping[str, Any]) -> LoadedModel:
    """Load a folder that was exported for onnx. Options: ``budget``, and ``threads``, by default all cores."""

    # A small budget: what lies between two operations should stay in a core's cache.
    def load(budget: int = 512, threads: int = 0) -> LoadedModel:
        verify_folder(folder)
        record, config = read_export(folder)
        config = config.changed(changes)
        check_unchanged(record, config)
        check_length(folder, config.template.max_length, record.positions)
        engine = ExportedEngine(record, _open_onnx(folder / GRAPH, threads), budget)
        return LoadedModel(engine, Tokenizer.open(folder), config, record.segments)

    return load(**options)


def _open_onnx(graph: Path, threads: int) -> Graph:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", "onnx", "the backend onnx") from None
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    # A memory plan is cached for each shape, and there are as many shapes as batches.
    settings.enable_mem_pattern = False
    try:
        session = onnxruntime.InferenceSession(str(graph), settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors have no common class
        raise InputError(graph, None, f"ONNX Runtime cannot read it ({one_line(error)})") from error
    return lambda grids: session.run(None, grids)[0]


def pad_sequences(batch: Sequences) -> Grids:
    """The inputs of an exported graph, (B, L) each."""
    lengths = batch.lengths()
    real = np.arange(lengths.max()) < lengths[:, None]

    def spread(values: NDArray[Any], dtype: type[np.generic], padding: int | bool) -> NDArray[Any]:
        grid = np.full(real.shape, padding, dtype)
        grid[real] = values
        return grid

    return {
        "input_ids": spread(batch.tokens, np.int64, 0),
        "token_type_ids": spread(batch.segments, np.int64, 0),
        "attention_mask": real.astype(np.int64),
        # Padding is a complete word of its own, so that it can attend to something under every rule.
        "words": spread(batch.words, np.int64, -1),
        "last": spread(batch.last, np.bool_, True),
    }
