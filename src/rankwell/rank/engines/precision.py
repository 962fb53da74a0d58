"""What a model computes in: exactly, or in 16 bits where the processor does that much faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.models.checkpoints.exported import read_export
from rankwell.models.processor import is_fast_in_bf16
from rankwell.rank.engines.engine import Engine

Precision = Literal["auto", "fp32", "bf16"]
_NAMES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}


def engine_options(backend: str, device: str | None = None, precision: Precision | None = "auto") -> dict[str, Any]:
    """The options of a backend's engine, as JSON holds them.

    ``auto`` is bf16 on a GPU and on a processor made for it, and else fp32; without any, the engine's own choice, which
    is bf16 on a GPU alone.
    """
    options: dict[str, Any] = {"device": device} if device else {}
    if precision is None:
        return options
    if backend != "torch":
        if precision != "auto":
            raise RankwellError(f"--precision is for the backend torch; that of {backend} is chosen by rankwell export")
        return options
    try:
        from rankwell.models.devices import device_named
    except ImportError:
        raise MissingExtraError("torch", "models", "scoring with the torch backend") from None
    if precision == "auto":
        if device_named(device).type != "cpu":
            return options  # the engine knows what is good there
        precision = "bf16" if is_fast_in_bf16() else "fp32"
    return {**options, "dtype": precision}


def precision_of(engine: Engine, folder: Path, backend: str) -> str:
    """What an open model computes in; of an exported one, what it was exported in."""
    if backend != "torch":
        return read_export(folder, "onnx" if backend == "onnx" else "openvino")[0].precision
    within: Any = getattr(engine, "engine", engine)  # that of entailment stands around the torch one
    dtype = str(next(within.model.parameters()).dtype)
    return _NAMES.get(dtype, dtype)
