"""Chooses the device of a model, and detects what this CPU is fast in. Imports torch only when needed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rankwell.core.errors import RankwellError

if TYPE_CHECKING:
    import torch

DTypeName = Literal["fp32", "bf16", "int8"]
Precision = Literal["auto", "fp32", "bf16", "int8"]
VARIABLE = "RANKWELL_DEVICE"
"""Environment variable: the default device."""
# With AMX tiles, scoring in bf16 was 2.7 times as fast as in fp32, and training 1.9 times; with AVX-512's bf16
# instructions (avx512_bf16) scoring ran at 0.6 times the speed. Arm's bf16 has not been measured.
# With Arm's dot product, vectors and scores in int8 were computed 3 times as fast as in fp32.
FAST_FLAG = "amx_bf16"
DOT_FLAG = "asimddp"
CPU_INFO = Path("/proc/cpuinfo")


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
    return FAST_FLAG in _cpu_flags(cpu_info)


def is_fast_in_int8(cpu_info: Path | None = None) -> bool:
    """Whether this machine's processor has the dot-product instruction that rankwell's int8 kernels use: Arm's."""
    return DOT_FLAG in _cpu_flags(cpu_info)


def _cpu_flags(cpu_info: Path | None) -> list[str]:
    """The features of the processor, as Linux names them; none elsewhere."""
    try:
        lines = (cpu_info or CPU_INFO).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
