"""Blending: the shares are found by cross-validation, and the figures are those of shares chosen without a query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankwell.sample
from rankwell.cli.main import app
from rankwell.core.errors import RankwellError
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Query
from rankwell.evaluation.evaluate import evaluate
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.dense import DenseRanker
from rankwell.rank.fusion import PARTS, Shares, fuse
from rankwell.training.data.prepare import Prepared
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import build_recipe, parse_setting
from rankwell.training.run import Trained, run_recipe
from rankwell.training.stages.shared import rerank_dev
from rankwell.training.stages.tune import RERANK, measure, rerank_options

RECIPE = {
    "name": "blended",
    "data": str(Path(rankwell.sample.__file__).parent),
    "first_stage": {"depth": 6},
    "evaluate": {"depth": 6, "measures": ["RR@10"]},
    "model": {"max_length": 48, "max_query": 16, "long_documents": "cut"},
    "stages": {
        "listwise": {"max_steps": 2, "batch": 4, "negatives": 2, "best": "last"},
        "tune": {"step": 0.25, "folds": 3},
    },
}


def make_recipe(start: Path, *settings: str) -> Recipe:
    tree = {**RECIPE, "model": {**RECIPE["model"], "start": str(start)}}
    return build_recipe(tree, "blended.yaml", [parse_setting(one) for one in settings])


def shares_of(setting: dict[str, Any]) -> Shares:
    return Shares(**{name: value for name, value in setting.items() if name not in ("aggregate", "mean")})


def dev_queries(folder: Path, queries: Sequence[Query]) -> str:
    path = folder / "queries.tsv"
    path.write_text("".join(f"{query.qid}\t{query.text}\n" for query in queries), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def trained(tiny_bi_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trained]:
    out = tmp_path_factory.mktemp("blended") / "out"
    return out, run_recipe(make_recipe(tiny_bi_encoder), out, device="cpu")


def test_each_query_has_the_shares_that_were_chosen_without_it(
    trained: tuple[Path, Trained], tiny_bi_encoder: Path
) -> None:
    out, result = trained
    (folder,) = (out / "stages").glob("*-tune-*")
    record = json.loads((folder / "tuning.json").read_text())
    best = record["best"]
    assert sum(best[part] for part in PARTS) == pytest.approx(1)
    assert len(record["grid"]) == 15
    assert {**best, "mean": max(one["mean"] for one in record["grid"])} in record["grid"]

    assert result.last is not None
    dev, index = result.work.data.dev, result.work.data.index
    first = dev.run.head(6)
    (listwise,) = (out / "stages").glob("*-listwise-*")
    ranked = rerank_dev(result.work, listwise / "model")
    similar = DenseRanker(BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu")).rerank(first, dev.queries, index)
    runs = {"model": ranked, "similarity": similar, "first": first}
    expected = [fuse(runs, shares_of(setting)) for setting in record["folds"]]
    for qid, ranking in result.last.run.items():
        assert any(dict(ranking) == pytest.approx(dict(one[qid]), abs=1e-3) for one in expected)
    assert len(result.last.run) < len(dev.qrels)  # one has no candidates, and counts 0
    found = evaluate(dev.qrels, result.last.run, ["RR@10"])
    np.testing.assert_allclose(found.mean["RR@10"], record["cross_validated"], atol=1e-6)


def test_a_ranker_without_a_share_is_told(tiny_bi_encoder: Path, tmp_path: Path) -> None:
    # All or nothing: BM25 is better than a model of two steps.
    with pytest.warns(UserWarning, match="the ranker has no weight: dev is ranked best without it"):
        run_recipe(make_recipe(tiny_bi_encoder, "stages.tune.step=1"), tmp_path / "out", device="cpu")


def test_the_model_is_the_same_and_says_how_it_was_blended(trained: tuple[Path, Trained]) -> None:
    out, _ = trained
    (listwise,) = (out / "stages").glob("*-listwise-*")
    for name in ("model.safetensors", "tokenizer.json"):
        assert (out / "model" / name).read_bytes() == (listwise / "model" / name).read_bytes()
    record = json.loads((out / "model" / "rankwell.json").read_text())
    assert "(z-score)" in record["figures"]["tuned"]


def test_the_blend_is_told_as_options_of_rerank(
    trained: tuple[Path, Trained], tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    out, result = trained
    told = result.work.done[-1].result.figures[RERANK]
    dev, shares = result.work.data.dev, json.loads(next((out / "stages").glob("*-tune-*/tuning.json")).read_text())
    write_run(dev.run, tmp_path / "first.run")
    given = [
        "--queries",
        dev_queries(tmp_path, dev.queries),
        "--collection",
        str(Path(RECIPE["data"]) / "collection.tsv"),
    ]
    given += ["--model", str(out / "model"), "--out", str(tmp_path / "out.run"), *told.split()]
    app(["rerank", str(tmp_path / "first.run"), *given], standalone_mode=False)
    (listwise,) = (out / "stages").glob("*-listwise-*")
    ranked = rerank_dev(result.work, listwise / "model")
    encoder = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu")
    first = dev.run.head(6)
    similar = DenseRanker(encoder).rerank(first, dev.queries, result.work.data.index)
    best = shares_of(shares["best"])
    found = read_run(tmp_path / "out.run")
    for qid, ranking in fuse({"model": ranked, "similarity": similar, "first": first}, best).items():
        assert dict(found[qid]) == pytest.approx(dict(ranking), abs=1e-3)


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ((0.5, 0.3, 0.2), "--depth 6 --blend 0.3 --fuse 0.2 --encoder mine --set normalise=z-score"),
        ((0.5, 0.5, 0.0), "--depth 6 --blend 0.5 --encoder mine --set normalise=z-score"),
        ((0.7, 0.0, 0.3), "--depth 6 --fuse 0.3 --set normalise=z-score"),
        ((0.6, 0.4), "--depth 6 --blend 0.4 --encoder mine --set normalise=z-score"),
        ((1.0, 0.0, 0.0), "--depth 6"),
    ],
)
def test_what_has_no_share_is_not_told(shares: tuple[float, ...], told: str) -> None:
    assert rerank_options(6, Shares(*shares, normalise="z-score"), "mine") == told


def test_other_queries_have_the_best_shares_of_dev(trained: tuple[Path, Trained], tiny_bi_encoder: Path) -> None:
    out, result = trained
    assert result.last is not None
    work, data = result.last.work, result.work.data
    there = replace(work, prepared=Prepared(data.collection, data.train, data.train))
    found = measure(there, result.last.stage, result.last.folder)
    (listwise,) = (out / "stages").glob("*-listwise-*")
    first = data.train.run.head(6)
    ranked = rerank_dev(there, listwise / "model")
    encoder = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu")
    similar = DenseRanker(encoder).rerank(first, data.train.queries, data.index)
    shares = json.loads(next((out / "stages").glob("*-tune-*/tuning.json")).read_text())["best"]
    runs = {"model": ranked, "similarity": similar, "first": first}
    expected = fuse(runs, shares_of(shares))
    for qid, ranking in expected.items():
        assert dict(found[qid]) == pytest.approx(dict(ranking), abs=1e-3)


def test_a_stage_may_have_the_name_of_a_part(tiny_bi_encoder: Path, tmp_path: Path) -> None:
    listwise = {**RECIPE["stages"]["listwise"], "kind": "listwise"}
    tree = {**RECIPE, "stages": {"similarity": listwise, "tune": RECIPE["stages"]["tune"]}}
    tree["model"] = {**RECIPE["model"], "start": str(tiny_bi_encoder)}
    last = run_recipe(build_recipe(tree, "r.yaml"), tmp_path / "out", device="cpu").last
    assert last is not None
    split = replace(last.work.data, dev=last.work.data.train)
    assert len(measure(replace(last.work, prepared=split), last.stage, last.folder))


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("stages.tune.step=0.3", "a step of 0.3"),
        ("stages.tune.measure=RR@ten", "RR@ten"),
        ("stages.tune.folds=99999", "folds is 99999"),
        ("stages.tune.beta=0.5", "set encoder to null"),
        ("stages.listwise=off", "needs a stage before it"),
    ],
)
def test_what_cannot_be_blended_is_told_before_any_training(
    tiny_bi_encoder: Path, tmp_path: Path, setting: str, problem: str
) -> None:
    with pytest.raises(RankwellError, match=problem):
        run_recipe(make_recipe(tiny_bi_encoder, setting), tmp_path / "out", device="cpu")
