"""Losses: hand-computed numbers and laws."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rankwell.core.errors import RankwellError
from rankwell.training.loop import losses
from rankwell.training.loop.losses import LOSSES, TWO_LABELS, Loss, make_loss

Numbers = list[list[float]]
SHIFTED = [name for name in LOSSES if name != "pointwise"]
DISTILLED = ["margin_mse", "kl"]
JUDGED = [name for name in LOSSES if name not in DISTILLED and name != "pointwise"]
# Every option away from its default, so that no law holds for the defaults only.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in LOSSES),
    ("hinge", {"margin": 0.3}),
    ("approx_ndcg", {"temperature": 1.0}),
    ("lambdaloss", {"mu": 0.0}),
    ("kl", {"temperature": 2.0}),
]


def value(name: str, scores: Numbers, labels: Numbers, **options: Any) -> float:
    return float(make_loss(name, **options)(double(scores), double(labels)))


def double(numbers: Numbers) -> Any:
    return torch.tensor(numbers, dtype=torch.float64)


def random_lists(seed: int, lists: int = 4, size: int = 6) -> tuple[Any, Any]:
    """Scores, and labels of four grades with every list having at least two."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(lists, size, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (lists, size), generator=generator).double()
    labels[:, 0], labels[:, 1] = 2.0, 0.0
    return scores, labels


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


class TestHandComputed:
    def test_pointwise_takes_probabilities_and_grades(self) -> None:
        assert value("pointwise", [[math.log(3)]], [[0.25]]) == pytest.approx(
            -0.25 * math.log(3 / 4) - 0.75 * math.log(1 / 4)
        )
        assert value("pointwise", [[0.7]], [[3]]) == value("pointwise", [[0.7]], [[1]])

    def test_hinge(self) -> None:
        # The positive 1.0 against 0.5, 2.0 and -3.0: 1 - 0.5, 1 + 1, and 1 - 4 which is right by more than the margin.
        assert value("hinge", [[1.0, 0.5, 2.0, -3.0]], [[1, 0, 0, 0]]) == pytest.approx((0.5 + 2 + 0) / 3)
        assert value("hinge", [[1.0, 0.5, 2.0, -3.0]], [[1, 0, 0, 0]], margin=5.0) == pytest.approx((4.5 + 6 + 1) / 3)

    def test_listwise(self) -> None:
        # exp: 1, 2, 4 and 1, together 8; positives the first and the third.
        scores = [[0.0, math.log(2), math.log(4), 0.0]]
        assert value("listwise", scores, [[1, 0, 1, 0]]) == pytest.approx(-(math.log(1 / 8) + math.log(4 / 8)) / 2)
        assert value("listwise", scores, [[3, 0, 1, 0]]) == value("listwise", scores, [[1, 0, 1, 0]])

    def test_listmle_of_ties(self) -> None:
        # exp: 1, 2, 4, 1; the first two share a label, so both are picked from all 8; the last two cost nothing.
        scores, labels = [[0.0, math.log(2), math.log(4), 0.0]], [[1.0, 1.0, 0.0, 0.0]]
        assert value("listmle", scores, labels) == pytest.approx(-math.log(1 / 8) - math.log(2 / 8))

    def test_approx_ndcg(self) -> None:
        # Smooth ranks of two documents a difference of 1 apart, at temperature 0.5: 1 + σ(∓2). Gains 3 and 1.
        first, second = 1 + sigmoid(-2), 1 + sigmoid(2)
        best = 3 / math.log2(2) + 1 / math.log2(3)
        right = 3 / math.log2(1 + first) + 1 / math.log2(1 + second)
        wrong = 1 / math.log2(1 + first) + 3 / math.log2(1 + second)
        assert value("approx_ndcg", [[1, 0]], [[2, 1]], temperature=0.5) == pytest.approx(1 - right / best)
        assert value("approx_ndcg", [[1, 0]], [[1, 2]], temperature=0.5) == pytest.approx(1 - wrong / best)

    def test_kl(self) -> None:
        # The teacher says 3/4 and 1/4, the student 1/2 and 1/2.
        expected = 3 / 4 * math.log(3 / 2) + 1 / 4 * math.log(1 / 2)
        assert value("kl", [[5.0, 5.0]], [[math.log(3), 0.0]]) == pytest.approx(expected)
        assert value("kl", [[5.0, 5.0]], [[2 * math.log(3), 0.0]], temperature=2.0) == pytest.approx(expected)


