"""``rankwell rerank`` as a user calls it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell import sample
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.formats import read_queries, read_run, read_types, write_run
from rankwell.corpus.query_types import rule_type
from rankwell.corpus.records import Run
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.checkpoints.export import export_model
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.models.checkpoints.names import encoder_digest
from rankwell.papers.ccnu.network import SdnetConfig, new_sdnet, save_sdnet
from rankwell.papers.ccnu.ranker import SdnetRanker
from rankwell.rank.dense import DenseRanker
from rankwell.rank.fusion import Shares, before_rest, fuse
from rankwell.rank.ranker import Ranker, open_ranker
from rankwell.retrieve.index import Index

Call = Callable[..., Any]
COLLECTION = sample.FOLDER / "collection.tsv"


@pytest.fixture(scope="module")
def first(index: Path, queries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three queries with five candidates each."""
    run = Index.open(index).search(read_queries(queries)[:3], k=5)
    path = tmp_path_factory.mktemp("rerank") / "bm25.run"
    write_run(run, path)
    return path


@pytest.fixture
def call(rankwell: Call, first: Path, queries: Path, index: Path, tiny_checkpoint: Path) -> Call:
    """Run ``rankwell rerank`` with the usual arguments; those given replace them."""

    def run(*arguments: str | Path, **changes: str | Path) -> Any:
        usual = {"queries": queries, "collection": index, "model": tiny_checkpoint, "out": "out.run"} | changes
        source = usual.pop("run", first)
        options = [part for name, value in usual.items() for part in (f"--{name}", value)]
        return rankwell("rerank", source, *options, *arguments)

    return run


@pytest.fixture
def expected(first: Path, queries: Path, index: Path, tiny_checkpoint: Path) -> Callable[..., Run]:
    """What the library makes of the same."""

    def make(depth: int = 1000, types: Path | None = None, **changes: Any) -> Run:
        labels = read_types(types) if types else {}
        asked = [replace(query, type=labels.get(query.qid)) for query in read_queries(queries)]
        ranker = Ranker.from_pretrained(tiny_checkpoint, **changes)
        return ranker.rerank(read_run(first), asked, Index.open(index), depth=depth)

    return make


