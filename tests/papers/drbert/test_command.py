"""``rankwell types``, end to end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwell.papers.drbert.query_types import Classifier

Call = Callable[..., Any]
QUERIES = {
    "q1": "who wrote emma",
    "q2": "how many bees are in a hive",
    "q3": "blue heron",
    "q4": "what is an atom",
    "q5": "where is the louvre",
}


def write(name: str, rows: dict[str, str]) -> str:
    Path(name).write_text("".join(f"{key}\t{value}\n" for key, value in rows.items()), encoding="utf-8")
    return name


@pytest.fixture
def types(rankwell: Call) -> Call:
    """Run ``rankwell types`` on the queries."""
    write("queries.tsv", QUERIES)
    return lambda *options: rankwell("types", "queries.tsv", *options)


def read(name: str) -> dict[str, str]:
    return dict(line.split("\t") for line in Path(name).read_text(encoding="utf-8").splitlines())


def test_rules_without_a_model(types: Call) -> None:
    printed = types("--out", "types.tsv").out.splitlines()
    # A query that the rules cannot tell has no line.
    assert read("types.tsv") == {"q1": "person", "q2": "numeric", "q4": "description", "q5": "location"}
    assert printed[0] == "types.tsv: 4 of 5 queries have a type"
    assert [line.split() for line in printed[1:]] == [
        ["location", "1", "20.0%"],
        ["numeric", "1", "20.0%"],
        ["person", "1", "20.0%"],
        ["description", "1", "20.0%"],
        ["none", "1", "20.0%"],
    ]


def test_the_user_s_labels_win(types: Call) -> None:
    mine = write("mine.tsv", {"q2": "animals", "q3": "entity", "elsewhere": "person"})
    printed = types("--labels", mine, "--out", "types.tsv").out.splitlines()
    labels = {"q1": "person", "q2": "animals", "q3": "entity", "q4": "description", "q5": "location"}
    assert read("types.tsv") == labels
    assert any(line.split()[0] == "animals" for line in printed)


def test_check_prints_the_accuracy(types: Call) -> None:
    gold = write("gold.tsv", {"q1": "person", "q2": "numeric", "q3": "entity", "q4": "entity"})
    printed = types("--check", gold).out.splitlines()
    assert printed[-1] == "accuracy 0.5000 (4 queries)"
    assert not list(Path().glob("types*"))  # without --out nothing is written


def test_a_model_s_labels(types: Call, tiny_checkpoint: Path) -> None:
    model = Path(shutil.copytree(tiny_checkpoint, "model"))
    config = json.loads((model / "config.json").read_text())
    config |= {"id2label": {"0": "short", "1": "long"}, "label2id": {"short": 0, "long": 1}}
    (model / "config.json").write_text(json.dumps(config))
    mine = write("mine.tsv", {"q5": "mine"})
    assert types("--model", model, "--labels", mine, "--device", "cpu", "--out", "types.tsv").code == 0

    classifier = Classifier.from_pretrained(model, engine={"device": "cpu"})
    expected = dict(zip(QUERIES, classifier.predict(list(QUERIES.values()))[0], strict=True))
    assert read("types.tsv") == expected | {"q5": "mine"}
    assert set(expected.values()) <= {"short", "long"}


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("--labels", "q1 person\n", "mine.tsv, line 1: found 1 column, expected 2"),
        ("--labels", "x1\tperson\n", "mine.tsv: none of its queries is in"),
        ("--check", "", "mine.tsv: is empty, expected query types"),
        ("--check", "q1\ta\nq1\tb\n", "mine.tsv, line 2: query id 'q1' was already on line 1"),
    ],
)
def test_bad_label_files(types: Call, name: str, content: str, problem: str) -> None:
    Path("mine.tsv").write_text(content)
    assert problem in types(name, "mine.tsv", "--out", "types.tsv").complaint
    assert not Path("types.tsv").exists()


def test_other_bad_input(types: Call, rankwell: Call, tiny_tokenizer: Path) -> None:
    assert "is a directory" in types("--out", ".").complaint
    assert "config.json" in types("--model", tiny_tokenizer, "--out", "types.tsv").complaint
    untold = write("untold.tsv", {"a": "blue heron"})
    assert "there are no query types" in rankwell("types", untold, "--out", "types.tsv").complaint