class TestRelations:
    def test_listwise_of_one_positive_is_the_cross_entropy_of_picking_it(self) -> None:
        scores, _ = random_lists(1)
        target = torch.tensor([3, 0, 5, 2])
        labels = torch.nn.functional.one_hot(target, 6)
        expected = torch.nn.functional.cross_entropy(scores, target)
        assert torch.allclose(LOSSES["listwise"](scores, labels), expected)
        assert torch.allclose(LOSSES["listmle"](scores, labels), expected)

    def test_pointwise_is_the_cross_entropy_of_two_logits(self) -> None:
        logits = torch.randn(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        target = torch.tensor([0, 1, 1, 0, 0, 1] * 2)
        scores = (logits[:, 1] - logits[:, 0]).view(3, 4)
        expected = torch.nn.functional.cross_entropy(logits, target)
        assert torch.allclose(LOSSES["pointwise"](scores, target.view(3, 4)), expected)

    def test_margin_mse_is_the_squared_error_of_the_margins(self) -> None:
        scores, _ = random_lists(3)
        teacher, _ = random_lists(4)
        pairs = torch.tensor(list(itertools.combinations(range(6), 2))).T

        def margins(x: Any) -> Any:
            return x[:, pairs[0]] - x[:, pairs[1]]

        expected = torch.nn.functional.mse_loss(margins(scores), margins(teacher))
        assert torch.allclose(LOSSES["margin_mse"](scores, teacher), expected)

    def test_listmle_of_ties_bounds_the_sum_over_their_orders(self) -> None:
        # Sharing the sum takes every factor's denominator too large, by at most a factor of n for n ties.
        scores, labels = [[0.3, -0.2, 1.1, 0.4]], [[1.0, 1.0, 0.0, 0.0]]
        exact = 0.0
        for a, b in ((0, 1), (1, 0)):
            rest = [math.exp(s) for s in scores[0]]
            exact += rest[a] / sum(rest) * rest[b] / (sum(rest) - rest[a])
        shared = math.exp(-value("listmle", scores, labels))
        assert shared < exact / 2 < 1.5 * shared

    def test_low_temperatures_make_approx_ndcg_exact(self) -> None:
        # By score: grades 0, 2, 1.
        dcg = 3 / math.log2(3) + 1 / math.log2(4)
        best = 3 / math.log2(2) + 1 / math.log2(3)
        found = value("approx_ndcg", [[0.1, 0.2, 0.3]], [[1, 2, 0]], temperature=1e-3)
        assert found == pytest.approx(1 - dcg / best)

    @pytest.mark.parametrize("name", LOSSES)
    def test_a_better_order_costs_less(self, name: str) -> None:
        labels = [[2.0, 1.0, 0.0, 0.0]]
        assert value(name, [[2.0, 1.0, 0.0, 0.0]], labels) < value(name, [[0.0, 0.0, 1.0, 2.0]], labels)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=lambda part: str(part))
