"""``--trust-remote-code`` of rerank and search: a model's own code runs only if the user asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.remote_code import REFUSED, bring_code

from rankwell.corpus.formats import read_queries, read_run, write_run
from rankwell.retrieve.index import Index

Call = Callable[..., Any]


def rankings(path: str) -> dict[str, list[str]]:
    return {qid: list(ranking.docids) for qid, ranking in read_run(path).items()}


def test_rerank(
    rankwell: Call, index: Path, queries: Path, tiny_models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_models.make("bert", tmp_path / "model")
    write_run(Index.open(index).search(read_queries(queries)[:2], k=4), tmp_path / "first.run")
    options = ["--queries", queries, "--collection", index, "--model", model]
    assert rankwell("rerank", tmp_path / "first.run", *options, "--out", "plain.run").code == 0
    bring_code(model, monkeypatch)
    assert REFUSED in rankwell("rerank", tmp_path / "first.run", *options, "--out", "out.run").complaint
    assert not Path("out.run").exists()
    done = rankwell("rerank", tmp_path / "first.run", *options, "--out", "out.run", "--trust-remote-code")
    assert done.code == 0, done.err
    assert rankings("out.run") == rankings("plain.run")


def test_search(
    rankwell: Call, queries: Path, tiny_models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = tiny_models.make_bi_encoder("bert", tmp_path / "encoder")
    few = tmp_path / "collection.tsv"
    few.write_text("".join(f"{number}\t{text}\n" for number, (_, text) in enumerate(tiny_models.PAIRS)))
    assert rankwell("index", few, "--out", "few").code == 0
    options = ["few", queries, "--hybrid", "0.5", "--encoder", encoder, "--k", "5"]
    assert rankwell("search", *options, "--out", "plain.run").code == 0
    bring_code(encoder, monkeypatch)
    assert REFUSED in rankwell("search", *options, "--out", "out.run").complaint
    assert not Path("out.run").exists()
    done = rankwell("search", *options, "--out", "out.run", "--trust-remote-code")
    assert done.code == 0, done.err
    assert rankings("out.run") == rankings("plain.run")
