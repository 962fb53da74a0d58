"""The doc2query stage, from a recipe to a run of the dev queries."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.expansions import write_expansions
from tests.training import toys

from rankwell.core.checksums import table_beside
from rankwell.core.errors import RankwellError
from rankwell.corpus.formats import read_run
from rankwell.corpus.formats.texts import Expansion, read_expansions
from rankwell.papers.doc2query.checkpoints import load_writer
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index
from rankwell.training.recipe_reader import build_recipe
from rankwell.training.run import run_recipe

SMALL = {
    "epochs": 2,
    "batch": 8,
    "max_length": 16,
    "max_query": 8,
    "n": 2,
    "k1": "0.9,1.2",
    "b": "0.4",
    "shard": 5,
    "learning_rate": 1e-3,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_data(tmp_path_factory.mktemp("doc2query") / "data", queries=30)


def carry_out(data: Path, start: Path, out: Path, **stages: Any) -> Any:
    recipe = build_recipe(toys.recipe_tree(data, start, **stages), out / "recipe.yaml")
    return run_recipe(recipe, out, device="cpu")


@pytest.fixture(scope="module")
def done(data: Path, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("doc2query") / "out"
    carry_out(data, tiny_checkpoint, out, doc2query=SMALL)
    (folder,) = (out / "stages").glob("*-doc2query-*")
    return folder


def test_it_leaves_a_writer_expansions_an_index_and_runs(done: Path, data: Path) -> None:
    _, _, config = load_writer(done / "model")
    assert (config.max_length, config.max_query) == (16, 8)
    expansions = list(read_expansions(done / "expansions.jsonl.gz"))
    assert [one.docid for one in expansions] == [f"d{number}" for number in range(len(toys.WORDS))]
    assert all(len(one.queries) <= 2 for one in expansions)
    assert any(one.queries for one in expansions)
    found = json.loads((done / "stage.json").read_text())["produced"]["figures"]
    tuned = json.loads((done / "bm25.json").read_text())["best"]
    assert (found["k1"], found["b"]) == (tuned["k1"], tuned["b"])
    assert found["perplexity"] > 1
    # 30 training queries, of which a fifth at most is set aside.
    assert "RR@10 of 6 queries set aside, tuned" in found
    assert "<h1>Expansions</h1>" in (done / "expansions.html").read_text()
    assert json.loads((done / "stage.json").read_text())["produced"]["first_stage"] == "."


def test_the_runs_are_those_of_the_expanded_index(done: Path) -> None:
    index = Index.open(done / "index")
    best = json.loads((done / "bm25.json").read_text())["best"]
    (dev,) = (path for path in done.glob("dev-*.run.gz"))
    expected = index.rank(f"{toys.WORDS[3]} market", BM25(k1=best["k1"], b=best["b"]), k=12)
    assert read_run(dev)["dev3"].docids == expected.docids
    # A word that only an expansion has finds its passage.
    for one in read_expansions(done / "expansions.jsonl.gz"):
        for term in index.analyzer.terms(" ".join(one.queries)):
            assert one.docid in index.rank(term, k=12).docids


def test_the_stage_goes_on_with_the_queries_that_are_there(
    done: Path, data: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(done.parents[1], tmp_path / "copy"))
    folder = out / "stages" / done.name
    for name in ("stage.json", "expansions.jsonl.gz", "bm25.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "index")
    shards = sorted((folder / "shards").glob("shard-*"))
    assert len(shards) == 3
    # Marked, so that one written again would show; the second is missing.
    write_expansions([Expansion(f"d{number}", ("apiary",)) for number in range(5)], shards[0])
    table_beside(shards[0]).unlink()  # of what was there before
    shards[1].unlink()
    carry_out(data, tiny_checkpoint, out, doc2query=SMALL)
    again, before = (list(read_expansions(place / "expansions.jsonl.gz")) for place in (folder, done))
    assert all(one.queries == ("apiary",) for one in again[:5])
    assert again[5:] == before[5:]


def test_after_deepct_both_are_indexed(data: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    weigh = {"epochs": 1, "k1": "0.9", "b": "0.4", "max_length": 16}
    trained = carry_out(data, tiny_checkpoint, tmp_path / "out", deepct=weigh, doc2query=SMALL)
    rows = [row["stage"] for row in trained.table.data["rows"]]
    assert rows == ["first stage", "deepct", "doc2query"]
    (folder,) = (tmp_path / "out" / "stages").glob("*-doc2query-*")
    manifest = json.loads((folder / "index" / "index.json").read_text())["manifest"]
    assert manifest["config"]["weighted"] is True


def test_what_cannot_work_is_told_before_any_work(data: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    for changes, problem in (
        ({"max_length": 600}, "max_length is 600, but .* has 512 positions"),
        ({"k1": "many"}, "neither FIRST:LAST:STEP"),
        ({"measure": "nonsense@3"}, "nonsense"),
    ):
        with pytest.raises(RankwellError, match=problem):
            carry_out(data, tiny_checkpoint, tmp_path / "out", doc2query={**SMALL, **changes})
    few = toys.write_data(tmp_path / "few", queries=3)
    with pytest.raises(RankwellError, match="set aside"):
        carry_out(few, tiny_checkpoint, tmp_path / "out", doc2query=SMALL)
