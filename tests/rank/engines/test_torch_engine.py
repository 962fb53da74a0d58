"""The torch engine: its two ways of running a batch agree, memory errors are answered, little is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rankwell.core.errors import RankwellError
from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.models.encoder import CrossEncoder, Encoder
from rankwell.models.spec import AttentionRule, EncoderConfig
from rankwell.rank.engines.torch_engine import TorchEngine

RULES: tuple[AttentionRule, ...] = ("full", "strm", "strict")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
KERNELS_RUN = INTERPRETED or torch.cuda.is_available()


def random_sequences(lengths: list[int], seed: int = 0) -> Sequences:
    """Sequences with split words, as a template lays them out."""
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    last = rng.random(total) < 0.7
    ends = np.cumsum(lengths)
    last[positions == 0], last[ends - 1] = True, True
    opens = np.concatenate([[True], last[:-1]])
    words = np.concatenate([np.cumsum(part) - 1 for part in np.split(opens, ends[:-1])]).astype(np.int32)
    segments = (positions > 5).astype(np.int8)
    return Sequences(rng.integers(0, 50, total).astype(np.int32), segments, positions, words, last, ends)


def random_model(width: int = 32, act: str = "gelu") -> CrossEncoder:
    # Three layers: what strict closes is seen by last pieces in the second and by [CLS] in the third.
    torch.manual_seed(1)
    model = CrossEncoder(Encoder(EncoderConfig(50, width, 3, 2, 64, 40, hidden_act=act)), 2, pooler=True)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    return model


LENGTHS = [9, 1, 33, 17, 2]


class TestGrid:
    @pytest.mark.parametrize("rule", RULES)
    def test_each_sequence_scores_as_it_does_alone(self, rule: AttentionRule) -> None:
        sequences = random_sequences(LENGTHS)
        engine = TorchEngine(random_model(), rule, device="cpu", budget=64)
        alone = [engine.logits(take_sequences(sequences, np.array([i])))[0] for i in range(len(sequences))]
        assert engine.logits(sequences) == pytest.approx(np.stack(alone), abs=1e-5)

    def test_the_rules_differ(self) -> None:
        sequences, model = random_sequences(LENGTHS), random_model()
        found = [TorchEngine(model, rule, device="cpu").logits(sequences) for rule in RULES]
        assert np.abs(found[0] - found[1]).max() > 1e-2
        assert np.abs(found[1] - found[2]).max() > 1e-2

    def test_nothing_to_score(self) -> None:
        nothing = take_sequences(random_sequences([4]), np.zeros(0, np.int64))
        assert TorchEngine(random_model(), "strm", device="cpu").logits(nothing).shape == (0, 2)

    def test_what_is_submitted_first_may_be_asked_for_last(self) -> None:
        one, two = random_sequences([5, 9]), random_sequences([7], seed=1)
        engine = TorchEngine(random_model(), "strm", device="cpu")
        first, second = engine.submit(one), engine.submit(two)
        assert np.array_equal(second(), engine.logits(two))
        assert np.array_equal(first(), engine.logits(one))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lengths", [[7], [30, 4, 19], [1 + (7 * number) % 38 for number in range(90)]])
def test_batches_side_by_side_give_what_they_give_one_after_the_other(rule: AttentionRule, lengths: list[int]) -> None:
    sequences = random_sequences(lengths)
    alone, beside = (TorchEngine(random_model(), rule, device="cpu", budget=200, lanes=lanes) for lanes in (1, 3))
    assert beside.tokens_at_once == 600
    np.testing.assert_allclose(beside.logits(sequences), alone.logits(sequences), atol=1e-6)


def test_batches_side_by_side_are_computed_by_one_thread_each_and_leave_other_work_its_own() -> None:
    own, seen = torch.get_num_threads(), set()
    engine = TorchEngine(random_model(), "full", device="cpu", budget=100, lanes=2)
    forward = engine._forward

    def noting(batch: Sequences) -> torch.Tensor:
        seen.add((threading.current_thread().name.startswith("rankwell-lane"), torch.get_num_threads()))
        assert torch.is_inference_mode_enabled()
        return forward(batch)

    engine._forward = noting  # type: ignore[method-assign]
    engine.logits(random_sequences([30] * 20))
    assert seen == {(True, 1)}
    assert torch.get_num_threads() == own


def test_an_error_in_one_of_several_batches_is_the_caller_s() -> None:
    engine = TorchEngine(random_model(), "full", device="cpu", budget=100, lanes=2)
    sequences = random_sequences([30] * 20)
    sequences.tokens[-1] = 1000  # no such token
    with pytest.raises(IndexError):
        engine.logits(sequences)


def failing(forward: Callable[[Any], Any], failures: int, sizes: list[int]) -> Callable[[Any], Any]:
    """``forward``, but the first calls run out of memory, as CUDA's allocator says it."""

    def call(batch: Sequences) -> Any:
        sizes.append(len(batch.tokens))
        if len(sizes) <= failures:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(batch)

    return call


