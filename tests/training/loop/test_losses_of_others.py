"""Losses beside sentence-transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rankwell.training.loop.losses import make_loss

from .test_losses import random_lists


class FakeCrossEncoder:
    """As much of sentence-transformers' model as its losses ask for: it gives the scores it was made with."""

    num_labels = 1
    device = torch.device("cpu")

    def __init__(self, scores: Any):
        self.scores = scores

    def preprocess(self, pairs: Any, **_: Any) -> dict[str, Any]:
        return {}

    def __call__(self, tokens: Any) -> dict[str, Any]:
        return {"scores": self.scores.reshape(-1)}


@pytest.fixture(scope="module")
def peers() -> Any:
    return pytest.importorskip("sentence_transformers.cross_encoder.losses")


class TestBesideSentenceTransformers:
    """The numbers agree list by list; theirs weighs pairs alike over the whole batch, ours weighs lists alike."""

    def check(self, ours: Any, make: Callable[[Any], Any], labels: Any = None) -> None:
        scores, grades = random_lists(5)
        labels = grades if labels is None else labels
        for row, grade in zip(scores.float(), labels.float(), strict=True):
            theirs = make(FakeCrossEncoder(row))([["query"], [["document"] * len(row)]], [grade])
            assert float(ours(row[None], grade[None])) == pytest.approx(float(theirs), rel=1e-5)

    def test_lambdaloss(self, peers: Any) -> None:
        self.check(make_loss("lambdaloss"), lambda m: peers.LambdaLoss(m, mini_batch_size=-1))

    def test_lambdarank(self, peers: Any) -> None:
        scheme = peers.LambdaRankScheme()
        self.check(make_loss("lambdaloss", mu=0), lambda m: peers.LambdaLoss(m, scheme, mini_batch_size=-1))

    def test_ranknet(self, peers: Any) -> None:
        self.check(make_loss("ranknet"), lambda m: peers.RankNetLoss(m, reduction_log="natural", mini_batch_size=-1))

    def test_listmle(self, peers: Any) -> None:
        whole_order = torch.tensor([[3, 0, 2, 5, 1, 4]] * 4)
        ours = make_loss("listmle")
        self.check(ours, lambda m: peers.ListMLELoss(m, mini_batch_size=-1, respect_input_order=False), whole_order)
