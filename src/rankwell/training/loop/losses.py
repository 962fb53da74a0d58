"""Losses as pure functions of scores and labels: what a list of N documents costs.

A loss is one function of ``scores`` (B, N) and ``labels`` (B, N) that gives the cost of each list (B,), filed by one
decorator line; its keyword-only arguments are its options. :data:`LOSSES` holds them as :class:`Loss` values, which
give the mean over the B lists, each list weighing the same. So the loss of a batch is the weighted mean of its parts'
losses, whatever the parts, which training in chunks and on several processes relies on.

A list that lacks what a loss needs (``Loss.needs``), say one of negatives only, costs exactly 0 and has a gradient of
exactly 0, and still counts among the B. Relevant means a label above 0. Scores are computed in at least fp32.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from rankwell.core.errors import RankwellError, excerpt
from rankwell.core.registry import Domain, Registry, Value

CHANCE_LISTS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """What a list must have to teach anything: ``met`` maps labels (B, N) to (B,) truths."""

    meaning: str
    met: Callable[[Tensor], Tensor]


ANYTHING = Need("any document", lambda labels: torch.ones_like(labels[:, 0], dtype=torch.bool))
TWO_DOCUMENTS = Need(
    "at least two documents", lambda labels: torch.full_like(labels[:, 0], labels.shape[1] > 1, dtype=torch.bool)
)
TWO_LABELS = Need("two documents with different labels", lambda labels: labels.amax(1) > labels.amin(1))
BOTH_KINDS = Need("a relevant document and one that is not", lambda labels: (labels > 0).any(1) & ~(labels > 0).all(1))

_POSITIVE = Domain(float, lambda value: 0 < value < 1e6, "a positive number", 1.0)
OPTIONS: Mapping[str, Domain] = MappingProxyType(
    {
        "margin": _POSITIVE,
        "temperature": _POSITIVE,
        "mu": Domain(float, lambda value: 0 <= value < 1e6, "a number of 0 or more", 10.0),
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """A loss with its options. Prints as ``hinge(margin=0.5)``."""

    name: str
    compute: Callable[..., Tensor]
    needs: Need
    options: Mapping[str, Value]

    def per_list(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The cost of each list: (B, N), (B, N) → (B,)."""
        if scores.ndim != 2 or scores.shape != labels.shape or not scores.numel():
            shapes = f"{tuple(scores.shape)} and {tuple(labels.shape)}"
            raise ValueError(f"{self.name}: scores and labels must both be (B, N), found {shapes}")
        precise = torch.promote_types(scores.dtype, torch.float32)
        scores, labels = scores.to(precise), labels.to(precise)
        costs = self.compute(scores, labels, **self.options)
        return torch.where(self.needs.met(labels), costs, 0.0)

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean over the lists: (B, N), (B, N) → a scalar."""
        return self.per_list(scores, labels).mean()

    def chance(self, labels: Tensor) -> float:
        """The loss of a model that scores all documents alike: ln N for ``listwise``, what a collapsed model gets.

        The one score is the labels' log-odds, which matters to ``pointwise`` alone: the others know differences only.
        Ties are broken by chance, which matters to ``lambdaloss`` alone. Up to 1024 lists are looked at.
        """
        labels = labels[:CHANCE_LISTS].double().cpu()
        share = labels.clamp(0, 1).mean().clamp(1e-6, 1 - 1e-6)
        # Few lists come often, each time in another order.
        labels = labels.repeat(CHANCE_LISTS // len(labels), 1)
        breaks = 1e-9 * torch.rand(labels.shape, dtype=torch.double, generator=torch.Generator().manual_seed(0))
        return float(self(torch.logit(share) + breaks, labels))

    def __str__(self) -> str:
        defaults = LOSSES[self.name].options
        changed = ", ".join(f"{name}={value}" for name, value in self.options.items() if value != defaults[name])
        return f"{self.name}({changed})" if changed else self.name

    __repr__ = __str__


LOSSES: Registry[Loss] = Registry("loss")


def loss(name: str, needs: Need) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Decorator: file a function of scores and labels (B, N) that gives costs (B,) as the loss ``name``.

    Its keyword-only arguments are the loss's options. :data:`OPTIONS` has the values of those that ship; any other
    option takes values of its default's type.
    """

    def file(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
        arguments = inspect.signature(compute).parameters.values()
        defaults = {a.name: a.default for a in arguments if a.kind is inspect.Parameter.KEYWORD_ONLY}
        LOSSES.register(name)(Loss(name, compute, needs, MappingProxyType(defaults)))
        return compute

    return file


def make_loss(name: str, **options: Value) -> Loss:
    """The loss ``name`` with these options, checked.

    >>> make_loss("hinge", margin=0.5)
    hinge(margin=0.5)
    """
    plain = LOSSES[name]
    read = {option: _read_option(plain, option, value) for option, value in options.items()}
    return replace(plain, options=MappingProxyType({**plain.options, **read}))


def _read_option(chosen: Loss, name: str, value: object) -> Value:
    if name not in chosen.options:
        known = ", ".join(chosen.options) or "none"
        raise RankwellError(f"the loss {chosen.name} has no option {excerpt(name)} (it has: {known})")
    domain = OPTIONS.get(name) or _like(chosen.options[name])
    # A truth value is a number to Python, but `margin: yes` is a slip.
    plain = isinstance(value, int | float | str) and not isinstance(value, bool)
    read = domain.read(value) if plain else None  # type: ignore[arg-type]
    if read is None:
        raise RankwellError(f"{chosen.name}({name}={value}): {name} must be {domain.meaning}")
    return read


def _like(default: Value) -> Domain:
    """Values for an option of a user's own loss: those of its default's type."""
    if isinstance(default, str):
        return Domain(str, lambda value: True, "text", default)
    if isinstance(default, int):
        return Domain(int, lambda value: True, "a whole number", default)
    return Domain(float, lambda value: True, "a number", default)


# One document at a time


@loss("pointwise", ANYTHING)
def pointwise(scores: Tensor, labels: Tensor) -> Tensor:
    """Binary cross entropy, the mean over the list's pairs: −y log σ(s) − (1−y) log(1−σ(s)).

    | scores (B, N)                      | labels (B, N)                                         | costs |
    |------------------------------------|-------------------------------------------------------|-------|
    | log-odds: l₁ − l₀, or the one score | 1, 0, or p(relevant) between; grades above 1 count as 1 | (B,)  |

    It *is* the cross entropy of two logits: with s = l₁ − l₀, −log softmax(l)₁ = log(1 + exp(l₀ − l₁)) = −log σ(s) and
    −log softmax(l)₀ = log(1 + exp(l₁ − l₀)) = −log(1 − σ(s)).

    Prefer it as a first stage, and where probabilities are wanted (noise reduction). Nogueira and Cho, 2019 (monoBERT).
    """
    return functional.binary_cross_entropy_with_logits(scores, labels.clamp(0, 1), reduction="none").mean(1)


# Pairs of documents


@loss("hinge", TWO_LABELS)
def hinge(scores: Tensor, labels: Tensor, *, margin: float = 1.0) -> Tensor:
    """max(0, margin − (sᵢ − sⱼ)), the mean over the list's pairs with yᵢ > yⱼ.

    | scores (B, N) | labels (B, N)            | costs |
    |---------------|--------------------------|-------|
    | any           | grades; only order counts | (B,)  |

    Prefer it for small models on frozen features (papers/ccnu): pairs that are right by the margin teach nothing.
    Herbrich, Graepel and Obermayer, 2000; Joachims, 2002.
    """
    return _mean_where(functional.relu(margin - _differences(scores)), _better(labels))


@loss("ranknet", TWO_LABELS)
def ranknet(scores: Tensor, labels: Tensor) -> Tensor:
    """log(1 + exp(−(sᵢ − sⱼ))), the mean over the list's pairs with yᵢ > yⱼ: the hinge's smooth sister.

    | scores (B, N) | labels (B, N)            | costs |
    |---------------|--------------------------|-------|
    | any           | grades; only order counts | (B,)  |

    Prefer it for graded labels whose distances mean nothing. For one pair it equals ``listwise``. Burges et al., 2005.
    """
    return _mean_where(functional.softplus(-_differences(scores)), _better(labels))


@loss("lambdaloss", TWO_LABELS)
def lambdaloss(scores: Tensor, labels: Tensor, *, mu: float = 10.0) -> Tensor:
    """LambdaLoss, NDCG-Loss2++: RankNet's pairs, in bits, weighted by what they are worth to nDCG.

    −(μ δᵢⱼ + ρᵢⱼ) |Gᵢ − Gⱼ| log₂ σ(sᵢ − sⱼ), the mean over the list's pairs with yᵢ > yⱼ; G are gains over the best
    DCG, πᵢ the rank of i by score, D(r) = log₂(1 + r), ρᵢⱼ = |1/D(πᵢ) − 1/D(πⱼ)|, δᵢⱼ = |1/D(d) − 1/D(d + 1)| with
    d = |πᵢ − πⱼ|. μ = 0 leaves ρ alone: LambdaRank. Weights are constants to the gradient. (The paper adds the pairs
    up; a mean does not grow with the list.)

    | scores (B, N) | labels (B, N)            | costs |
    |---------------|--------------------------|-------|
    | any           | grades ≥ 0; gain 2^y − 1 | (B,)  |

    Prefer it for graded labels and lists of ten and more, where nDCG is the aim. Equal scores are ranked in the list's
    order. Wang, Li, Golbandi, Bendersky and Najork, 2018; LambdaRank: Burges, Ragno and Le, 2006.
    """
    gains = _gains(labels)
    gains = gains / _best_dcg(gains)
    order = scores.detach().argsort(dim=1, descending=True, stable=True)
    ranks = order.argsort(dim=1) + 1
    discounts = 1 / torch.log2(1 + ranks.to(scores.dtype))
    apart = (ranks[:, :, None] - ranks[:, None, :]).abs().clamp(min=1).to(scores.dtype)
    weights = mu * (1 / torch.log2(1 + apart) - 1 / torch.log2(2 + apart)) + _differences(discounts).abs()
    bits = functional.softplus(-_differences(scores)) / math.log(2)
    return _mean_where(weights * _differences(gains).abs() * bits, _better(labels))


@loss("margin_mse", TWO_DOCUMENTS)
def margin_mse(scores: Tensor, labels: Tensor) -> Tensor:
    """Distillation: ((sᵢ − sⱼ) − (tᵢ − tⱼ))², the mean over the list's pairs i < j; t are a teacher's scores.

    | scores (B, N) | labels (B, N)    | costs |
    |---------------|------------------|-------|
    | any           | teacher's scores | (B,)  |

    Prefer it where a stronger ranker has scored the training pairs, on the scale the student is to have.
    Hofstätter, Althammer, Schröder, Sertkan and Hanbury, 2020.
    """
    errors = scores - labels
    # Σ_{i<j} (eᵢ − eⱼ)² = N Σ (eᵢ − ē)², over N (N − 1) / 2 pairs: no table of N × N is needed.
    return 2 * (errors - errors.mean(1, keepdim=True)).square().sum(1) / max(errors.shape[1] - 1, 1)


# Whole lists


@loss("listwise", BOTH_KINDS)
def listwise(scores: Tensor, labels: Tensor) -> Tensor:
    """DR-BERT's softmax over the list: −log S⁺, the mean over the list's positives.

    S⁺ᵢ = exp(R⁺ᵢ) / (Σ exp R⁺ + Σ exp R⁻). One positive and one negative: log(1 + exp(−(R⁺ − R⁻))); one positive: the
    cross entropy of picking it. All documents alike: ln N, whatever the number of positives.

    | scores (B, N) | labels (B, N)                      | costs |
    |---------------|------------------------------------|-------|
    | any           | above 0 relevant, 0 not            | (B,)  |

    The one to begin with: best with many negatives of which few are false. Cao et al., 2007 (ListNet); DR-BERT, 2020.
    """
    relevant = (labels > 0).to(scores.dtype)
    return -(torch.log_softmax(scores, dim=1) * relevant).sum(1) / relevant.sum(1).clamp(min=1)


@loss("listmle", TWO_LABELS)
def listmle(scores: Tensor, labels: Tensor) -> Tensor:
    """ListMLE: −log of the probability that picking by softmax, without replacement, gives the labels' order.

    Sum over documents, best label first, of log Σ exp sⱼ − sᵢ, where j goes over i and those that follow it.
    Documents of one label share the sum that holds them all (Breslow's likelihood), and those of the lowest label,
    which come last in any order, cost nothing. One positive among negatives costs what it costs in ``listwise``.

    | scores (B, N) | labels (B, N)            | costs |
    |---------------|--------------------------|-------|
    | any           | grades; only order counts | (B,)  |

    Prefer it where labels give a whole order, such as a teacher's ranking. Xia, Liu, Wang, Zhang and Li, 2008.
    """
    labels, order = labels.sort(dim=1, descending=True, stable=True)
    scores = scores.gather(1, order)
    following = scores.flip(1).logcumsumexp(1).flip(1)
    first_of_label = torch.searchsorted(-labels, -labels)
    costs = following.gather(1, first_of_label) - scores
    return torch.where(labels > labels[:, -1:], costs, 0.0).sum(1)


@loss("approx_ndcg", TWO_LABELS)
def approx_ndcg(scores: Tensor, labels: Tensor, *, temperature: float = 0.1) -> Tensor:
    """1 − nDCG with smooth ranks: πᵢ = 1 + Σ_{j≠i} σ((sⱼ − sᵢ) / T), DCG = Σ Gᵢ / log₂(1 + πᵢ); from 0 to 1.

    | scores (B, N) | labels (B, N)            | costs |
    |---------------|--------------------------|-------|
    | any           | grades ≥ 0; gain 2^y − 1 | (B,)  |

    Prefer it to polish a trained ranker for nDCG: far from the order it wants, its gradient fades, the faster the lower
    ``temperature``. Qin, Liu and Li, 2010; Bruch, Zoghi, Bendersky and Najork, 2019.
    """
    gains = _gains(labels)
    # j = i adds σ(0) = 1/2 to the sum.
    ranks = 0.5 + torch.sigmoid(-_differences(scores) / temperature).sum(2)
    return 1 - (gains / torch.log2(1 + ranks)).sum(1) / _best_dcg(gains)[:, 0]


@loss("kl", TWO_DOCUMENTS)
def kl(scores: Tensor, labels: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Distillation: Σ p log(p / q), p the softmax over the list of the teacher's scores t / T, q that of s / T.

    | scores (B, N) | labels (B, N)    | costs |
    |---------------|------------------|-------|
    | any           | teacher's scores | (B,)  |

    Prefer it to ``margin_mse`` where only the top of the teacher's list is trusted. Hinton, Vinyals and Dean, 2015.
    """
    student, teacher = (torch.log_softmax(x / temperature, dim=1) for x in (scores, labels))
    return functional.kl_div(student, teacher, reduction="none", log_target=True).sum(1)


def _differences(values: Tensor) -> Tensor:
    """vᵢ − vⱼ: (B, N) → (B, N, N)."""
    return values[:, :, None] - values[:, None, :]


def _better(labels: Tensor) -> Tensor:
    """Whether yᵢ > yⱼ: (B, N) → (B, N, N)."""
    return labels[:, :, None] > labels[:, None, :]


def _mean_where(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the chosen values of each list, 0 where none is chosen: (B, N, N) → (B,)."""
    return torch.where(chosen, values, 0.0).sum((1, 2)) / chosen.sum((1, 2)).clamp(min=1)


def _gains(labels: Tensor) -> Tensor:
    """Gains (B, N) up to a factor of the list, which nDCG divides out; so that no grade is too high for 2^y."""
    labels = labels.clamp(min=0)
    highest = labels.amax(1, keepdim=True)
    return torch.exp2(labels - highest) - torch.exp2(-highest)


def _best_dcg(gains: Tensor) -> Tensor:
    """The DCG of the best order, (B, 1); never 0."""
    best = gains.sort(dim=1, descending=True).values
    places = torch.arange(best.shape[1], device=gains.device, dtype=gains.dtype)
    return (best / torch.log2(2 + places)).sum(1, keepdim=True).clamp(min=torch.finfo(gains.dtype).tiny)
