"""The ONNX Runtime engine: exported models in fp32 or int8, on the CPU, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rankwell.core.errors import InputError, MissingExtraError
from rankwell.inputs.batching import Sequences
from rankwell.rank.engines.engine import Loaded, Logits
from rankwell.rank.engines.exported import Exported, Grids, open_exported, score_grids

# Small: what lies between two operations should stay in a core's cache.
BUDGET = 512


def load(folder: Path, changes: Mapping[str, Any], options: Mapping[str, Any]) -> Loaded:
    """A folder exported for onnx; ``options`` are those of :class:`OnnxEngine`."""
    exported = open_exported(folder, "onnx", changes)
    return Loaded(OnnxEngine(exported, **options), exported.tokenizer, exported.config, exported.segments)


class OnnxEngine:
    """A session. ``budget`` is how many tokens (padding included) are computed at a time, ``threads`` 0 every core."""

    def __init__(self, exported: Exported, *, budget: int = BUDGET, threads: int = 0):
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError("onnxruntime", "onnx", "the backend onnx") from None
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        # A plan of the memory is kept for each shape, and there are as many shapes as batches.
        settings.enable_mem_pattern = False
        try:
            self._session = onnxruntime.InferenceSession(
                str(exported.graph), settings, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's own errors have no common class
            raise InputError(exported.graph, None, f"ONNX Runtime cannot read it ({_line(error)})") from error
        self._exported = exported
        self.budget = budget

    def logits(self, sequences: Sequences) -> Logits:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        return score_grids(sequences, self._exported, self.budget, self._compute)

    def _compute(self, grids: Grids) -> NDArray[Any]:
        (logits,) = self._session.run(None, grids)
        found: NDArray[Any] = logits
        return found


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
