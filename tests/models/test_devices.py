"""Where a model computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankwell.core.errors import RankwellError
from rankwell.models.devices import VARIABLE, chosen_device, device_named, dot_lanes


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them, and nothing said in the environment."""
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("gpus")
def test_a_gpu_is_taken_where_there_is_one() -> None:
    assert chosen_device(None) == torch.device("cuda")
    assert chosen_device("cuda:1") == torch.device("cuda:1")
    assert chosen_device("cpu") == torch.device("cpu")


@pytest.mark.usefixtures("gpus")
def test_the_environment_speaks_where_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "cpu")
    assert chosen_device(None) == torch.device("cpu")
    assert chosen_device("cuda") == torch.device("cuda")


@pytest.mark.usefixtures("gpus")
def test_a_gpu_too_many() -> None:
    with pytest.raises(RankwellError, match="device cuda:2: torch sees 2 GPUs on this machine"):
        chosen_device("cuda:2")
    assert device_named("cuda:2").index == 2  # another machine may have it


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RankwellError, match="device cuda: torch sees no GPU on this machine"):
        chosen_device("cuda")


def test_an_apple_gpu_is_taken_if_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RankwellError, match="device mps: torch finds no Apple GPU"):
        chosen_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert chosen_device(None) == chosen_device("mps") == torch.device("mps")


def test_a_name_torch_does_not_know() -> None:
    with pytest.raises(RankwellError, match="device cud: torch has no such device"):
        chosen_device("cud")


@pytest.mark.parametrize(
    ("text", "lanes"),
    [
        ("processor\t: 0\nFeatures\t: fp asimd asimddp\n", 4),
        ("flags\t\t: fpu avx2 avx512f avx512_vnni avx_vnni\n", 16),
        ("flags\t\t: fpu avx2 avx_vnni\n", 8),
        ("flags\t\t: fpu avx2\n", 0),
        ("", 0),
    ],
)
def test_a_processor_with_a_dot_product_of_bytes_is_fast_in_int8(text: str, lanes: int, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert dot_lanes(tmp_path / "cpuinfo") == lanes