class TestLaws:
    def test_the_gradient_is_that_of_the_value(self, name: str, options: dict[str, Any]) -> None:
        scores, labels = random_lists(6)
        chosen = make_loss(name, **options)
        assert torch.autograd.gradcheck(lambda s: chosen.per_list(s, labels), scores.requires_grad_())
        assert torch.autograd.grad(chosen(scores, labels), scores)[0].abs().sum() > 0

    def test_lists_weigh_the_same_in_whatever_parts_they_come(self, name: str, options: dict[str, Any]) -> None:
        scores, labels = random_lists(7, lists=5)
        labels[2] = 1.0  # A list that some losses cannot use counts all the same.
        chosen = make_loss(name, **options)
        parts = [chosen(scores[part], labels[part]) * len(scores[part]) for part in (slice(0, 2), slice(2, 5))]
        assert torch.allclose(sum(parts) / 5, chosen(scores, labels))

    def test_the_order_of_a_list_does_not_matter(self, name: str, options: dict[str, Any]) -> None:
        scores, labels = random_lists(8)
        order = torch.tensor([4, 2, 0, 5, 1, 3])
        chosen = make_loss(name, **options)
        assert torch.allclose(chosen(scores[:, order], labels[:, order]), chosen(scores, labels))

    def test_only_differences_of_scores_matter(self, name: str, options: dict[str, Any]) -> None:
        scores, labels = random_lists(9)
        chosen = make_loss(name, **options)
        same = torch.allclose(chosen(scores + 7.0, labels), chosen(scores, labels))
        assert same == (name in SHIFTED)

    @pytest.mark.parametrize("size", [2, 1000])
    def test_extreme_scores_and_long_lists_are_finite(self, name: str, options: dict[str, Any], size: int) -> None:
        scores = torch.tensor([-1e4, 1e4]).repeat(2, size // 2)
        scores[1] = -scores[1]
        labels = torch.zeros(2, size)
        labels[:, 0] = 1.0
        scores.requires_grad_()
        found = make_loss(name, **options)(scores, labels)
        (gradient,) = torch.autograd.grad(found, scores)
        assert found.isfinite()
        assert gradient.isfinite().all()

    def test_half_precision_is_computed_in_full(self, name: str, options: dict[str, Any]) -> None:
        scores, labels = random_lists(10)
        short = scores.bfloat16().requires_grad_()
        chosen = make_loss(name, **options)
        found = chosen(short, labels.bfloat16())
        assert found.dtype == torch.float32
        assert float(found.detach()) == pytest.approx(float(chosen(short.detach().double(), labels)), rel=1e-4)
        assert torch.autograd.grad(found, short)[0].dtype == torch.bfloat16

    def test_what_it_is_given_stays_as_it_is(self, name: str, options: dict[str, Any]) -> None:
        scores, labels = random_lists(11)
        before = scores.clone(), labels.clone()
        make_loss(name, **options)(scores, labels)
        assert torch.equal(scores, before[0])
        assert torch.equal(labels, before[1])


class TestNeeds:
    @pytest.mark.parametrize("name", JUDGED)
    @pytest.mark.parametrize("label", [0.0, 1.0])
    def test_a_list_of_one_label_costs_exactly_nothing(self, name: str, label: float) -> None:
        scores, labels = random_lists(12)
        labels[1] = label
        scores.requires_grad_()
        chosen = LOSSES[name]
        assert chosen.needs.met(labels).tolist() == [True, False, True, True]
        costs = chosen.per_list(scores, labels)
        (gradient,) = torch.autograd.grad(costs.sum(), scores)
        assert costs[1] == 0
        assert (gradient[1] == 0).all()
        assert (costs[[0, 2, 3]] > 0).all()
        alone = chosen(scores[1:2], labels[1:2])
        assert alone == 0
        assert (torch.autograd.grad(alone, scores)[0] == 0).all()

    @pytest.mark.parametrize("name", DISTILLED)
    def test_a_teacher_needs_two_documents(self, name: str) -> None:
        scores = torch.ones(3, 1, requires_grad=True)
        found = LOSSES[name](scores, torch.zeros(3, 1))
        assert found == 0
        assert (torch.autograd.grad(found, scores)[0] == 0).all()
        assert LOSSES[name].needs.meaning == "at least two documents"
        assert not LOSSES[name].needs.met(torch.zeros(3, 1)).any()
        assert LOSSES[name].needs.met(torch.zeros(3, 2)).all()

    def test_pointwise_needs_nothing(self) -> None:
        assert LOSSES["pointwise"].needs.met(torch.zeros(2, 1)).all()

    def test_listwise_needs_a_document_that_is_not_relevant(self) -> None:
        labels = torch.tensor([[1.0, 2.0], [2.0, 0.0], [0.0, 0.0]])
        assert LOSSES["listwise"].needs.met(labels).tolist() == [False, True, False]
        assert LOSSES["ranknet"].needs.met(labels).tolist() == [True, True, False]

    def test_a_broken_score_is_not_hidden(self) -> None:
        for name in LOSSES:
            assert LOSSES[name](torch.tensor([[float("nan"), 0.0]]), torch.tensor([[1.0, 0.0]])).isnan(), name


class TestChance:
    def test_softmax_over_a_list_is_its_logarithm(self) -> None:
        assert LOSSES["listwise"].chance(torch.tensor([[1.0, 0, 0, 0, 0, 0]])) == pytest.approx(math.log(6))
        assert LOSSES["listwise"].chance(torch.tensor([[1.0, 1, 0, 0, 0, 0]])) == pytest.approx(math.log(6))

    def test_pointwise_is_the_entropy_of_the_share_of_positives(self) -> None:
        expected = -math.log(1 / 4) / 4 - math.log(3 / 4) * 3 / 4
        assert LOSSES["pointwise"].chance(torch.tensor([[1.0, 0, 0, 0]])) == pytest.approx(expected)

    def test_lambdaloss_is_the_mean_over_all_orders(self) -> None:
        # The positive stands first in the list, but a model that scores all alike does not know that.
        orders = [[float(place) for place in order] for order in itertools.permutations(range(4))]
        scores = 1e-9 * double(orders)
        labels = double([[1, 0, 0, 0]])
        expected = float(LOSSES["lambdaloss"](scores, labels.expand(24, 4)))
        assert LOSSES["lambdaloss"].chance(labels) == pytest.approx(expected, rel=0.01)
        assert value("lambdaloss", [[0.0] * 4], [[1, 0, 0, 0]]) != pytest.approx(expected, rel=0.05)

    def test_hinge_is_its_margin(self) -> None:
        assert make_loss("hinge", margin=0.5).chance(torch.tensor([[1.0, 0, 0, 0]])) == pytest.approx(0.5)


class TestMaking:
    def test_options_change_a_copy(self) -> None:
        chosen = make_loss("hinge", margin=0.5)
        assert str(chosen) == "hinge(margin=0.5)"
        assert str(LOSSES["hinge"]) == "hinge"
        assert make_loss("hinge", margin="2").options["margin"] == 2.0

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            ("lambda", {}, "no loss is called 'lambda'; did you mean lambdaloss?"),
            ("listwise", {"margin": 1}, "the loss listwise has no option 'margin' (it has: none)"),
            ("hinge", {"margn": 1}, "the loss hinge has no option 'margn' (it has: margin)"),
            ("hinge", {"margin": -1}, "hinge(margin=-1): margin must be a positive number"),
            ("hinge", {"margin": "wide"}, "hinge(margin=wide): margin must be a positive number"),
            ("hinge", {"margin": float("nan")}, "hinge(margin=nan): margin must be a positive number"),
            ("hinge", {"margin": True}, "hinge(margin=True): margin must be a positive number"),
            ("hinge", {"margin": None}, "hinge(margin=None): margin must be a positive number"),
            ("hinge", {"margin": [1]}, "hinge(margin=[1]): margin must be a positive number"),
            ("lambdaloss", {"mu": -1}, "lambdaloss(mu=-1): mu must be a number of 0 or more"),
        ],
    )
    def test_a_mistake_is_one_line(self, name: str, options: dict[str, Any], message: str) -> None:
        with pytest.raises(RankwellError) as caught:
            make_loss(name, **options)
        assert str(caught.value).startswith(message)
        assert "\n" not in str(caught.value)

    def test_an_option_of_a_users_loss_takes_values_of_its_defaults_type(self) -> None:
        own = Loss("own", lambda scores, labels: scores.sum(1), TWO_LABELS, {"floor": 0.5, "count": 3, "how": "sum"})
        read = {name: losses._read_option(own, name, value) for name, value in (("floor", 2), ("count", "4"))}
        assert read == {"floor": 2.0, "count": 4}
        assert losses._read_option(own, "how", "mean") == "mean"
        with pytest.raises(RankwellError, match=r"own\(floor=low\): floor must be a number"):
            losses._read_option(own, "floor", "low")

    def test_shapes_that_do_not_fit(self) -> None:
        with pytest.raises(ValueError, match=r"must both be \(B, N\), found \(3,\) and \(3,\)"):
            LOSSES["hinge"](torch.zeros(3), torch.zeros(3))
        with pytest.raises(ValueError, match=r"found \(2, 3\) and \(3, 2\)"):
            LOSSES["hinge"](torch.zeros(2, 3), torch.zeros(3, 2))

    def test_every_loss_and_option_is_on_its_page(self) -> None:
        text = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text(encoding="utf-8")
        named = [part for name, chosen in LOSSES.items() for part in (name, *chosen.options)]
        assert [part for part in named if f"`{part}`" not in text] == []
