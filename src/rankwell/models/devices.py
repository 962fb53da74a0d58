"""How models compute: device, precision, backend, and what this CPU is fast in. Imports torch only when needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.core.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

DTypeName = Literal["fp32", "bf16", "fp16", "int8"]
Precision = Literal["auto", "fp32", "bf16", "int8"]
Purpose = Literal["rank", "encode", "judge", "train"]
AUTO: dict[Purpose, tuple[DTypeName, bool, bool]] = {
    "rank": ("bf16", True, True),
    "encode": ("fp16", True, True),
    "judge": ("bf16", False, False),
    "train": ("bf16", False, True),
}
"""What ``auto`` means for re-rankers, bi-encoders, models whose scores the sample cannot check, and training.

The precision on a GPU, and what is used on a CPU that is fast in it: int8, if the model agrees with itself, and bf16.
"""
Score = Callable[[DTypeName, Sequence[str], Sequence[str]], "NDArray[np.floating]"]
"""The scores of pairs of a query and a document, in a precision."""
AGREEMENT: Registry[Callable[[Path, Purpose, Score], bool]] = Registry(
    "agreement", {"int8": "rankwell.rank.engines.agreement"}
)
"""Whether a model's scores in a precision agree with the exact ones."""
VARIABLE = "RANKWELL_DEVICE"
"""Environment variable: the default device."""
# With AMX tiles, scoring in bf16 was 2.7 times as fast as in fp32, and training 1.9 times; with AVX-512's bf16
# instructions (avx512_bf16) scoring ran at 0.6 times the speed. Arm's bf16 has not been measured.
FAST_FLAG = "amx_bf16"
# The instructions that add four products of bytes to each of so many sums.
DOT_FLAGS = {"asimddp": 4, "avx512_vnni": 16, "avx_vnni": 8}
CPU_INFO = Path("/proc/cpuinfo")


class ComputingOptions(TypedDict, total=False):
    """The fields of :class:`Computing` as keywords."""

    device: str | None
    precision: Precision | None
    backend: str
    trust_remote_code: bool


@dataclass(frozen=True)
class Computing:
    """How models compute, handed down from a command or a call to whatever opens them.

    ``device`` is one of torch's; by default a GPU if there is one. Code that comes with a model runs only with
    ``trust_remote_code``.
    """

    device: str | None = None
    precision: Precision | DTypeName | None = "auto"
    backend: str = "torch"
    trust_remote_code: bool = False

    def engine_options(self) -> dict[str, Any]:
        """The options of the backend's engine, as JSON holds them.

        The engine resolves the precision (:func:`resolve`).
        """
        options: dict[str, Any] = {"device": self.device} if self.device else {}
        options |= {"trust_remote_code": True} if self.trust_remote_code else {}
        if self.precision is None:
            return options
        if self.backend == "torch":
            if find_spec("torch") is None:
                raise MissingExtraError("torch", "models", "scoring with the torch backend")
            return {**options, "dtype": self.precision}
        if self.precision != "auto":
            raise RankwellError(f"--precision is for the backend torch; rankwell export sets that of {self.backend}")
        return options


DEFAULT_COMPUTING = Computing()
EXACT = Computing(precision=None)


def resolve(
    precision: Precision | DTypeName | None,
    purpose: Purpose,
    device: torch.device,
    agrees: Callable[[], bool] | None = None,
) -> DTypeName:
    """The precision of a model on a device; ``agrees`` says whether the model ranks alike in int8.

    ``auto`` is what :data:`AUTO` says. ``None`` is exact on a CPU, and ``auto`` on a GPU.
    """
    on_gpu, int8, short = AUTO[purpose]
    if precision is not None and precision != "auto":
        return precision
    if device.type == "cuda":
        return on_gpu
    if precision is None or device.type != "cpu":
        return "fp32"
    if int8 and agrees is not None and is_fast_in_int8() and agrees():
        return "int8"
    return fast_float() if short else "fp32"


def describe_precisions(device: torch.device) -> str:
    """What ``auto`` means on a device, in one line."""
    computed = {purpose: str(resolve("auto", purpose, device)) for purpose in AUTO}
    alike = "int8 if they rank alike in it, else " if device.type == "cpu" and is_fast_in_int8() else ""
    models = f"re-rankers {alike}{computed['rank']}; bi-encoders {alike}{computed['encode']}"
    return f"{models}; training {computed['train']}"


def device_named(name: str | None) -> torch.device:
    """The device of that name; by default that of the environment, then a GPU (Apple's, too) if any, then the CPU.

    The device may belong to another machine of a cluster, so it is not checked here.
    """
    import torch

    name = name or os.environ.get(VARIABLE)
    if not name:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError:
        raise RankwellError(f"device {name}: torch has no such device; expected cpu, cuda, cuda:1 or mps") from None


def chosen_device(name: str | None) -> torch.device:
    """Like :func:`device_named`, but raises unless this machine has the device."""
    import torch

    device = device_named(name)
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise RankwellError(f"device {device}: torch sees {f'{gpus} GPUs' if gpus else 'no GPU'} on this machine")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise RankwellError("device mps: torch finds no Apple GPU on this machine")
    return device


def is_fast_in_bf16(cpu_info: Path | None = None) -> bool:
    """Whether this machine's processor is known to be faster in bf16 than in fp32."""
    return FAST_FLAG in cpu_flags(cpu_info)


def fast_float() -> DTypeName:
    """What this machine's processor computes fastest in beside int8."""
    return "bf16" if is_fast_in_bf16() else "fp32"


def is_fast_in_int8() -> bool:
    """Whether this machine's processor has a dot-product instruction that rankwell's int8 kernels use."""
    return dot_lanes() > 0


def dot_lanes(cpu_info: Path | None = None) -> int:
    """The number of sums to which the processor's dot product of bytes adds at once; 0 if it has none."""
    flags = cpu_flags(cpu_info)
    return next((lanes for flag, lanes in DOT_FLAGS.items() if flag in flags), 0)


@cache
def may_use_tiles() -> bool:
    """Whether the processor multiplies tiles of bytes (AMX), and Linux lets this process do so: it has to ask."""
    import ctypes

    arch_prctl, request, tile_data = (ctypes.c_long(value) for value in (158, 0x1023, 18))
    return HAS_TILES and ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0


def cpu_flags(cpu_info: Path | None = None) -> list[str]:
    """The features of the processor, as Linux names them; none elsewhere."""
    try:
        lines = (cpu_info or CPU_INFO).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])


DOT_LANES, HAS_TILES = dot_lanes(), {"amx_int8", "amx_bf16"} <= {*cpu_flags()}
"""Of this machine, whatever a test says its processor is."""
PANEL = 2 * (DOT_LANES or 4)
"""Columns of a weight that the int8 kernels multiply together: two vectors of sums."""
INT8_UNIT = max(16, PANEL)
"""The sizes of an int8 layer are multiples of this."""
