"""The model that ships, as a user gets it. Whatever is there in its place: test_default_model.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwell import Ranker, sample
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.records import Qrels
from rankwell.evaluation.evaluate import evaluate
from rankwell.models.checkpoints.names import DEFAULT, SHIPPED
from rankwell.models.devices import Computing
from rankwell.retrieve.index import Index
from rankwell.serve.api import create_app
from rankwell.serve.service import Service
from rankwell.serve.state import Sources

pytestmark = pytest.mark.skipif(not SHIPPED.is_dir(), reason=f"{DEFAULT} is not part of this checkout")
WARM = "how do bees keep warm in winter"
ABOUT_WARM = "In the cold months the colony forms a tight cluster and shivers its flight muscles to make heat."
QUERIES = 25


def test_it_is_small_and_says_what_it_is() -> None:
    files = {file.name: file.stat().st_size for file in SHIPPED.iterdir()}
    assert sum(files.values()) <= 25_000_000
    assert {"model.int8.safetensors", "config.json", "rankwell.json", "tokenizer.json", "README.md"} <= files.keys()
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\n")
    assert "license: apache-2.0" in card
    assert "TODO" not in card
    # Where it was trained is nobody's business.
    texts = [value for value in _strings(json.loads((SHIPPED / "rankwell.json").read_text())) if value]
    assert [value for value in texts if value[0] in "/~."] == []


def _strings(found: Any) -> list[str]:
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list):
        return [text for part in found for text in _strings(part)]
    return [found] if isinstance(found, str) else []


def test_it_knows_an_answer_that_shares_no_word_with_its_question() -> None:
    texts = ["Tea is grown on hills.", "The bank is open until four.", ABOUT_WARM, "A policy covers the car."]
    assert Ranker().rank(WARM, texts)[0]["corpus_id"] == 2


def test_it_ranks_the_sample_better_than_bm25(index: Path) -> None:
    data, opened = open_dataset(sample.FOLDER), Index.open(index)
    queries, qrels = data.queries("dev")[:QUERIES], data.qrels("dev")
    bm25 = opened.search(queries, k=10)
    reranked = Ranker().rerank(bm25, queries, opened)
    judged = Qrels({query.qid: qrels[query.qid] for query in queries if query.qid in qrels})
    before, after = (evaluate(judged, run, "nDCG@10").mean["nDCG@10"] for run in (bm25, reranked))
    assert after > before + 0.02


def test_it_needs_no_transformers() -> None:
    code = "import sys; sys.modules['transformers'] = None\nfrom rankwell import Ranker\n"
    code += f"print(Ranker().rank({WARM!r}, ['Tea.', {ABOUT_WARM!r}])[0]['corpus_id'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


def test_it_is_explained(rankwell: Callable[..., Any]) -> None:
    shown = rankwell("explain", "--query", WARM, "--document", ABOUT_WARM)
    assert shown.code == 0
    assert "layer 6, mean of 12 heads" in shown.out


def test_served_with_the_sample_it_tells_a_fish_from_a_swindle(index: Path) -> None:
    from fastapi.testclient import TestClient

    service = Service(Sources(index, (DEFAULT,), computing=Computing()))
    with TestClient(create_app(service, page=None)) as client:
        found = client.post("/search", json={"query": "what kind of fish is bogue", "depth": 10}).json()
        assert list(client.get("/health").json()["precision"]) == found["model"].split() == [DEFAULT]
    assert found["first"][0]["text"].startswith("Bogus fish is a plague")
    assert found["results"][0]["text"].startswith("Bogue is a slim, silvery fish")
