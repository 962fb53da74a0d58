"""``rankwell expand``, end to end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

pytest.importorskip("torch")
pytest.importorskip("transformers")

from rankwell.cli.expand import expand
from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.formats.expansions import read_expansions
from rankwell.models.doc2query.checkpoints import WriterConfig, load_writer, save_writer

TEXTS = {f"d{number}": f"{word} and honey" for number, word in enumerate("bees bank river stone tea iron".split())}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Run ``rankwell expand ARGUMENTS`` and give the lines it prints."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(expand)

    def call(*arguments: str | Path) -> list[str]:
        app([str(argument) for argument in arguments], standalone_mode=False)
        return capsys.readouterr().out.splitlines()

    return call


@pytest.fixture(scope="module")
def writer(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, tokenizer, _ = load_writer(tiny_checkpoint, seed=2)
    folder = tmp_path_factory.mktemp("writer") / "writer"
    save_writer(folder, model, tokenizer, WriterConfig(max_length=32, max_query=6))
    return folder


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "collection.tsv"
    path.parent.mkdir()
    path.write_text("".join(f"{docid}\t{text}\n" for docid, text in TEXTS.items()), encoding="utf-8")
    return path


def test_a_file_its_manifest_and_a_look_at_it(
    run: Callable[..., list[str]], writer: Path, collection: Path, tmp_path: Path
) -> None:
    out = tmp_path / "e.jsonl.gz"
    printed = run(collection, "--model", writer, "--n", "3", "--out", out, "--device", "cpu", "--show", "2")
    found = list(read_expansions(out))
    assert [one.docid for one in found] == list(TEXTS)
    assert all(1 <= len(one.queries) <= 3 for one in found)
    assert printed[0].startswith(f"{out}: ")
    assert printed[2:] == [
        "d0: bees and honey",
        *(f"  - {query}" for query in found[0].queries),
        "",
        "d1: bank and honey",
        *(f"  - {query}" for query in found[1].queries),
    ]
    manifest = json.loads(Path(f"{out}.manifest.json").read_text())
    assert (manifest["config"]["n"], manifest["config"]["method"]) == (3, "sample")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "e.jsonl.gz", "e.jsonl.gz.manifest.json"]
    with pytest.raises(RankwellError, match="exists already"):
        run(collection, "--model", writer, "--out", out)


def test_fields_of_the_collection_can_be_named(
    run: Callable[..., list[str]], writer: Path, collection: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "odd.jsonl"
    odd.write_text("".join(json.dumps({"nr": docid, "wording": text}) + "\n" for docid, text in TEXTS.items()))
    run(collection, "--model", writer, "--n", "2", "--out", tmp_path / "a.jsonl", "--device", "cpu")
    fields = ("--id", "nr", "--text", "wording")
    run(odd, "--model", writer, "--n", "2", "--out", tmp_path / "b.jsonl", "--device", "cpu", *fields)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_the_same_seed_writes_the_same_and_another_does_not(
    run: Callable[..., list[str]], writer: Path, collection: Path, tmp_path: Path
) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        run(collection.parent, "--model", writer, "--seed", seed, "--out", tmp_path / name, "--device", "cpu")
    first, second, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == second
    assert first != other


def test_queries_become_a_split_to_train_on(
    run: Callable[..., list[str]], writer: Path, collection: Path, tmp_path: Path
) -> None:
    out, folder = tmp_path / "e.jsonl", collection.parent
    printed = run(folder, "--model", writer, "--out", out, "--queries", folder, "--device", "cpu")
    data = open_dataset(folder)
    assert data.splits == ("generated", "generated.dev")
    assert f"{folder}: {len(data.queries('generated')):,} queries in the split generated" in printed
    (first, *_) = data.queries("generated")
    (docid,) = data.qrels("generated")[first.qid]
    written = {one.docid: one.queries for one in read_expansions(out)}
    assert first.text in written[docid]


def test_a_judge_drops_queries(
    run: Callable[..., list[str]], writer: Path, collection: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    arguments = (collection, "--model", writer, "--judge", tiny_checkpoint, "--device", "cpu")
    run(*arguments, "--out", tmp_path / "all", "--threshold", "0")
    run(*arguments, "--out", tmp_path / "none", "--threshold", "1")
    count = [sum(len(one.queries) for one in read_expansions(tmp_path / name)) for name in ("all", "none")]
    assert count[0] > 10
    assert count[1] == 0


def test_what_is_wrong_is_one_line(
    run: Callable[..., list[str]], writer: Path, collection: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "e.jsonl"
    with pytest.raises(InputError, match="not a query writer"):
        run(collection, "--model", tiny_checkpoint, "--out", out)
    with pytest.raises(RankwellError, match="is a directory"):
        run(collection, "--model", writer, "--out", tmp_path)
    with pytest.raises(RankwellError, match="--method guess: expected sample or beam"):
        run(collection, "--model", writer, "--method", "guess", "--out", out)
    with pytest.raises(RankwellError, match="n is 0"):
        run(collection, "--model", writer, "--n", "0", "--out", out)
    assert not out.exists()
