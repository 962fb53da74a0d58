"""What a model computes in: chosen by the processor or by its user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rankwell.models.devices import AUTO, Computing, describe_precisions, is_fast_in_bf16, resolve

XEON = "processor\t: 0\nflags\t\t: fpu avx512_bf16 amx_bf16 avx512_fp16 amx_tile\n\nprocessor\t: 1\n"
ZEN = "processor\t: 0\nmodel name\t: an amx_bf16 by name alone\nflags\t\t: fpu avx2 avx512_bf16\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd i8mm bf16\n"
CPU = torch.device("cpu")
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
    assert [resolve("auto", purpose, CPU) for purpose in ("rank", "encode", "train")] == [expected] * 3
    assert resolve("auto", "judge", CPU) == "fp32"


def test_a_model_that_ranks_alike_is_computed_in_int8_where_that_is_fast(processor: Callable[[str], Path]) -> None:
    processor(NEOVERSE)
    for agrees, expected in ((lambda: True, "int8"), (lambda: False, "fp32"), (None, "fp32")):
        assert [resolve("auto", purpose, CPU, agrees) for purpose in ("rank", "encode")] == [expected] * 2
        assert [resolve("auto", purpose, CPU, agrees) for purpose in ("judge", "train")] == ["fp32"] * 2
        assert resolve(None, "rank", CPU, agrees) == "fp32"  # exact
    assert describe_precisions(CPU) == (
        "re-rankers int8 if they rank alike in it, else fp32; bi-encoders int8 if they rank alike in it, else fp32; "
        "training fp32"
    )
    processor(ZEN)
    assert resolve("auto", "rank", CPU, lambda: True) == "fp32"


def test_a_processor_that_cannot_be_looked_up_computes_exactly(tmp_path: Path) -> None:
    assert not is_fast_in_bf16(tmp_path / "nowhere")


def test_what_is_asked_for_is_used_whatever_the_processor(processor: Callable[[str], Path]) -> None:
    processor(XEON)
    assert resolve("fp32", "rank", CPU) == "fp32"
    processor(ZEN)
    assert resolve("bf16", "encode", CPU) == "bf16"
    assert Computing("cpu", "bf16").engine_options() == {"device": "cpu", "dtype": "bf16"}


def test_a_gpu_has_one_precision_for_each_purpose() -> None:
    for precision in ("auto", None):
        found = [resolve(precision, purpose, torch.device("cuda", 1)) for purpose in AUTO]
        assert found == ["bf16", "fp16", "bf16", "bf16"]
        assert resolve(precision, "rank", torch.device("mps")) == "fp32"
    assert resolve("fp32", "rank", torch.device("cuda")) == "fp32"
    assert Computing("cuda:1").engine_options() == {"device": "cuda:1", "dtype": "auto"}


def test_what_is_not_said_is_left_to_the_engine() -> None:
    assert Computing(None, None).engine_options() == {}
    assert Computing(None, None, backend="onnx").engine_options() == {}
    assert Computing("cpu", None).engine_options() == {"device": "cpu"}
