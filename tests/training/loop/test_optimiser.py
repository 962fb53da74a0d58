"""The optimiser: who decays, who learns how fast, the schedule's numbers, and a state that survives."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from rankwell.core.errors import RankwellError
from rankwell.models.checkpoints.folders import load_checkpoint
from rankwell.training.loop.optimiser import (
    learning_rate_at,
    load_optimiser_tensors,
    make_optimiser,
    optimiser_tensors,
    warm_up_steps,
)
from rankwell.training.options import TrainingOptions

CPU = torch.device("cpu")


@pytest.fixture
def model(tiny_checkpoint: Path) -> Any:
    """A cross-encoder of two layers, with a pooler."""
    return load_checkpoint(tiny_checkpoint)[0]


def settings(optimiser: Any, key: str) -> dict[str, float]:
    """A setting of each parameter, by name."""
    return {name: group[key] for group in optimiser.param_groups for name in group["names"]}


class TestParameters:
    def test_each_is_there_once_under_its_name(self, model: Any) -> None:
        optimiser = make_optimiser(model, TrainingOptions(), CPU)
        found = {
            name: parameter
            for group in optimiser.param_groups
            for name, parameter in zip(group["names"], group["params"], strict=True)
        }
        expected = dict(model.named_parameters())
        assert found.keys() == expected.keys()
        assert all(found[name] is parameter for name, parameter in expected.items())
        assert sum(len(group["params"]) for group in optimiser.param_groups) == len(expected)

    def test_biases_and_norms_do_not_decay(self, model: Any) -> None:
        decays = settings(make_optimiser(model, TrainingOptions(weight_decay=0.05), CPU), "weight_decay")
        free = {name for name, decay in decays.items() if decay == 0}
        layer = ["qkv.bias", "mix.bias", "mix_norm.weight", "mix_norm.bias", "inner.bias", "outer.bias"]
        layer += ["outer_norm.weight", "outer_norm.bias"]
        assert free == {
            *(f"encoder.layers.{number}.{name}" for number in (0, 1) for name in layer),
            *("encoder.norm.weight", "encoder.norm.bias", "pooler.bias", "head.bias"),
        }
        assert {decay for name, decay in decays.items() if name not in free} == {0.05}
        assert "encoder.tokens.weight" not in free

    def test_those_of_other_layers_with_biases_do_not_decay_either(self) -> None:
        decays = settings(make_optimiser(torch.nn.LSTM(2, 3), TrainingOptions(), CPU), "weight_decay")
        assert decays == {"weight_ih_l0": 0.01, "weight_hh_l0": 0.01, "bias_ih_l0": 0.0, "bias_hh_l0": 0.0}

    def test_frozen_ones_are_left_out_and_shared_ones_come_once(self, model: Any) -> None:
        model.encoder.positions.weight.requires_grad_(False)
        model.again = model.encoder.tokens
        names = settings(make_optimiser(model, TrainingOptions(), CPU), "scale").keys()
        assert "encoder.positions.weight" not in names
        assert [name for name in names if "again" in name or "tokens" in name] == ["encoder.tokens.weight"]
        with pytest.raises(RankwellError, match="no parameter to train"):
            make_optimiser(model.requires_grad_(False), TrainingOptions(), CPU)

    def test_the_head_may_learn_faster(self, model: Any) -> None:
        scales = settings(make_optimiser(model, TrainingOptions(head_scale=10.0), CPU), "scale")
        assert {name for name, scale in scales.items() if scale == 10.0} == {"head.weight", "head.bias"}
        assert {scale for name, scale in scales.items() if not name.startswith("head")} == {1.0}

    def test_a_step_is_adamws(self) -> None:
        # The first step of AdamW moves by the rate against the gradient's sign, after decaying by rate × decay.
        layer = torch.nn.Linear(1, 1)
        with torch.no_grad():
            layer.weight.fill_(2.0)
            layer.bias.fill_(2.0)
        optimiser = make_optimiser(layer, TrainingOptions(learning_rate=0.1, weight_decay=0.5), CPU)
        (layer.weight * 3 + layer.bias * -4).sum().backward()
        optimiser.step()
        assert float(layer.weight.detach()) == pytest.approx(2.0 * (1 - 0.1 * 0.5) - 0.1)
        assert float(layer.bias.detach()) == pytest.approx(2.0 + 0.1)


class TestSchedule:
    def test_linear(self) -> None:
        options = TrainingOptions(learning_rate=8.0, warm_up=4)
        found = [learning_rate_at(step, 12, options) for step in range(13)]
        assert found == [2, 4, 6, 8, 8, 7, 6, 5, 4, 3, 2, 1, 0]

    def test_cosine(self) -> None:
        options = TrainingOptions(learning_rate=2.0, warm_up=1, schedule="cosine")
        found = [learning_rate_at(step, 5, options) for step in range(6)]
        half = math.sqrt(0.5)
        assert found == pytest.approx([2, 2, 1 + half, 1, 1 - half, 0])

    def test_constant(self) -> None:
        options = TrainingOptions(learning_rate=3.0, warm_up=2, schedule="constant")
        assert [learning_rate_at(step, 5, options) for step in range(5)] == [1.5, 3, 3, 3, 3]

    def test_the_warm_up_is_a_share_or_a_number_of_steps(self) -> None:
        assert warm_up_steps(30, TrainingOptions(warm_up=0.1)) == 3
        assert warm_up_steps(30, TrainingOptions(warm_up=1)) == 1
        assert warm_up_steps(30, TrainingOptions(warm_up=10)) == 10
        assert learning_rate_at(0, 10, TrainingOptions(learning_rate=1.0, warm_up=0)) == 1.0

    @pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
    def test_a_run_shorter_than_its_warm_up_only_rises(self, schedule: Any) -> None:
        options = TrainingOptions(learning_rate=1.0, warm_up=8, schedule=schedule)
        assert [learning_rate_at(step, 3, options) for step in range(3)] == [1 / 8, 2 / 8, 3 / 8]
        assert learning_rate_at(0, 1, TrainingOptions(learning_rate=1.0, schedule=schedule)) == 1.0


class TestOptions:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"learning_rate": 0.0},
            {"learning_rate": math.nan},
            {"learning_rate": math.inf},
            {"weight_decay": -0.1},
            {"warm_up": -1},
            {"schedule": "step"},
            {"clip": -1.0},
            {"head_scale": 0.0},
        ],
    )
    def test_a_wrong_value_is_named(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            TrainingOptions(**wrong)


class Training:
    """A few steps on fixed random batches, of which each is a function of its number."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 1))
        self.model.register_parameter("unused", torch.nn.Parameter(torch.ones(2)))
        self.optimiser = make_optimiser(self.model, TrainingOptions(learning_rate=0.05), CPU)

    def run(self, begin: int, end: int) -> None:
        for step in range(begin, end):
            for group in self.optimiser.param_groups:
                group["lr"] = learning_rate_at(step, 20, TrainingOptions(learning_rate=0.05)) * group["scale"]
            batch = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
            self.optimiser.zero_grad()
            self.model(batch).square().mean().backward()
            self.optimiser.step()

    def weights(self) -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}


