"""Engines: from sequences to logits in the order given, and from logits to scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rankwell.core.errors import RankwellError
from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.inputs.templates import Template, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.folders import load_checkpoint
from rankwell.rank.engines.engine import BACKENDS, Engine, LoadedModel, load, probability, relevance
from rankwell.rank.engines.torch_engine import TorchEngine
from rankwell.rank.ranker import Ranker

LOGITS = st.integers(1, 2).flatmap(
    lambda width: arrays.arrays(np.float32, (4, width), elements=st.floats(-80, 80, width=32))
)


class TestScores:
    def test_two_logits_by_hand(self) -> None:
        logits = np.array([[0, 0], [1, 3], [3, 1]], np.float32)
        chances = [0.5, 1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))]
        assert probability(logits) == pytest.approx(chances, rel=1e-6)
        assert relevance(logits) == pytest.approx(np.log(chances), rel=1e-6)

    def test_one_score_by_hand(self) -> None:
        logits = np.array([[0], [2], [-2]], np.float32)
        assert relevance(logits).tolist() == [0, 2, -2]
        assert probability(logits) == pytest.approx([0.5, 1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))], rel=1e-6)

    def test_extreme_logits_neither_overflow_nor_lose_their_order(self) -> None:
        logits = np.array([[300, -300], [200, -200], [-300, 300]], np.float32)
        with np.errstate(all="raise", under="ignore"):
            assert relevance(logits).tolist() == [-600, -400, 0]
            assert probability(logits[1:]).tolist() == [0, 1]

    @given(LOGITS)
    def test_agree_with_torchs_softmax(self, logits: Any) -> None:
        torch = pytest.importorskip("torch")
        one, of_two = logits.shape[1] == 1, torch.from_numpy(logits).log_softmax(dim=1)
        assert relevance(logits) == pytest.approx(logits[:, 0] if one else of_two[:, 1].numpy(), rel=1e-5, abs=1e-6)

    @given(LOGITS)
    def test_probabilities_are_in_the_order_of_scores(self, logits: Any) -> None:
        scores, chances = relevance(logits), probability(logits)
        assert np.all((chances >= 0) & (chances <= 1))
        assert np.all(np.diff(chances[np.argsort(scores, kind="stable")]) >= -1e-6)


@pytest.fixture(scope="module")
def loaded(tiny_checkpoint: Path) -> Any:
    return load_checkpoint(tiny_checkpoint)


@pytest.fixture(scope="module")
def sequences(loaded: Any) -> Any:
    """Pairs of many lengths, in no order."""
    tokenizer = loaded[1]
    counts = [3, 40, 0, 17, 40, 1, 60, 5, 22, 9]
    fields = {
        "query": tokenizer.encode([f"bogue {count}" for count in counts]),
        "document": tokenizer.encode(["insouciantly bank " * count for count in counts]),
    }
    return lay_out_pairs(Template(max_length=180), tokenizer.special, fields)


class TestTorchEngine:
    @staticmethod
    def engine(loaded: Any, rule: str = "strm", **options: Any) -> Any:
        return TorchEngine(loaded[0], rule, device="cpu", **options)

    @pytest.mark.parametrize("budget", [1, 180, 400, 1 << 20])
    def test_a_budget_changes_no_score(self, loaded: Any, sequences: Any, budget: int) -> None:
        one_by_one = self.engine(loaded, budget=1).logits(sequences)
        found = self.engine(loaded, budget=budget).logits(sequences)
        assert found.dtype == np.float32
        assert found.shape == (len(sequences), 2)
        assert np.abs(found - one_by_one).max() < 1e-5

    def test_logits_are_in_the_order_given(self, loaded: Any, sequences: Any) -> None:
        engine = self.engine(loaded, budget=200)
        order = np.random.default_rng(7).permutation(len(sequences))
        found = engine.logits(take_sequences(sequences, order))
        assert np.abs(found - engine.logits(sequences)[order]).max() < 1e-5
        assert len(np.unique(found.round(4), axis=0)) > 5, "the scores must differ for this to say anything"

    def test_scoring_keeps_no_gradients(self, loaded: Any, sequences: Any) -> None:
        self.engine(loaded).logits(sequences)
        assert all(parameter.grad is None for parameter in loaded[0].parameters())
        assert not loaded[0].training


class Longest(Engine):
    """Scores a pair by its number of tokens."""

    def logits(self, sequences: Sequences) -> Any:
        return sequences.lengths().astype(np.float32)[:, None]


def test_a_registered_backend_ranks(tiny_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKENDS, "_parts", dict(BACKENDS))

    @BACKENDS.register("longest")
    def load_longest(folder: Path, changes: Any, options: Any) -> LoadedModel:
        return LoadedModel(Longest(), Tokenizer.open(folder), RankerConfig().changed(changes), 2)

    ranker = Ranker.from_pretrained(tiny_tokenizer, backend="longest")
    found = ranker.rank("bank", ["honey", "the bees keep warm", "tea and honey"])
    assert [entry["corpus_id"] for entry in found] == [1, 2, 0]
    engine = ranker.engine
    assert (engine.device, engine.precision, engine.explainable) == ("cpu", "fp32", False)


def test_the_known_backends_are_named(tiny_checkpoint: Path) -> None:
    with pytest.raises(RankwellError, match=r"no backend is called 'tensorflow' \(known: onnx, torch\)"):
        load(tiny_checkpoint, "tensorflow", {}, {})