class TestOutOfMemory:
    def test_the_budget_is_halved_once_and_loudly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sequences, model = random_sequences([16] * 8), random_model()
        expected = TorchEngine(model, "strm", device="cpu", budget=64, lanes=1).logits(sequences)
        engine = TorchEngine(model, "strm", device="cpu", budget=64, lanes=1)
        sizes: list[int] = []
        monkeypatch.setattr(engine, "_forward", failing(engine._forward, 1, sizes))
        with pytest.warns(UserWarning, match="out of GPU memory; continuing with 32 tokens at a time"):
            found = engine.logits(sequences)
        assert found == pytest.approx(expected, abs=1e-5)
        # The batch that failed, then all of it and of what follows in halves.
        assert sizes == [64, 32, 32, 32, 32]

    def test_one_sequence_cannot_be_halved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = TorchEngine(random_model(), "strm", device="cpu", budget=64, lanes=1)
        monkeypatch.setattr(engine, "_forward", failing(engine._forward, 1, []))
        with pytest.raises(torch.cuda.OutOfMemoryError):
            engine.logits(random_sequences([33]))
        assert engine.compute.budget == 64


@pytest.mark.skipif(not KERNELS_RUN, reason="no GPU, no interpreter")
class TestPacked:
    @pytest.mark.parametrize("rule", RULES)
    def test_packed_is_the_grid(self, rule: AttentionRule) -> None:
        sequences, model = random_sequences(LENGTHS), random_model()
        expected = TorchEngine(model, rule, device=DEVICE, dtype=torch.float32, packed=False).logits(sequences)
        # Budgets that cut the sequences into several batches, one of them a single sequence over the budget.
        engine = TorchEngine(model, rule, device=DEVICE, dtype=torch.float32, packed=True, budget=32)
        assert engine.compute.packed
        assert engine.logits(sequences) == pytest.approx(expected, abs=2e-5)

    def test_bf16_rounds_and_no_more(self) -> None:
        sequences = random_sequences(LENGTHS)
        expected = TorchEngine(random_model(), "strm", device=DEVICE, dtype=torch.float32, packed=False).logits(
            sequences
        )
        grid = TorchEngine(random_model(), "strm", device=DEVICE, dtype=torch.bfloat16, packed=False).logits(sequences)
        engine = TorchEngine(random_model(), "strm", device=DEVICE, dtype=torch.bfloat16, packed=True)
        found = engine.logits(sequences)
        assert np.abs(found - expected).max() < 2 * np.abs(grid - expected).max() + 0.05

    def test_gelu_within_the_product(self) -> None:
        # On a GPU it is the one with tanh; torch's product on the CPU takes the exact one.
        model = random_model(act="gelu_new" if DEVICE == "cuda" else "gelu")
        sequences = random_sequences(LENGTHS)
        exact = TorchEngine(model, "full", device=DEVICE, dtype=torch.float32, packed=False).logits(sequences)
        joined = TorchEngine(model, "full", device=DEVICE, dtype=torch.float32, packed=True, joined_gelu=True).logits(
            sequences
        )
        assert joined == pytest.approx(exact, abs=2e-5)

    def test_the_budget_is_halved_once_and_loudly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sequences, model = random_sequences([8] * 4), random_model()
        engine = TorchEngine(model, "strm", device=DEVICE, dtype=torch.float32, packed=True, budget=16)
        sizes: list[int] = []
        monkeypatch.setattr(engine, "_forward", failing(engine._forward, 1, sizes))
        with pytest.warns(UserWarning, match="out of GPU memory; continuing with 8 tokens at a time"):
            found = engine.logits(sequences)
        expected = TorchEngine(model, "strm", device=DEVICE, dtype=torch.float32, packed=False).logits(sequences)
        assert found == pytest.approx(expected, abs=2e-5)
        assert sizes == [16, 8, 8, 8, 8]

    def test_too_many_words_for_the_codes(self) -> None:
        sequences = random_sequences([4])
        sequences.words[:] = 1 << 15
        with pytest.raises(RankwellError, match="more than 32,768 words"):
            TorchEngine(random_model(), "strm", device=DEVICE, dtype=torch.float32, packed=True).logits(sequences)


def test_heads_the_kernels_do_not_know() -> None:
    with pytest.raises(RankwellError, match="its heads' size: 24"):
        TorchEngine(random_model(width=48), "full", device="cpu", packed=True)


def test_scoring_stored_tokens_needs_torch_and_numpy_alone() -> None:
    program = """
import sys
for name in ("numba", "Stemmer", "pydantic", "tokenizers", "transformers", "safetensors"):
    sys.modules[name] = None
import rankwell.models.kernels.triton_attention
from rankwell.rank.engines.torch_engine import TorchEngine
"""
    pytest.importorskip("triton")
    subprocess.run([sys.executable, "-c", program], check=True)
