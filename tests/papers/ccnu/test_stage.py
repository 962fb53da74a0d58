"""The stage ``sdnet``."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import small_textblob
from tests.training import toys

import rankwell.sample
import rankwell.training.loop.loop as loop
from rankwell.core.errors import RankwellError
from rankwell.corpus.formats import read_run
from rankwell.evaluation.evaluate import evaluate
from rankwell.papers.ccnu.network import load_sdnet
from rankwell.papers.ccnu.ranker import SdnetRanker
from rankwell.rank.fusion import Shares, fuse
from rankwell.rank.rankers import kind_of
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import Override, build_recipe
from rankwell.training.run import Trained, run_recipe


def recipe_of(data: Path, start: Path, **changes: Any) -> Recipe:
    stage = {"epochs": 1, "batch": 8, "hidden": 8, "max_words": 16, "dropout": 0.1, "shard": 5}
    tree = toys.recipe_tree(data, start, sdnet=stage)
    overrides = [Override(path.replace("__", "."), value) for path, value in changes.items()]
    return build_recipe(tree, "r.yaml", overrides)


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Path]:
    place = tmp_path_factory.mktemp("sdnet")
    data = toys.write_data(place / "data", queries=16)
    done = run_recipe(recipe_of(data, tiny_checkpoint), place / "out", device="cpu")
    (folder,) = (place / "out" / "stages").iterdir()
    return done, folder


def test_it_leaves_a_ranker_and_its_run(trained: tuple[Trained, Path]) -> None:
    done, folder = trained
    assert done.model is not None
    assert kind_of(done.model) == "sdnet"
    run = read_run(next(folder.glob("sdnet-*.run.gz")))
    assert done.last is not None
    assert {qid: list(ranking) for qid, ranking in done.last.run.items()} == {qid: list(r) for qid, r in run.items()}


def test_a_stage_after_it_interpolates_its_scores_with_the_first_stages(
    trained: tuple[Trained, Path], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    done, folder = trained
    dev, run = done.work.data.dev, read_run(next(folder.glob("sdnet-*.run.gz")))
    data = Path(done.work.recipe.data.folder)
    interpolate = {"kind": "tune", "encoder": None, "normalise": "none", "measure": "RR@10"}
    recipe = recipe_of(data, tiny_checkpoint, stages__interpolate=interpolate)
    both = run_recipe(recipe, tmp_path / "both", pool=folder.parents[1], device="cpu")
    grid = json.loads((both.work.done[-1].folder / "tuning.json").read_text())
    assert len(grid["folds"]) == 5
    row = next(row for row in grid["grid"] if row["first"] == 0.8)
    as_published = fuse({"first": dev.run, "model": run}, Shares(model=0.2, first=0.8, normalise="none"))
    assert row["mean"] == pytest.approx(evaluate(dev.qrels, as_published, ["RR@10"]).mean["RR@10"])


def test_features_are_kept_beside_the_texts_and_shared(
    trained: tuple[Trained, Path], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    done, folder = trained
    (features,) = done.work.data.collection.store.folder.glob("features-*")
    times = {path.name: path.stat().st_mtime_ns for path in features.glob("shard-*.f16")}
    assert len(times) == 3  # twelve documents, five to a shard
    other = done.work.recipe.model_copy(update={"seed": 2})
    again = run_recipe(other, tmp_path / "other", pool=folder.parents[1], device="cpu")
    assert {path.name: path.stat().st_mtime_ns for path in features.glob("shard-*.f16")} == times
    assert again.model is not None
    one, two = (load_sdnet(path).match.weight for path in (done.model, again.model))  # type: ignore[arg-type]
    assert not np.allclose(one.detach(), two.detach())
    # Each passage is "word word market": three words in three layers of 32 numbers of two bytes.
    record = json.loads((folder / "stage.json").read_text())
    assert record["produced"]["figures"]["bytes of features per passage"] == 3 * 3 * 32 * 2


def test_features_of_passages_that_no_candidate_names_are_not_computed(tiny_checkpoint: Path, tmp_path: Path) -> None:
    data = toys.write_data(tmp_path / "data", queries=16)
    with (data / "collection.tsv").open("a") as file:
        file.writelines(f"x{number}\tnothing that anybody asks for\n" for number in range(30))
    changes = {"first_stage__depth": 2, "stages__sdnet__best": "last", "stages__sdnet__epochs": 0.1}
    done = run_recipe(recipe_of(data, tiny_checkpoint, **changes), tmp_path / "out", device="cpu")
    (folder,) = (tmp_path / "out" / "stages").iterdir()
    figures = json.loads((folder / "stage.json").read_text())["produced"]["figures"]
    assert 2 <= figures["passages with features"] <= 12
    assert done.model is not None
    # Scores are those of the texts, so the passages were found under their own numbers.
    dev, kept = done.work.data.dev, read_run(next(folder.glob("sdnet-*.run.gz")))
    again = SdnetRanker.from_pretrained(done.model, device="cpu").rerank(dev.run, dev.queries, done.work.data.index)
    for qid in kept:
        assert dict(again[qid]) == pytest.approx(dict(kept[qid]), abs=1e-4)


def test_a_killed_run_continues_to_the_same_weights(
    trained: tuple[Trained, Path], tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _ = trained
    data = toys.write_data(tmp_path / "data", queries=16)
    killed = recipe_of(data, tiny_checkpoint, stages__sdnet__save_every=1)
    original = loop.save_state

    def save_and_die(*arguments: Any) -> None:
        original(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "save_state", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(killed, tmp_path / "out", device="cpu")
    monkeypatch.undo()
    finished = run_recipe(killed, tmp_path / "out", device="cpu", resume=True)
    assert finished.model is not None
    assert done.model is not None
    expected = load_sdnet(done.model).state_dict()
    found = load_sdnet(finished.model).state_dict()
    assert all((found[name] == tensor).all() for name, tensor in expected.items())


def test_what_would_fail_later_is_said_first(tiny_checkpoint: Path, tmp_path: Path) -> None:
    data = toys.write_data(tmp_path / "data", queries=4)
    cases = {
        "stages__sdnet__layers": (9, "layers is 9, but the encoder has 3"),
        "stages__sdnet__vectors": (str(tmp_path / "none.txt"), "no such file"),
        "stages__sdnet__loss": ("hing", "did you mean hinge"),
    }
    for number, (path, (value, problem)) in enumerate(cases.items()):
        with pytest.raises(RankwellError, match=problem):
            run_recipe(recipe_of(data, tiny_checkpoint, **{path: value}), tmp_path / f"o{number}", device="cpu")


def test_it_learns_the_training_queries_of_the_sample(tiny_checkpoint: Path, tmp_path: Path) -> None:
    sample = tmp_path / "sample"
    shutil.copytree(Path(rankwell.sample.__file__).parent, sample, ignore=shutil.ignore_patterns("__*", "types*"))
    (tmp_path / "v.txt").write_text("bees 1 0 0\nwarm 0 1 0\nthe 0 0 1\n")  # any file of vectors will do
    changes: dict[str, Any] = {
        "data__train_queries": 8,
        "data__dev_queries": 6,
        "data__relevance": 2,
        "first_stage__depth": 8,
        "stages__sdnet__epochs": 50,
        "stages__sdnet__signals": "cosine",
        "stages__sdnet__max_words": 16,
        "stages__sdnet__hidden": 12,
        "stages__sdnet__batch": 8,
        "stages__sdnet__dropout": 0.0,
        "stages__sdnet__learning_rate": 5e-3,
        "stages__sdnet__best": "last",
        "stages__sdnet__shard": 100,
        "stages__sdnet__vectors": str(tmp_path / "v.txt"),
    }
    run_recipe(recipe_of(sample, tiny_checkpoint, **changes), tmp_path / "out", device="cpu")
    (folder,) = (tmp_path / "out" / "stages").iterdir()
    losses = [line["loss"] for line in logged(folder) if "loss" in line]
    assert losses[-1] < 0.7 * losses[0]
    assert load_sdnet(folder / "model").config.vector_size == 3


def test_tags_of_passages_are_read_and_the_checkpoint_names_the_tagger(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_textblob.install_if_missing(monkeypatch)
    data = toys.write_data(tmp_path / "data", queries=16)
    changes = {"stages__sdnet__tagger": "textblob", "stages__sdnet__best": "last"}
    done = run_recipe(recipe_of(data, tiny_checkpoint, **changes), tmp_path / "out", device="cpu")
    assert done.model is not None
    config = load_sdnet(done.model).config
    assert config.tagger == "textblob"
    assert config.tag_counts == (46, 3)
    assert done.last is not None
    dev = done.work.data.dev
    again = SdnetRanker.from_pretrained(done.model, device="cpu").rerank(dev.run, dev.queries, done.work.data.index)
    for qid, ranking in done.last.run.items():
        assert dict(again[qid]) == pytest.approx(dict(ranking), abs=1e-4)


def test_a_missing_tagger_is_reported_before_anything_is_computed(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("textblob", "textblob.en"):
        monkeypatch.setitem(sys.modules, package, None)
    data = toys.write_data(tmp_path / "data", queries=16)
    recipe = recipe_of(data, tiny_checkpoint, stages__sdnet__tagger="textblob")
    with pytest.raises(RankwellError, match=r"rankwell\[ccnu\]"):
        run_recipe(recipe, tmp_path / "out", device="cpu")
    assert not list((tmp_path / "out").glob("stages/*"))
