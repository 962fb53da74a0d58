"""``rankwell types``, end to end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from rankwell.cli.types import types
from rankwell.core.errors import InputError, RankwellError

QUERIES = {
    "q1": "who wrote emma",
    "q2": "how many bees are in a hive",
    "q3": "blue heron",
    "q4": "what is an atom",
    "q5": "where is the louvre",
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Run ``rankwell types ARGUMENTS`` and give the lines it prints."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(types)

    def call(*arguments: str | Path) -> list[str]:
        app([str(argument) for argument in arguments], standalone_mode=False)
        return capsys.readouterr().out.splitlines()

    return call


def write(path: Path, rows: dict[str, str]) -> Path:
    path.write_text("".join(f"{key}\t{value}\n" for key, value in rows.items()), encoding="utf-8")
    return path


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    return write(tmp_path / "queries.tsv", QUERIES)


def read(path: Path) -> dict[str, str]:
    return dict(line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())


def test_rules_without_a_model(run: Callable[..., list[str]], queries: Path, tmp_path: Path) -> None:
    out = tmp_path / "types.tsv"
    printed = run(queries, "--out", out)
    # A query that the rules cannot tell has no line.
    assert read(out) == {"q1": "person", "q2": "numeric", "q4": "description", "q5": "location"}
    assert printed[0] == f"{out}: 4 of 5 queries have a type"
    assert [line.split() for line in printed[1:]] == [
        ["location", "1", "20.0%"],
        ["numeric", "1", "20.0%"],
        ["person", "1", "20.0%"],
        ["description", "1", "20.0%"],
        ["none", "1", "20.0%"],
    ]
    assert json.loads((tmp_path / "types.tsv.manifest.json").read_text())["kind"] == "types"


def test_the_user_s_labels_win(run: Callable[..., list[str]], queries: Path, tmp_path: Path) -> None:
    mine = write(tmp_path / "mine.tsv", {"q2": "animals", "q3": "entity", "elsewhere": "person"})
    out = tmp_path / "types.tsv"
    printed = run(queries, "--labels", mine, "--out", out)
    assert read(out) == {"q1": "person", "q2": "animals", "q3": "entity", "q4": "description", "q5": "location"}
    assert any(line.split()[0] == "animals" for line in printed)


def test_check_prints_accuracy_and_confusion(run: Callable[..., list[str]], queries: Path, tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.tsv", {"q1": "person", "q2": "numeric", "q3": "entity", "q4": "entity"})
    printed = run(queries, "--check", gold)
    assert "accuracy 0.5000 (4 texts)" in printed
    assert [line.split() for line in printed if line.startswith("entity")] == [
        ["entity", "0", "0", "1", "0", "1", "0.000"]
    ]
    assert not list(tmp_path.glob("types*"))  # without --out nothing is written


def test_a_model_s_labels(run: Callable[..., list[str]], queries: Path, tmp_path: Path, tiny_checkpoint: Path) -> None:
    model = Path(shutil.copytree(tiny_checkpoint, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    config |= {"id2label": {"0": "short", "1": "long"}, "label2id": {"short": 0, "long": 1}}
    (model / "config.json").write_text(json.dumps(config))
    out = tmp_path / "types.tsv"
    mine = write(tmp_path / "mine.tsv", {"q5": "mine"})
    run(queries, "--model", model, "--labels", mine, "--device", "cpu", "--out", out)

    from rankwell.rank.classify import Classifier

    classifier = Classifier.from_pretrained(model, engine={"device": "cpu"})
    expected = dict(zip(QUERIES, classifier.predict(list(QUERIES.values()))[0], strict=True))
    assert read(out) == expected | {"q5": "mine"}
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
def test_bad_label_files(
    run: Callable[..., list[str]], queries: Path, tmp_path: Path, name: str, content: str, problem: str
) -> None:
    (tmp_path / "mine.tsv").write_text(content)
    with pytest.raises(InputError) as caught:
        run(queries, name, tmp_path / "mine.tsv", "--out", tmp_path / "types.tsv")
    assert problem in str(caught.value)
    assert not (tmp_path / "types.tsv").exists()


def test_other_bad_input(run: Callable[..., list[str]], queries: Path, tmp_path: Path, tiny_tokenizer: Path) -> None:
    with pytest.raises(RankwellError, match="is a directory"):
        run(queries, "--out", tmp_path)
    with pytest.raises(RankwellError, match=r"config\.json"):
        run(queries, "--model", tiny_tokenizer, "--out", tmp_path / "types.tsv")
    untold = write(tmp_path / "untold.tsv", {"a": "blue heron"})
    with pytest.raises(RankwellError, match="there are no query types"):
        run(untold, "--out", tmp_path / "types.tsv")
