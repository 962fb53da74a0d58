"""The layers of SDNet. Texts lie on a padded grid (B, L, D) with a mask (B, L), true where there is a word.

Padding never counts: not in attention, not in recurrent layers (whose backward half would begin in it), not among the
signals. So a text's score does not depend on the texts in the same batch. A text without words has zero vectors, not
NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def masked_softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """The softmax over the allowed entries of the last dimension; all 0 if none is allowed."""
    low = torch.finfo(scores.dtype).min
    weights = torch.softmax(scores.masked_fill(~allowed, low), dim=-1)
    return weights * allowed


class VariationalDropout(nn.Module):
    """Drops the same features of all words of a text: one draw per text and feature."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) → (B, L, D)."""
        if not self.training or not self.p:
            return x
        return x * functional.dropout(x.new_ones(len(x), 1, x.shape[2]), self.p)


class LayerMix(nn.Module):
    """The layers of a frozen encoder as one: γ · Σ softmax(α)ₗ hₗ, (…, K, H) → (…, H)."""

    def __init__(self, layers: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Tensor) -> Tensor:
        """A weighted mean of the layers, scaled."""
        weights = self.gamma * torch.softmax(self.alpha, dim=0)
        return torch.einsum("...kh,k->...h", layers.to(weights.dtype), weights)


class Attention(nn.Module):
    """Attention of the words x over the words y with the scores relu(Wx)ᵀ D relu(Wy), D diagonal.

    If ``fixed``, D is 1/√n and not learned, as in SDNet's attention of word vectors.
    """

    def __init__(self, size: int, hidden: int, dropout: float, *, fixed: bool = False):
        super().__init__()
        self.project = nn.Linear(size, hidden, bias=False)
        self.diagonal: nn.Parameter | float = hidden**-0.5 if fixed else nn.Parameter(torch.ones(hidden))
        self.drop = VariationalDropout(dropout)

    def weights(self, x: Tensor, y: Tensor, mask: Tensor, *, others: bool = False) -> Tensor:
        """(B, N, D), (B, M, D), mask of y (B, M) → (B, N, M). With ``others`` (x is y) no word attends to itself."""
        left = functional.relu(self.project(self.drop(x))) * self.diagonal
        right = functional.relu(self.project(self.drop(y)))
        allowed = mask[:, None].expand(-1, x.shape[1], -1)
        if others:
            itself = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
            # The only word of a text has no others to attend to.
            alone = mask.sum(dim=1)[:, None, None] == 1
            allowed = allowed & (~itself | alone)
        return masked_softmax(left @ right.transpose(1, 2), allowed)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor, values: Tensor, *, others: bool = False) -> Tensor:
        """The weighted means of ``values`` (B, M, V): (B, N, V)."""
        return self.weights(x, y, mask, others=others) @ values


class BiLSTM(nn.Module):
    """Bidirectional recurrent layers: (B, L, D) → the outputs of each, (B, L, 2·hidden)."""

    def __init__(self, size: int, hidden: int, dropout: float, layers: int = 1):
        super().__init__()
        sizes = [size, *[2 * hidden] * (layers - 1)]
        self.layers = nn.ModuleList([nn.LSTM(s, hidden, batch_first=True, bidirectional=True) for s in sizes])
        self.drop = VariationalDropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor, mask: Tensor) -> list[Tensor]:
        """``lengths`` (B,) are on the CPU, so that nothing here waits for a GPU."""
        outputs = []
        for layer in self.layers:
            # Torch accepts no empty texts: they are read as one place of padding, whose output is masked.
            packed = pack_padded_sequence(self.drop(x), lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
            output, _ = pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=x.shape[1])
            x = output * mask[..., None]
            outputs.append(x)
        return outputs


class Pool(nn.Module):
    """One vector per text: Σ βᵢ uᵢ with β ∝ exp(w·uᵢ); (B, L, D) → (B, D)."""

    def __init__(self, size: int, dropout: float):
        super().__init__()
        self.weigh = nn.Linear(size, 1, bias=False)
        self.drop = VariationalDropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """The weighted mean of the words."""
        weights = masked_softmax(self.weigh(self.drop(x))[..., 0], mask)
        return (weights[:, None] @ x)[:, 0]


SIGNALS = ("softmax", "cosine", "dot")


def match_signals(query: Tensor, words: Tensor, mask: Tensor, kind: str) -> Tensor:
    """How well each word of a passage answers: (B, D), (B, L, D) → (B, L), 0 at padding.

    ``softmax`` and ``dot`` are qᵀV with and without normalisation over the passage; ``cosine`` is their cosine.
    """
    if kind == "cosine":
        query, words = functional.normalize(query, dim=-1), functional.normalize(words, dim=-1)
    products = (words @ query[..., None])[..., 0]
    return masked_softmax(products, mask) if kind == "softmax" else products * mask


def top_signals(signals: Tensor, mask: Tensor, k: int) -> Tensor:
    """The k largest signals, largest first, followed by zeros if a passage has fewer words: (B, L) → (B, k)."""
    signals = functional.pad(
        signals.masked_fill(~mask, -torch.inf), (0, max(0, k - signals.shape[1])), value=-torch.inf
    )
    largest = signals.topk(k, dim=1).values
    return largest.masked_fill(largest == -torch.inf, 0.0)
