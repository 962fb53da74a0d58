"""The OpenVINO engine: exported models in fp32 or f16, on the CPU, without torch.

fp32 is computed in fp32. f16 is computed in what the processor does best: bf16 with AMX, f16 on ARM, else fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, MissingExtraError
from rankwell.inputs.batching import Sequences
from rankwell.rank.engines.engine import Loaded, Logits
from rankwell.rank.engines.exported import Exported, open_exported, score_grids

BUDGET = 1024


def load(folder: Path, changes: Mapping[str, Any], options: Mapping[str, Any]) -> Loaded:
    """A folder exported for openvino; ``options`` are those of :class:`OpenVinoEngine`."""
    exported = open_exported(folder, "openvino", changes)
    return Loaded(OpenVinoEngine(exported, **options), exported.tokenizer, exported.config, exported.segments)


class OpenVinoEngine:
    """A compiled graph.

    ``budget`` is how many tokens (padding included) are computed at a time, ``threads`` 0 every core; ``compute`` is
    the type of the arithmetic ("f32", "bf16", "f16"), by default what the module's text says.
    """

    def __init__(self, exported: Exported, *, budget: int = BUDGET, threads: int = 0, compute: str | None = None):
        try:
            import openvino
        except ImportError:
            raise MissingExtraError("openvino", "onnx", "the backend openvino") from None
        settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
        if threads:
            settings["INFERENCE_NUM_THREADS"] = threads
        if compute or exported.record.precision == "fp32":
            settings["INFERENCE_PRECISION_HINT"] = compute or "f32"
        try:
            self._graph = openvino.Core().compile_model(str(exported.graph), "CPU", settings)
        except RuntimeError as error:
            line = " ".join(str(error).split())[:200]
            raise InputError(exported.graph, None, f"OpenVINO cannot read it ({line})") from error
        self._exported = exported
        self.budget = budget

    def logits(self, sequences: Sequences) -> Logits:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        # A request holds the buffers of one computation, so each call has its own: calls may come together.
        request = self._graph.create_infer_request()
        return score_grids(
            sequences, self._exported, self.budget, lambda grids: request.infer(grids, share_inputs=True)["logits"]
        )
