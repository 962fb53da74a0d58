"""The engines of exported models, on the CPU: ONNX Runtime (fp32 or int8) and OpenVINO (fp32 or f16).

OpenVINO computes fp32 in fp32, and f16 in what the processor does best: bf16 with AMX, f16 on ARM, else fp32. Never
imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.checksums import verify_folder
from rankwell.core.errors import InputError, MissingExtraError, one_line
from rankwell.core.progress import computed
from rankwell.inputs.batching import Sequences, take_sequences, token_batches
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import GRAPHS, Backend, ExportRecord, check_length, check_unchanged, read_export
from rankwell.models.spec import under_rule
from rankwell.rank.engines.engine import BACKENDS, Engine, LoadedModel, Logits

Grids = dict[str, NDArray[Any]]
Graph = Callable[[Grids], NDArray[Any]]
"""Computes the logits of a batch."""


class ExportedEngine(Engine):
    """Scores batches of similar lengths; ``budget`` is how many tokens (padding included) are computed at a time.

    ``open_graph`` gives the graph for one call of ``logits``; calls may run in parallel.
    """

    def __init__(self, record: ExportRecord, open_graph: Callable[[], Graph], budget: int):
        self.record = record
        self.budget = budget
        self._open_graph = open_graph

    def logits(self, sequences: Sequences) -> Logits:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        sequences = under_rule(sequences, self.record.attention)
        compute = self._open_graph()
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


def _load(
    folder: Path,
    backend: Backend,
    changes: Mapping[str, Any],
    open_graph: Callable[[ExportRecord, Path], Callable[[], Graph]],
    budget: int,
) -> LoadedModel:
    """Load a folder that was exported for ``backend``; raises if the graph does not allow ``changes``."""
    verify_folder(folder)
    record, config = read_export(folder, backend)
    config = config.changed(changes)
    check_unchanged(record, config)
    check_length(folder, config.template.max_length, record.positions)
    engine = ExportedEngine(record, open_graph(record, folder / GRAPHS[backend]), budget)
    return LoadedModel(engine, Tokenizer.open(folder), config, record.segments)


@BACKENDS.register("onnx")
def load_onnx(folder: Path, changes: Mapping[str, Any], options: Mapping[str, Any]) -> LoadedModel:
    """Load a folder that was exported for onnx. Options: ``budget``, and ``threads``, by default all cores."""

    # A small budget: what lies between two operations should stay in a core's cache.
    def load(budget: int = 512, threads: int = 0) -> LoadedModel:
        return _load(folder, "onnx", changes, partial(_open_onnx, threads=threads), budget)

    return load(**options)


def _open_onnx(record: ExportRecord, graph: Path, threads: int) -> Callable[[], Graph]:
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
    return lambda: lambda grids: session.run(None, grids)[0]


@BACKENDS.register("openvino")
def load_openvino(folder: Path, changes: Mapping[str, Any], options: Mapping[str, Any]) -> LoadedModel:
    """Load a folder that was exported for openvino.

    Options: ``budget``; ``threads``, by default all cores; and ``compute``, the type of the arithmetic ("f32", "bf16",
    "f16"), by default as the module's text says.
    """

    def load(budget: int = 1024, threads: int = 0, compute: str | None = None) -> LoadedModel:
        return _load(folder, "openvino", changes, partial(_open_openvino, threads=threads, compute=compute), budget)

    return load(**options)


def _open_openvino(record: ExportRecord, graph: Path, threads: int, compute: str | None) -> Callable[[], Graph]:
    try:
        import openvino
    except ImportError:
        raise MissingExtraError("openvino", "onnx", "the backend openvino") from None
    settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    if compute or record.precision == "fp32":
        settings["INFERENCE_PRECISION_HINT"] = compute or "f32"
    try:
        compiled = openvino.Core().compile_model(str(graph), "CPU", settings)
    except RuntimeError as error:
        raise InputError(graph, None, f"OpenVINO cannot read it ({one_line(error)})") from error

    def open_graph() -> Graph:
        # A request holds the buffers of one computation, so calls from several threads need one each.
        request = compiled.create_infer_request()
        return lambda grids: request.infer(grids, share_inputs=True)["logits"]

    return open_graph


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
