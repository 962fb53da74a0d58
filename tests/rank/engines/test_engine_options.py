"""What a model computes in: chosen by the processor or by its user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankwell.models.devices import Computing, is_fast_in_bf16

torch = pytest.importorskip("torch")
XEON = "processor\t: 0\nflags\t\t: fpu avx512_bf16 amx_bf16 avx512_fp16 amx_tile\n\nprocessor\t: 1\n"
ZEN = "processor\t: 0\nmodel name\t: an amx_bf16 by name alone\nflags\t\t: fpu avx2 avx512_bf16\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd i8mm bf16\n"
NEOVERSE = "processor\t: 0\nFeatures\t: fp asimd asimddp\n"


@pytest.fixture
def processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes the machine's processor the one described."""

    def describe(text: str) -> Path:
        (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr("rankwell.models.devices.CPU_INFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.delenv("RANKWELL_DEVICE", raising=False)
        return tmp_path / "cpuinfo"

    return describe


@pytest.mark.parametrize(("text", "fast"), [(XEON, True), (ZEN, False), (ARM, False), ("", False)])
def test_only_a_processor_with_amx_is_known_to_be_fast(text: str, fast: bool, processor: Callable[[str], Path]) -> None:
    assert is_fast_in_bf16(processor(text)) is fast
    expected = "bf16" if fast else "fp32"
    assert Computing().engine_options() == {"dtype": expected}
    assert Computing("cpu").engine_options() == {"device": "cpu", "dtype": expected}


def test_a_model_that_ranks_alike_is_computed_in_int8_where_that_is_fast(processor: Callable[[str], Path]) -> None:
    processor(NEOVERSE)
    assert Computing("cpu").engine_options() == {"device": "cpu", "dtype": "auto"}
    assert Computing("cpu", None).engine_options() == {"device": "cpu"}  # exact
    assert Computing("cpu", "fp32").engine_options() == {"device": "cpu", "dtype": "fp32"}


def test_a_processor_that_cannot_be_looked_up_computes_exactly(tmp_path: Path) -> None:
    assert not is_fast_in_bf16(tmp_path / "nowhere")


def test_what_is_asked_for_is_used_whatever_the_processor(processor: Callable[[str], Path]) -> None:
    processor(XEON)
    assert Computing(None, "fp32").engine_options() == {"dtype": "fp32"}
    processor(ZEN)
    assert Computing(None, "bf16").engine_options() == {"dtype": "bf16"}


def test_a_gpu_is_left_to_its_engine(processor: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    processor(ZEN)
    assert Computing("cuda:1").engine_options() == {"device": "cuda:1"}
    assert Computing("cuda:1", "fp32").engine_options() == {"device": "cuda:1", "dtype": "fp32"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert Computing().engine_options() == {}
    assert Computing("cpu").engine_options() == {"device": "cpu", "dtype": "fp32"}


def test_what_is_not_said_is_left_to_the_engine(processor: Callable[[str], Path]) -> None:
    processor(XEON)
    assert Computing(None, None).engine_options() == {}
    assert Computing(None, None, backend="onnx").engine_options() == {}
    assert Computing("cpu", None).engine_options() == {"device": "cpu"}
