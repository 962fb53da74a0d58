"""Batches of sequences on a device: their composition, and what becomes of each result."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rankwell.core.errors import RankwellError
from rankwell.inputs.batching import Sequences, token_batches
from rankwell.models.compute import Compute

LENGTHS = np.array([5, 40, 1, 30, 7, 7, 22, 40, 3])


def compute(**options: object) -> Compute:
    return Compute(torch.nn.Linear(1, 1), device="cpu", **options)  # type: ignore[arg-type]


def batches(runner: Compute, lengths: np.ndarray, **options: int) -> list[list[int]]:
    rows: list[list[int]] = []
    runner.each_batch(lengths, lambda batch: rows.append(batch.tolist()), **options)
    return sorted(rows)


def numbered(lengths: np.ndarray) -> Sequences:
    """Sequences whose tokens are numbered from the first to the last."""
    total = int(lengths.sum())
    zeros = np.zeros(total, np.int32)
    tokens = np.arange(total, dtype=np.int32)
    return Sequences(tokens, zeros.astype(np.int8), zeros, zeros, zeros.astype(bool), np.cumsum(lengths))


@pytest.mark.parametrize("lanes", [1, 3])
def test_batches_are_the_same_however_many_are_computed_in_parallel(lanes: int) -> None:
    expected = sorted(batch.tolist() for batch in token_batches(LENGTHS, 64))
    assert len(expected) > 3
    assert batches(compute(budget=64, lanes=lanes), LENGTHS) == expected
    assert batches(compute(budget=1000, lanes=lanes), LENGTHS) == [np.argsort(-LENGTHS, kind="stable").tolist()]


def test_work_for_less_than_a_batch_per_lane_can_be_divided() -> None:
    assert batches(compute(budget=1000, lanes=2, divide=True), np.full(6, 10)) == [[0, 1, 2], [3, 4, 5]]


def test_a_batch_has_a_limited_number_of_rows() -> None:
    assert batches(compute(budget=1000, lanes=1), np.full(5, 3), max_rows=2) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("lanes", [1, 3])
def test_values_of_tokens_and_of_sequences_come_back_in_order(lanes: int) -> None:
    sequences, runner = numbered(LENGTHS), compute(budget=64, lanes=lanes)
    tokens = runner.run(sequences, lambda batch: torch.from_numpy(batch.tokens))
    assert tokens.tolist() == list(range(int(LENGTHS.sum())))
    lasts = runner.run(sequences, lambda batch: torch.from_numpy(batch.tokens[batch.ends - 1])[:, None], 1)
    assert lasts[:, 0].tolist() == (sequences.ends - 1).tolist()


def test_a_gpu_that_runs_out_of_memory_twice_is_the_callers_concern() -> None:
    runner, sizes = compute(budget=80, lanes=1), []

    def scarce(rows: np.ndarray) -> None:
        sizes.append(len(rows))
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    with pytest.warns(UserWarning, match="continuing with 40 tokens"), pytest.raises(torch.cuda.OutOfMemoryError):
        runner.each_batch(np.full(8, 10), scarce)
    assert sizes == [8, 4]


def test_packing_needs_an_encoder_that_the_kernels_support() -> None:
    with pytest.raises(RankwellError, match="packed attention needs triton and a BERT"):
        compute(packed=True)


def test_rotary_frequencies_are_not_rounded_to_16_bits() -> None:
    model = torch.nn.Module()
    model.rotary = torch.nn.Module()
    frequencies = 10_000.0 ** -torch.linspace(0, 1, 8)
    model.rotary.register_buffer("inv_freq", frequencies.clone(), persistent=False)
    model.linear = torch.nn.Linear(2, 2)
    for dtype, weights in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        Compute(model, device="cpu", dtype=dtype)
        assert model.linear.weight.dtype == weights
        assert torch.equal(model.rotary.inv_freq, frequencies)
    assert not model.state_dict().keys() & {"rotary.inv_freq"}
