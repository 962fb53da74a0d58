"""The ONNX Runtime engine: exported models in fp32 or int8, on the CPU, without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rankwell.core.errors import InputError, MissingExtraError, one_line
from rankwell.models.checkpoints.export import ExportRecord
from rankwell.rank.engines.engine import BACKENDS, LoadedModel
from rankwell.rank.engines.exported import ExportedEngine, Grids, load_exported

# Small: what lies between two operations should stay in a core's cache.
BUDGET = 512


class OnnxEngine(ExportedEngine):
    """A session. ``budget`` tokens (padding included) are computed at a time; ``threads`` 0 is all cores."""

    def __init__(self, record: ExportRecord, graph: Path, *, budget: int = BUDGET, threads: int = 0):
        super().__init__(record, budget)
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
            self._session = onnxruntime.InferenceSession(str(graph), settings, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own errors have no common class
            raise InputError(graph, None, f"ONNX Runtime cannot read it ({one_line(error)})") from error

    def open_graph(self) -> Callable[[Grids], NDArray[Any]]:
        """See :class:`~rankwell.rank.engines.exported.ExportedEngine`."""
        return lambda grids: self._session.run(None, grids)[0]


@BACKENDS.register("onnx")
def load_onnx(folder: Path, changes: Mapping[str, Any], options: Mapping[str, Any]) -> LoadedModel:
    """Load a folder that was exported for onnx; ``options`` are those of :class:`OnnxEngine`."""
    return load_exported(folder, "onnx", changes, partial(OnnxEngine, **options))
