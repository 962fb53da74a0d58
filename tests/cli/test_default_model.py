"""What is used where no model is named: the one that ships."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwell import Ranker, sample
from rankwell.core.errors import RankwellError
from rankwell.corpus.formats import read_run
from rankwell.models.checkpoints import names
from rankwell.models.checkpoints.export import export_weights
from rankwell.models.checkpoints.names import DEFAULT, find_model


@pytest.fixture
def shipped(tiny_twin: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small model in the default one's place, with 8-bit weights and a bi-encoder within it, as it has them."""
    folder = tmp_path_factory.mktemp("shipped") / DEFAULT
    export_weights(tiny_twin, folder)
    monkeypatch.setattr(names, "SHIPPED", folder)
    return folder


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(names, "SHIPPED", tmp_path / "nowhere")


def test_its_name_and_no_name_are_the_same(shipped: Path) -> None:
    assert find_model() == find_model(DEFAULT) == shipped


def test_it_does_not_depend_on_where_one_stands(shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / DEFAULT).mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_model(DEFAULT) == shipped
    assert find_model(f"./{DEFAULT}").resolve() == tmp_path / DEFAULT


def test_a_ranker_of_nothing_is_the_default_model(shipped: Path) -> None:
    texts = ["bees keep warm", "a bogus river", "tea " * 600]
    expected = Ranker.from_pretrained(shipped).rank("bees", texts)
    assert Ranker().rank("bees", texts) == Ranker.from_pretrained().rank("bees", texts) == expected
    assert Ranker(shipped).rank("bees", texts) == Ranker(str(shipped)).rank("bees", texts) == expected


def test_rerank_without_a_model(
    shipped: Path, rankwell: Callable[..., Any], index: Path, queries: Path, tmp_path: Path
) -> None:
    Path("few.tsv").write_text("".join(queries.read_text().splitlines(keepends=True)[:20]))
    rankwell("search", index, "few.tsv", "--k", "3", "--out", "bm25.run")
    common = ("rerank", "bm25.run", "--queries", "few.tsv", "--collection", index, "--depth", "3")
    for out, model in (("own.run", ()), ("named.run", ("--model", shipped))):
        assert rankwell(*common, *model, "--out", out).code == 0
    assert read_run(Path("own.run")) == read_run(Path("named.run")) != read_run(Path("bm25.run"))


def test_explain_without_a_model(shipped: Path, rankwell: Callable[..., Any]) -> None:
    shown = rankwell("explain", "--query", "what is bogue", "--document", "a bogus fish", "--json")
    assert shown.code == 0
    assert json.loads(shown.out)["document"] == "a bogus fish"


@pytest.mark.usefixtures("shipped")
def test_the_demo_searches_as_hybrid_search_does(rankwell: Callable[..., Any]) -> None:
    shown = rankwell("demo", "--out", "demo")
    assert shown.code == 0
    assert "left out" not in shown.out
    assert "rankwell fit my-data --out my-system" in shown.out
    assert [line.split()[0] for line in shown.out.splitlines() if line.startswith(("BM25 ", "hybrid"))] == [
        "BM25",
        "hybrid",
    ]
    queries = sample.FOLDER / "queries.dev.tsv"
    assert rankwell("search", "demo/index", queries, "--hybrid", "--out", "own.run").code == 0
    assert read_run(Path("own.run")) == read_run(Path("demo/hybrid.run")) != read_run(Path("demo/bm25.run"))


@pytest.mark.usefixtures("shipped")
def test_where_torch_is_missing_the_demo_names_the_extra(
    rankwell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = names.find_spec
    monkeypatch.setattr(names, "find_spec", lambda package: None if package == "torch" else known(package))
    line = "rankwell-mini, the default model, needs the package torch: pip install 'rankwell[models]'"
    assert names.default_lacks() == line
    shown = rankwell("demo", "--out", "demo")
    assert (shown.code, shown.err) == (0, "")
    assert f"left out: {line}" in shown.out
    assert not Path("demo/hybrid.run").exists()


@pytest.mark.usefixtures("missing")
def test_where_it_is_missing_one_line_says_so(rankwell: Callable[..., Any], index: Path, queries: Path) -> None:
    with pytest.raises(RankwellError, match="rankwell-mini, the default model, is not part of this installation"):
        Ranker()
    rankwell("search", index, queries, "--k", "3", "--out", "bm25.run")
    done = rankwell("rerank", "bm25.run", "--queries", queries, "--collection", index, "--out", "own.run")
    assert "is not part of this installation" in done.complaint


def test_a_checkpoint_with_8_bit_weights_is_exported_by_name(
    tiny_checkpoint: Path, rankwell: Callable[..., Any]
) -> None:
    shown = rankwell("export", tiny_checkpoint, "--to", "rankwell", "--out", "small")
    assert shown.code == 0
    assert "weights in 8 bits" in shown.out
    assert Path("small/model.int8.safetensors").is_file()
    for option, value in (("--precision", "int8"), ("--attention", "strm")):
        arguments = ("--to", "rankwell", option, value, "--out", "other")
        assert f"{option} does not go with --to rankwell" in rankwell("export", tiny_checkpoint, *arguments).complaint
