"""What the tests of training share: a small model and something to rank."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rankwell.inputs.pieces import Pieces
from rankwell.inputs.templates import SpecialTokens, Template
from rankwell.models.encoder import CrossEncoder, Encoder
from rankwell.models.spec import EncoderConfig

WORDS = 60
SPECIAL = SpecialTokens(cls=1, sep=2)


class Rows:
    """Documents' pieces by number, in memory."""

    def __init__(self, pieces: Pieces):
        self._pieces = pieces

    def numbers(self, docids: list[str]) -> np.ndarray:
        return np.array([int(docid) for docid in docids], np.int64)

    def at(self, numbers: np.ndarray) -> Pieces:
        return self._pieces.take(numbers)


def pieces(rows: list[list[int]]) -> Pieces:
    """Whole words only."""
    ids = np.array([number for row in rows for number in row], np.int32)
    return Pieces.plain(ids, np.zeros(len(ids), np.bool_), np.cumsum([len(row) for row in rows]))


def make_model(outputs: int = 1, *, dropout: float = 0.0, layers: int = 2, seed: int = 3) -> CrossEncoder:
    """A random cross-encoder of a few thousand parameters."""
    config = EncoderConfig(
        vocab_size=WORDS + 10,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return CrossEncoder(Encoder(config), outputs, pooler=True)


@pytest.fixture
def template() -> Template:
    return Template("mono", max_length=48, max_query=16)
