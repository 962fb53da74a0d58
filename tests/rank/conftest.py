"""Rankers for tests: of the tiny model, and of an engine whose scores are known beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell.inputs.batching import Sequences
from rankwell.inputs.reader import Reader
from rankwell.inputs.templates import Template
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.engines.engine import Engine
from rankwell.rank.ranker import Ranker


class CountingEngine(Engine):
    """Scores a pair by how often ``bank`` is in it."""

    def __init__(self, bank: int):
        self.bank = bank

    def logits(self, sequences: Sequences) -> Any:
        parts = np.split(sequences.tokens, sequences.ends[:-1])
        return np.array([[np.count_nonzero(part == self.bank)] for part in parts], np.float32).reshape(-1, 1)


@pytest.fixture(scope="module")
def encoder(tiny_bi_encoder: Path) -> BiEncoder:
    return BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu", max_length=32)


@pytest.fixture(scope="module")
def counting(tiny_tokenizer: Path) -> Ranker:
    tokenizer = Tokenizer.open(tiny_tokenizer)
    return Ranker.from_engine(CountingEngine(tokenizer.token_id("bank")), Reader(tokenizer, Template()))
