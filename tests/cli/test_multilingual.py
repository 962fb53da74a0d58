"""German, French, Chinese and Japanese through every verb, with a tiny XLM-RoBERTa."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rankwell.serve.api import create_app
from rankwell.serve.service import Service
from rankwell.serve.state import Sources

TOPICS = {
    "de": ["Bienen im Winter", "Versicherung für Autos", "Kaffee aus Bremen", "Brücken über den Rhein"],
    "fr": ["abeilles en hiver", "assurance automobile", "café de Paris", "ponts sur la Seine"],
    "zh": ["蜜蜂过冬", "汽车保险", "北京咖啡", "长江大桥"],
    "ja": ["冬の蜂", "自動車保険", "東京の喫茶店", "瀬戸大橋"],
}
ENDINGS = {"de": "Mehr dazu hier.", "fr": "Voici la suite.", "zh": "更多信息。", "ja": "詳しくはこちら。"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A document for each topic of each language, and a query that it answers, which is the topic itself."""
    folder = tmp_path / "data"
    folder.mkdir()
    topics = [(f"{language}{i}", language, text) for language in TOPICS for i, text in enumerate(TOPICS[language])]
    documents = [f"{name}\t{text}. {ENDINGS[language]}" for name, language, text in topics]
    (folder / "collection.tsv").write_text("\n".join(documents) + "\n", encoding="utf-8")
    for split in ("train", "dev"):
        queries = [f"{split}-{name}\t{text}" for name, _, text in topics]
        judged = [f"{split}-{name} 0 {name} 1" for name, _, _ in topics]
        (folder / f"queries.{split}.tsv").write_text("\n".join(queries) + "\n", encoding="utf-8")
        (folder / f"qrels.{split}.txt").write_text("\n".join(judged) + "\n", encoding="utf-8")
    return folder


def test_every_verb(rankwell: Callable[..., Any], tiny_models: Any, data: Path, tmp_path: Path) -> None:
    start = tiny_models.make("xlm-roberta", tmp_path / "start", labels=None)

    def call(*arguments: str | Path) -> str:
        done = rankwell(*arguments)
        assert done.code == 0, done.err
        return str(done.out)

    (tmp_path / "recipe.yaml").write_text(
        f"name: four\ndata: {data}\nfirst_stage: {{depth: 8}}\nevaluate: {{depth: 8, measures: [RR@10]}}\n"
        f"model: {{start: {start}, max_length: 64, max_query: 16, attention: strm}}\n"
        "stages: {listwise: {max_steps: 4, batch: 4, negatives: 2, evaluate_every: 10000}}\n",
        encoding="utf-8",
    )
    queries, qrels = data / "queries.dev.tsv", data / "qrels.dev.txt"
    for out, run, *options in (["single", "single.run"], ["index", "bm25.run", "--language", "zh"]):
        call("index", data / "collection.tsv", "--out", out, *options)
        call("search", out, queries, "--k", "8", "--out", run)
        figures = call("evaluate", qrels, run, "--measures", "RR@10", "--json")
        figure = re.search(r"RR@10\D+([01]\.\d+)", figures)
        assert figure is not None
        assert float(figure[1]) > 0.9, "both find Chinese and Japanese texts, too"
    call("train", "recipe.yaml", "--out", "trained")
    given = ("rerank", "bm25.run", "--queries", queries, "--collection", "index")
    call(*given, "--model", "trained/model", "--out", "r.run")
    call("export", "trained/model", "--to", "onnx", "--out", "onnx")
    call(*given, "--model", "onnx", "--backend", "onnx", "--out", "onnx.run")
    runs = [(tmp_path / name).read_text(encoding="utf-8").splitlines() for name in ("r.run", "onnx.run")]
    assert [line.split()[:3] for line in runs[0]] == [line.split()[:3] for line in runs[1]]
    assert {line.split()[2] for line in runs[0]} == {f"{language}{i}" for language in TOPICS for i in range(4)}
    call("evaluate", qrels, "bm25.run", "r.run", "--measures", "RR@10")
    pair = ("--query", "東京の喫茶店", "--document", "東京の喫茶店. 詳しくはこちら。", "--json")
    call("explain", "--model", "trained/model", *pair)
    with TestClient(create_app(Service(Sources(tmp_path / "index", ("trained/model",))))) as client:
        for query, docid in (("汽车保险", "zh1"), ("東京の喫茶店", "ja2"), ("Brücken über den Rhein", "de3")):
            answer = client.post("/search", json={"query": query, "stages": "both", "highlight": True}).json()
            assert answer["first"][0]["id"] == docid
            assert docid in [row["id"] for row in answer["results"]]
            assert answer["first"][0]["matches"]