@pytest.fixture(scope="module")
def sdnet(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SDNet ranker over the tiny encoder."""
    numbers = {"width": 32, "layers": 1, "vector_size": 32, "hidden": 8, "attention": 8, "max_words": 12}
    config = SdnetConfig(
        encoder=str(tiny_checkpoint), encoder_digest=encoder_digest(tiny_checkpoint), signals="dot", **numbers
    )
    folder = tmp_path_factory.mktemp("sdnet") / "model"
    save_sdnet(folder, new_sdnet(config, seed=3))
    return folder


def same(path: str | Path, expected: Run) -> bool:
    found = read_run(path)
    return list(found) == list(expected) and all(
        found[qid].docids == ranking.docids and np.allclose(found[qid].scores, ranking.scores, atol=1e-5)
        for qid, ranking in expected.items()
    )


def test_a_run_becomes_another(call: Call, expected: Callable[..., Run]) -> None:
    done = call("--set", "tag=mono")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"out\.run: 15 pairs, [\d.]+ s, [\d,]+ pairs/s; nothing truncated\n", done.out)
    assert same("out.run", expected())
    assert read_run("out.run").name == "mono"


def test_candidates_below_the_depth_follow(call: Call, expected: Callable[..., Run], first: Path) -> None:
    assert call("--depth", "3").out.startswith("out.run: 9 pairs")
    assert same("out.run", before_rest(expected(depth=3), read_run(first)))


def test_one_command_searches_joins_and_re_ranks(rankwell: Callable[..., Any], index: Path, first: Path) -> None:
    question, whole = "what good is cullet from broken bottles", Index.open(index)
    Index.build(whole.read(whole.rank(question, k=40).docids), "few")
    done = rankwell("rerank", question, "--collection", "few", "--hybrid", "--fuse", "0.5", "--depth", "5", "--json")
    assert len(json.loads(done.out)["results"]) == 5
    words = rankwell("rerank", question, "--collection", "few", "--depth", "5", "--json").out
    assert {row["id"] for row in json.loads(words)["results"]} != {row["id"] for row in json.loads(done.out)["results"]}
    wrong = rankwell("rerank", first, "--queries", "q.tsv", "--collection", index, "--hybrid")
    assert wrong.complaint == "--hybrid finds the candidates for a question; a run has its own"


def test_what_is_cut_from_texts_is_said(call: Call, expected: Callable[..., Run]) -> None:
    done = call("--set", "max_length=80", "--windows", "0")
    assert re.search(r"; truncated: [\d,]+ document tokens \(\d+ of 15 pairs\)\n", done.out)
    assert same("out.run", expected(template={"max_length": 80}, windows=None))


def test_the_models_parts_can_be_changed(call: Call, expected: Callable[..., Run], queries: Path) -> None:
    types = sample.FOLDER / "types.dev.tsv"
    assert call("--set", "attention=strm", "--set", "template=typed", "--set", f"types={types}").code == 0
    assert same("out.run", expected(attention="strm", template={"name": "typed"}, types=types))
    assert not same("out.run", expected(attention="strm", template={"name": "typed"}))
    typed = [(query.qid, rule_type(query.text)) for query in read_queries(queries)]
    Path("rules.tsv").write_text("".join(f"{qid}\t{kind}\n" for qid, kind in typed if kind))
    assert call("--set", "template=typed").code == 0
    assert same("out.run", expected(template={"name": "typed"}, types=Path("rules.tsv")))


def test_long_documents_are_read_in_windows(call: Call, expected: Callable[..., Run]) -> None:
    assert call("--windows", "20", "--set", "aggregate=top2").code == 0
    assert same("out.run", expected(windows=Windows(20, 10, "top2")))
    assert call("--windows", "20", "--set", "stride=20", "--set", "aggregate=top3:0.5,0.3,0.2").code == 0
    assert same("out.run", expected(windows=Windows(20, 20, "top3:0.5,0.3,0.2")))


def test_by_default_windows_are_what_fits(call: Call, expected: Callable[..., Run]) -> None:
    done = call("--set", "max_length=80")
    assert re.search(r"; read in windows: \d+ of 15 pairs \(\d+ windows\)\n", done.out)
    whole = expected(template={"max_length": 80})
    assert same("out.run", whole)
    assert not same("out.run", expected(template={"max_length": 80}, windows=None))
    assert call("--set", "max_length=80", "--set", "aggregate=mean").code == 0
    assert same("out.run", expected(template={"max_length": 80}, windows=Windows(aggregate="mean")))


def test_tokens_are_kept_in_an_index_or_a_store_and_used(
    call: Call, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DocumentStore.build(open_dataset(sample.FOLDER).documents(), "store")
    digest = Tokenizer.open(tiny_checkpoint).digest
    monkeypatch.setattr("rankwell.rank.texts.WORTH_KEEPING", 1.0)
    assert call(collection="store", out="without.run").code == 0
    assert not list(Path("store").glob("tokens-*"))
    monkeypatch.setattr("rankwell.rank.texts.WORTH_KEEPING", 0.0)
    assert call(collection="store").code == 0
    assert [path.name for path in Path("store").glob("tokens-*")] == [f"tokens-{digest}"]
    encode = Tokenizer.encode
    longest = []

    def watched(self: Tokenizer, texts: list[str], **options: bool) -> Any:
        longest.append(max(map(len, texts)))
        return encode(self, texts, **options)

    monkeypatch.setattr(Tokenizer, "encode", watched)
    assert call(collection="store", out="again.run").code == 0
    questions = [query.text for query in read_queries(sample.FOLDER / "queries.dev.tsv")]
    assert max(longest) <= max(map(len, questions)), "no document is tokenised again"
    runs = [Path(name).read_bytes() for name in ("out.run", "again.run", "without.run")]
    assert runs[0] == runs[1] == runs[2]


def test_scores_are_interpolated_with_the_first_run(call: Call, expected: Callable[..., Run], first: Path) -> None:
    assert call("--fuse", "0.8").code == 0
    assert same("out.run", fuse({"first": read_run(first), "model": expected()}, Shares(model=0.2, first=0.8)))
    assert call("--fuse", "0", "--set", "normalise=none").code == 0
    assert same("out.run", expected())


def test_a_bi_encoders_similarity_is_added(
    call: Call, expected: Callable[..., Run], first: Path, queries: Path, index: Path, tiny_bi_encoder: Path
) -> None:
    own, given = expected(), read_run(first)
    similar = DenseRanker(BiEncoder.from_pretrained(tiny_bi_encoder)).rerank(
        given, read_queries(queries), Index.open(index)
    )
    asked = ("--blend", "0.3", "--encoder", tiny_bi_encoder)
    assert call(*asked).code == 0
    assert same("out.run", fuse({"model": own, "similarity": similar}, Shares(model=0.7, similarity=0.3)))
    assert call(*asked, "--fuse", "0.2", "--set", "normalise=z-score").code == 0
    runs = {"model": own, "similarity": similar, "first": given}
    assert same("out.run", fuse(runs, Shares(model=0.5, similarity=0.3, first=0.2, normalise="z-score")))


def test_a_model_that_compares_documents_is_a_ranker_too(
    call: Call, first: Path, tiny_checkpoint: Path, queries: Path, index: Path, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "duo", *load_checkpoint(tiny_checkpoint, template={"name": "duo"}))
    assert call("--depth", "4", model=tmp_path / "duo").code == 0
    ranker = open_ranker(tmp_path / "duo")
    reranked = ranker.rerank(read_run(first).head(4), read_queries(queries), Index.open(index))
    assert same("out.run", before_rest(reranked, read_run(first)))


def test_texts_come_from_any_kind_of_collection(call: Call) -> None:
    DocumentStore.build(open_dataset(sample.FOLDER).documents(), "store")
    outputs = []
    for number, source in enumerate((COLLECTION, sample.FOLDER, "store")):
        assert call(collection=source, out=f"{number}.run").code == 0
        outputs.append(Path(f"{number}.run").read_bytes())
    call()
    assert set(outputs) == {Path("out.run").read_bytes()}


def test_a_cache_gives_the_same_file_without_computing(call: Call) -> None:
    assert call("--set", "cache=scores.db").out.endswith("; 0 scores from scores.db\n")
    again = call("--set", "cache=scores.db", out="again.run")
    assert again.out.endswith("; nothing truncated; 15 scores from scores.db\n")
    assert Path("again.run").read_bytes() == Path("out.run").read_bytes()


def test_scores_are_exact_unless_16_bits_are_asked_for(call: Call, expected: Callable[..., Run]) -> None:
    kept = ("--set", "cache=scores.db", "--device", "cpu")
    for precision, out in ((None, "plain.run"), ("fp32", "fp32.run"), ("bf16", "bf16.run")):
        assert call(*kept, *(("--precision", precision) if precision else ()), out=out).code == 0
    assert Path("plain.run").read_bytes() == Path("fp32.run").read_bytes()
    # What was kept in fp32 is not given out as bf16's.
    assert Path("bf16.run").read_bytes() != Path("fp32.run").read_bytes()
    short = expected(engine={"device": "cpu", "dtype": "bf16"})
    assert same("bf16.run", short)
    assert "rankwell export sets that of onnx" in call("--precision", "bf16", "--backend", "onnx").complaint


@pytest.mark.parametrize(
    ("arguments", "changes", "problem"),
    [
        ([], {"run": "none.run"}, "none.run: no such file"),
        ([], {"queries": "none.tsv"}, "none.tsv: no such file"),
        ([], {"queries": "other.tsv"}, "other.tsv: no query '"),
        ([], {"model": "nowhere"}, "nowhere: "),
        ([], {"collection": "nowhere.tsv"}, "nowhere.tsv: no such file"),
        ([], {"collection": "small.tsv"}, "of the run (query '"),
        ([], {"out": "."}, "cannot write .: is a directory"),
        (["--set", "types=none.tsv"], {}, "none.tsv: no such file"),
        (["--set", "types=types.tsv"], {}, "its template has no place for types; add --set template=typed"),
        (["--fuse", "1.5"], {}, "a weight of 1.5 for the first stage and 0 for the bi-encoder"),
        (["--fuse", "0.8", "--blend", "0.3"], {}, "a weight of 0.8 for the first stage and 0.3 for the"),
        (["--blend", "-0.1"], {}, "and -0.1 for the bi-encoder; expected numbers of at least 0"),
        (["--encoder", "some"], {}, "--encoder needs --blend"),
        (["--set", "max_length=9999"], {}, "a length of 9999, but the encoder has 512 positions"),
        (["--set", "max_length=10"], {}, "needs a length of at least"),
        (["--windows", "10", "--set", "stride=20"], {}, "the stride must be from 1 to the size"),
        (["--set", "stride=20"], {}, "the stride needs --windows"),
        (["--windows", "10", "--set", "aggregate=median"], {}, "no aggregation is called 'median'"),
        (["--set", "markers=true"], {}, "no marker tokens"),
        (["--set", "tag=two words"], {}, "the run name is 'two words'"),
        (["--backend", "onnx"], {}, "not an exported model"),
        (["--backend", "onnx", "--device", "cpu"], {}, "--device needs --backend torch, not onnx"),
        (["--set", "cache=theirs"], {}, "cannot write theirs: is a directory"),
        (["--set", "normalise=none"], {}, "--set normalise needs --fuse or --blend"),
        (["--windows", "0", "--set", "aggregate=top3"], {}, "--windows 0 truncates documents"),
        (
            ["--blend", "0.3", "--encoder", "nowhere"],
            {},
            "nowhere: no such folder; a model is a folder, PACKAGE:FOLDER",
        ),
        ([], {"out": "none.tsv/x.run"}, "cannot write none.tsv/x.run: none.tsv is not a directory"),
    ],
    ids=range(27),
)
def test_bad_input_is_one_line(call: Call, arguments: list[str], changes: dict[str, str], problem: str) -> None:
    Path("other.tsv").write_text("x\twhat\n")
    Path("small.tsv").write_text("x\ta text\n")
    Path("types.tsv").write_text("x\tnumeric\n")
    Path("theirs").mkdir()
    if changes.get("out") == "none.tsv/x.run":
        Path("none.tsv").touch()
    assert problem in call(*arguments, **changes).complaint
    assert not list(Path().glob("*.run*"))


WITHOUT_TORCH = """
import sys
sys.modules |= dict.fromkeys(("torch", "transformers", "safetensors"))
from rankwell.cli.main import main
main()
"""


def test_an_exported_model_needs_no_torch(
    first: Path, queries: Path, index: Path, tiny_checkpoint: Path, tmp_path: Path, expected: Callable[..., Run]
) -> None:
    export_model(tiny_checkpoint, tmp_path / "exported")

    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)]
        return subprocess.run(whole, capture_output=True, text=True, check=False)

    usual = ["rerank", first, "--queries", queries, "--collection", index, "--out", tmp_path / "out.run"]
    done = call(*usual, "--backend", "onnx", "--model", tmp_path / "exported")
    assert (done.returncode, done.stderr) == (0, "")
    assert same(tmp_path / "out.run", expected())
    training = ["train", "monobert", "--set", f"data={sample.FOLDER}", "--out", tmp_path / "trained"]
    for arguments in (usual, training):
        done = call(*arguments)
        assert done.returncode == 2
        assert "pip install 'rankwell[models]'" in done.stderr
        assert done.stderr.count("\n") == 1


def test_an_sdnet_re_ranks_as_well(call: Call, first: Path, queries: Path, index: Path, sdnet: Path) -> None:
    done = call("--device", "cpu", model=sdnet)
    assert done.code == 0
    assert re.fullmatch(r"rankwell: warning: truncated: [\d,]+ document tokens \(15 of 15 pairs\)\n", done.err)
    assert re.match(r"out\.run: 15 pairs, [\d.]+ s, [\d,]+ pairs/s; (nothing )?truncated", done.out)
    ranker = SdnetRanker.from_pretrained(sdnet, device="cpu")
    assert same("out.run", ranker.rerank(read_run(first), read_queries(queries), Index.open(index)))
    for options, problem in {
        ("--windows", "20"): "no option windows",
        ("--set", "cache=scores.db"): "no option cache",
        ("--set", "attention=strm"): "no option attention",
        ("--backend", "onnx"): "no option backend",
    }.items():
        assert f"sdnet rankers have {problem}" in call(*options, model=sdnet).complaint


def test_fields_of_the_collection_can_be_named(call: Call, index: Path) -> None:
    documents = [{"sku": d.docid, "blurb": d.text, "note": "x"} for d in open_dataset(sample.FOLDER).documents()]
    Path("c.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    assert call().code == 0
    done = call("--set", "id=sku", "--set", "text=blurb", collection="c.jsonl", out="named.run")
    assert done.code == 0, done.err
    assert Path("named.run").read_text() == Path("out.run").read_text()
    assert call("--set", "id=sku", out="other.run").complaint == f"{index} has no columns to name"
