"""The speed of models, by which a fit tells what fits into its time."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from rankwell import sample
from rankwell.corpus.datasets import open_dataset
from rankwell.retrieve.index import Index
from rankwell.training.fit.parts import divide, measure_pairs


def test_training_is_timed_with_the_model_that_is_trained(
    tmp_path: Path, tiny_bi_encoder: Path, tiny_checkpoint: Path
) -> None:
    data = open_dataset(sample.FOLDER)
    index, parts = Index.build(data.documents(), tmp_path / "index"), divide(data, train=None, report=None, seed=1)
    starts = (str(tiny_bi_encoder), str(tiny_checkpoint), "rankwell-mini")  # the second is a cross-encoder
    bi_encoder, ranker, larger = (measure_pairs(index, parts, start, "cpu") for start in starts)
    assert min(bi_encoder, ranker) > 2 * larger  # some fifty times
