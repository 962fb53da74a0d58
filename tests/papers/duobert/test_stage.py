"""The stage ``duo``: which pairs it learns from, and what it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.training.data.test_sampling import SEED, make
from tests.training.stages import test_shared
from tests.training.stages.test_shared import RECIPE, figures

from rankwell.core.errors import RankwellError
from rankwell.corpus.formats import read_run
from rankwell.papers.duobert.ranker import DuoRanker
from rankwell.papers.duobert.stage import draw_pairs
from rankwell.rank.ranker import Ranker, open_ranker
from rankwell.training.data.sampling import Plan, draw
from rankwell.training.recipe_reader import build_recipe
from rankwell.training.run import run_recipe

data, start = test_shared.data, test_shared.start


def test_duo_compares_each_positive_with_each_negative_both_ways() -> None:
    candidates = make((2, 2))
    lists = draw_pairs(candidates, Plan(positives=2, negatives=2, per="query"), SEED, 0)
    assert lists.others is not None
    pairs = list(zip(lists.documents[0].tolist(), lists.others[0].tolist(), strict=True))
    assert set(pairs[:4]) == {(p, n) for p in (1, 6) for n in (11, 16)}
    assert pairs[4:] == [(n, p) for p, n in pairs[:4]]
    assert lists.labels.tolist() == [[1] * 4 + [0] * 4]
    with pytest.raises(RankwellError, match="labelled by relevance, not by grade"):
        draw_pairs(candidates, Plan(labels="grade"), SEED, 0)


def test_duo_draws_the_lists_of_draw() -> None:
    candidates = make(*[(2, 9)] * 5)
    plain, duo = (how(candidates, Plan(negatives=1), SEED, 3) for how in (draw, draw_pairs))
    assert np.array_equal(plain.queries, duo.queries)
    assert np.array_equal(plain.documents, duo.documents)
    assert np.array_equal(plain.documents[:, ::-1], duo.others)


def test_duo_compares_what_mono_ranked_best(data: Path, start: Path, tmp_path: Path) -> None:
    tree = {
        **RECIPE,
        "data": str(data),
        "model": {"start": str(start), "max_length": 64, "max_query": 24},
        "stages": {
            "mono": {"kind": "pointwise", "epochs": 10, "batch": 8, "learning_rate": 3e-3, "best": "last"},
            "duo": {"compare": 4, "max_length": 96, "epochs": 2, "batch": 8, "evaluate_every": 0.999},
        },
    }
    trained = run_recipe(build_recipe(tree, "duo.yaml"), tmp_path / "duo", device="cpu")
    assert set(figures(trained)) == {"first stage", "mono", "duo"}
    assert Ranker.from_pretrained(tmp_path / "duo" / "model").template.name == "duo"
    assert isinstance(open_ranker(tmp_path / "duo" / "model"), DuoRanker)


def test_each_duo_stage_is_measured_with_its_own_options(
    data: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"kind": "duo", "max_length": 96, "max_steps": 1, "batch": 4, "best": "last"}
    tree = {
        **RECIPE,
        "data": str(data),
        "model": {"start": str(start), "max_length": 64, "max_query": 24},
        "stages": {
            "mono": {"kind": "pointwise", "max_steps": 1, "batch": 4, "best": "last"},
            "duo-a": {**usual, "compare": 4},
            "duo-b": {**usual, "compare": 3, "aggregate": "binary"},
        },
    }
    measured: list[tuple[int, str]] = []
    rerank = DuoRanker.rerank

    def record(self: DuoRanker, *arguments: Any, **options: Any) -> Any:
        measured.append((self.comparison.depth, self.comparison.aggregate))
        return rerank(self, *arguments, **options)

    monkeypatch.setattr(DuoRanker, "rerank", record)
    trained = run_recipe(build_recipe(tree, "duo.yaml"), tmp_path / "duo", device="cpu")
    assert measured == [(4, "sum"), (3, "binary")]
    # Both compare the documents that mono ranks best.
    runs = [next((tmp_path / "duo" / "stages").glob(f"*-{name}-*/mono-*.run.gz")) for name in ("duo-a", "duo-b")]
    assert read_run(runs[0]) == read_run(runs[1])
    assert [done.stage.number for done in trained.work.done] == [1, 2, 3]
    # Opened anywhere, the model ranks as it was measured.
    ranker = open_ranker(tmp_path / "duo" / "model")
    assert (ranker.comparison.depth, ranker.comparison.aggregate) == (3, "binary")
