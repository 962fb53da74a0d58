"""The OpenVINO engine: exported models in fp32 or f16, on the CPU, without torch.

fp32 is computed in fp32. f16 is computed in what the processor does best: bf16 with AMX, f16 on ARM, else fp32.
"""

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

BUDGET = 1024


class OpenVinoEngine(ExportedEngine):
    """A compiled graph.

    ``budget`` is how many tokens (padding included) are computed at a time; ``threads`` 0 is all cores; ``compute`` is
    the type of the arithmetic ("f32", "bf16", "f16"), by default as the module's text says.
    """

    def __init__(
        self,
        record: ExportRecord,
        graph: Path,
        *,
        budget: int = BUDGET,
        threads: int = 0,
        compute: str | None = None,
    ):
        super().__init__(record, budget)
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
            self._graph = openvino.Core().compile_model(str(graph), "CPU", settings)
        except RuntimeError as error:
            raise InputError(graph, None, f"OpenVINO cannot read it ({one_line(error)})") from error

    def open_graph(self) -> Callable[[Grids], NDArray[Any]]:
        """See :class:`~rankwell.rank.engines.exported.ExportedEngine`."""
        # A request holds the buffers of one computation, so calls from several threads need one each.
        request = self._graph.create_infer_request()
        return lambda grids: request.infer(grids, share_inputs=True)["logits"]


@BACKENDS.register("openvino")
def load_openvino(folder: Path, changes: Mapping[str, Any], options: Mapping[str, Any]) -> LoadedModel:
    """Load a folder that was exported for openvino; ``options`` are those of :class:`OpenVinoEngine`."""
    return load_exported(folder, "openvino", changes, partial(OpenVinoEngine, **options))
