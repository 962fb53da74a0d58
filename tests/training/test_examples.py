"""Training from a folder that has nothing but examples."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

import rankwell

WORDS = "bee honey hive flower river bridge stone iron coffee tea bread salt".split()


def write_examples(folder: Path) -> Path:
    """Twenty queries; every other one comes without negatives."""
    folder.mkdir()
    with (folder / "examples.jsonl").open("w") as file:
        for number in range(20):
            word, other = WORDS[number % 12], WORDS[(number + 5) % 12]
            negatives = [f"{other} market", f"{word} river"] if number % 2 else []
            example = {"query": f"{word} {number}", "pos": [f"{word} market {number}"], "neg": negatives}
            file.write(json.dumps(example) + "\n")
    return folder


def test_a_folder_of_examples_trains_a_ranker(tiny_checkpoint: Path, tmp_path: Path) -> None:
    recipe = {
        "name": "from-examples",
        "data": str(write_examples(tmp_path / "data")),
        "model": {"start": str(tiny_checkpoint), "max_length": 32, "max_query": 16},
        "first_stage": {"depth": 8},
        "evaluate": {"depth": 8, "measures": ["RR@10"]},
        "stages": {"pointwise": {"epochs": 1, "batch": 8, "negatives": 2}},
    }
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
    done = rankwell.train(tmp_path / "r.yaml", tmp_path / "out", device="cpu")
    train, dev = done.work.data.train, done.work.data.dev
    assert (len(train.queries), len(dev.queries)) == (18, 2)
    given = {query.qid: query.text for query in train.queries}
    by_text = {text: qid for qid, text in given.items()}
    # The negatives of the file where it has some, and what BM25 finds for the other queries.
    store = done.work.data.collection.store
    assert store.texts(train.run[by_text["honey 1"]].docids) == ["stone market", "honey river"]
    assert len(train.run[by_text["bee 0"]]) > 0
    assert done.last is not None
    assert done.model is not None
    scores = rankwell.Ranker.from_pretrained(done.model, device="cpu").predict([("bee", "bee market"), ("bee", "iron")])
    assert scores.shape == (2,)