class TestState:
    def test_training_continues_bit_for_bit(self, tmp_path: Path) -> None:
        whole, first, second = Training(), Training(), Training()
        whole.run(0, 20)
        first.run(0, 9)
        save_file(optimiser_tensors(first.optimiser), tmp_path / "state.safetensors")
        second.model.load_state_dict(first.weights())
        load_optimiser_tensors(second.optimiser, load_file(tmp_path / "state.safetensors"))
        second.run(9, 20)
        expected, found = whole.weights(), second.weights()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
        # Without the state it would not be so.
        second.model.load_state_dict(first.weights())
        fresh = make_optimiser(second.model, TrainingOptions(learning_rate=0.05), CPU)
        second.optimiser = fresh
        second.run(9, 20)
        assert not torch.equal(second.weights()["0.weight"], expected["0.weight"])

    def test_the_round_trip_is_exact(self) -> None:
        first, second = Training(), Training()
        first.run(0, 3)
        saved = optimiser_tensors(first.optimiser)
        trained = [name for name, parameter in first.model.named_parameters() if name != "unused"]
        kinds = ("exp_avg", "exp_avg_sq", "step")
        assert sorted(saved) == sorted(f"{name}/{kind}" for name in trained for kind in kinds)
        load_optimiser_tensors(second.optimiser, saved)
        again = optimiser_tensors(second.optimiser)
        assert again.keys() == saved.keys()
        assert all(torch.equal(again[key], tensor) for key, tensor in saved.items())
        # And is a copy: going on with the one does not touch the other.
        before = saved["0.weight/exp_avg"].clone()
        second.run(3, 5)
        assert torch.equal(saved["0.weight/exp_avg"], before)

    def test_nothing_before_the_first_step(self) -> None:
        training = Training()
        assert optimiser_tensors(training.optimiser) == {}
        load_optimiser_tensors(training.optimiser, {})
        training.run(0, 1)
        assert optimiser_tensors(training.optimiser)

    def test_another_models_state_is_refused(self) -> None:
        training = Training()
        with pytest.raises(ValueError, match=r"has no parameter 'encoder\.weight'"):
            load_optimiser_tensors(training.optimiser, {"encoder.weight/exp_avg": torch.zeros(2)})
        with pytest.raises(ValueError, match=r"0\.weight/exp_avg has the shape \(5, 7\), expected \(7, 5\)"):
            load_optimiser_tensors(training.optimiser, {"0.weight/exp_avg": torch.zeros(5, 7)})
