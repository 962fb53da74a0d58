"""Pipelines: composing, checking before running, and the same results as the parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.rank.fusion import RankFusion, Shares, fuse
from rankwell.rank.pipeline import Cut, First, Fuse, Given, Pipeline, Rerank
from rankwell.rank.ranker import Ranker
from rankwell.rank.texts import InMemoryTexts, digest_texts, open_texts
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index

DOCUMENTS = [
    Document("d1", "bees keep the hive warm in winter"),
    Document("d2", "the bank keeps money warm"),
    Document("d3", "bees and honey"),
    Document("d4", "a warm river", title="water"),
    Document("d5", "warm bees"),
]
QUERIES = [Query("q1", "how do bees keep warm"), Query("q2", "money bank"), Query("q3", "zebra")]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.build(DOCUMENTS, tmp_path_factory.mktemp("pipeline") / "index")


@pytest.fixture(scope="module")
def ranker(tiny_checkpoint: Path) -> Ranker:
    return Ranker.from_pretrained(tiny_checkpoint)


def same(found: Run, expected: Run) -> bool:
    return list(found) == list(expected) and all(found[qid] == expected[qid] for qid in expected)


def test_first_then_rerank_is_search_then_rerank(index: Index, ranker: Ranker) -> None:
    pipeline = First(index, bm25=BM25(k1=1.2, b=0.75)) >> Rerank(ranker) % 2
    found = pipeline.run(QUERIES, name="mine")
    expected = ranker.rerank(index.search(QUERIES, BM25(k1=1.2, b=0.75)), QUERIES, index, depth=2)
    assert same(found, expected)
    assert found.name == "mine"
    assert list(found) == ["q1", "q2"]  # nothing matches zebra
    assert len(found["q1"]) == 2


def test_depth_binds_to_its_stage_before_stages_are_joined(index: Index, ranker: Ranker) -> None:
    first, rerank = First(index), Rerank(ranker)
    pipeline = first % 3 >> rerank % 2
    assert pipeline == Pipeline((First(index, depth=3), Rerank(ranker, depth=2)))
    assert (first.depth, rerank.depth) == (1000, 1000)  # values do not change


def test_the_depth_of_a_whole_pipeline_cuts_what_comes_out(index: Index, ranker: Ranker) -> None:
    whole = First(index) >> Rerank(ranker)
    assert (whole % 1).stages[-1] == Cut(1)
    everything, best = whole.run(QUERIES), (whole % 1).run(QUERIES)
    assert best["q1"] == everything["q1"].head(1)
    assert same((First(index) >> Cut(2)).run(QUERIES), index.search(QUERIES, k=2))


def test_joining_is_associative(index: Index, ranker: Ranker) -> None:
    first, rerank, fusion = First(index), Rerank(ranker), Fuse(0.3)
    assert (first >> rerank) >> fusion == first >> (rerank >> fusion) == Pipeline((first, rerank, fusion))


def test_fuse_joins_the_first_run_with_the_last(index: Index, ranker: Ranker) -> None:
    first = index.search(QUERIES)
    mono = ranker.rerank(first, QUERIES, index)
    pipeline = First(index) >> Rerank(ranker)
    runs = {"first": first, "model": mono}
    assert same((pipeline >> Fuse(0.3)).run(QUERIES), fuse(runs, Shares(model=0.7, first=0.3)))
    assert same((pipeline >> Fuse(RankFusion()) % 2).run(QUERIES), fuse(runs, RankFusion(), depth=2))


def test_what_was_not_reranked_stays_beneath_when_fused(index: Index, ranker: Ranker) -> None:
    found = (First(index) >> Rerank(ranker) % 2 >> Fuse(0.5)).run(QUERIES[:1])["q1"]
    first = index.rank(QUERIES[0].text, k=1000)
    assert set(found.docids[:2]) == set(first.docids[:2])
    assert found.docids[2:] == first.docids[2:]


def test_a_given_run_takes_the_place_of_a_first_stage(index: Index, ranker: Ranker) -> None:
    run = Run.from_scores({"q1": {"d1": 1.0, "d2": 2.0}, "q2": {"d2": 1.0}, "q9": {"d1": 1.0}})
    found = (Given(run) >> Rerank(ranker, index)).run(QUERIES)
    expected = ranker.rerank(Run({qid: run[qid] for qid in ("q1", "q2")}), QUERIES, index)
    assert same(found, expected)


def test_search_answers_one_question(index: Index, ranker: Ranker) -> None:
    pipeline = First(index) >> Rerank(ranker) % 100
    found = pipeline.search("how do bees keep warm", k=2)
    assert found == pipeline.run(QUERIES[:1])["q1"].head(2)
    assert len(pipeline.search("zebra")) == 0


def test_search_passes_the_type_on(index: Index, tiny_checkpoint: Path) -> None:
    typed = Ranker.from_pretrained(tiny_checkpoint, template={"name": "typed"})
    pipeline = First(index) >> Rerank(typed)
    question = "how do bees keep warm"
    assert pipeline.search(question, type="numeric") == pipeline.run([Query("q", question, "numeric")])["q"]
    assert pipeline.search(question, type="numeric") != pipeline.search(question)


class Forbidden:
    """An index that must not be searched."""

    has_texts = True

    def search(self, *_: object, **__: object) -> Run:
        raise AssertionError("ran before it was checked")


def test_mistakes_are_found_before_anything_runs(ranker: Ranker, index: Index) -> None:
    first = First(Forbidden())  # type: ignore[arg-type]
    run = Given(Run.from_scores({"q1": {"d1": 1.0}}))
    cases = [
        (Rerank(ranker, index) >> Fuse(0.5), "Rerank cannot come first, it needs candidates"),
        (Fuse(0.5) >> Rerank(ranker), "Fuse cannot come first"),
        (first >> Rerank(ranker) >> first, "First must come first: it would replace the run of Rerank"),
        (first >> run, "Given must come first"),
        (first >> Fuse(0.5), "Fuse has only one run"),
        (run >> Rerank(ranker), "Rerank has no texts to read"),
        (Pipeline(()), "a pipeline without stages"),
    ]
    for pipeline, problem in cases:
        with pytest.raises(RankwellError, match=problem):
            pipeline.run(QUERIES)
    with pytest.raises(RankwellError, match="has results only for its own queries"):
        (run >> Rerank(ranker, index)).search("bees")


def test_impossible_settings_are_refused_when_they_are_made(index: Index, ranker: Ranker) -> None:
    for make in (lambda: First(index) % 0, lambda: Rerank(ranker) % -1, lambda: Cut(0), lambda: Fuse(0.5) % 0):
        with pytest.raises(RankwellError, match="expected 1 or more"):
            make()
    with pytest.raises(RankwellError, match="Given has no depth"):
        Given(Run()) % 5
    with pytest.raises(RankwellError, match="there is no run called 'similarity'"):
        Fuse(Shares(model=0.5, similarity=0.3, first=0.2))
    with pytest.raises(TypeError):
        First(index) >> "rerank"  # type: ignore[operator]


def test_a_pipeline_prints_as_it_is_written(index: Index) -> None:
    text = str(First(index) % 100 >> Fuse(0.5))
    assert text.startswith("First(index=Index(")
    assert ">> Fuse(share=0.5, depth=None)" in text


# Where texts come from


@pytest.fixture
def run() -> Run:
    return Run.from_scores({"q1": {"d4": 2.0, "d1": 1.0}, "q2": {"d1": 3.0}})


def write_collection(folder: Path, lines: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "collection.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


LINES = [f'{{"_id": "{d.docid}", "title": "{d.title}", "text": "{d.text}"}}' for d in DOCUMENTS]


def test_texts_are_the_same_from_every_source(tmp_path: Path, index: Index, run: Run) -> None:
    path = write_collection(tmp_path / "data", LINES)
    DocumentStore.build(DOCUMENTS, tmp_path / "store")
    Index.build(DOCUMENTS[:2], tmp_path / "two")
    Index.build(DOCUMENTS[2:], tmp_path / "two", append=True)
    digests = set()
    for source in (path, tmp_path / "data", tmp_path / "store", index.folder, tmp_path / "two"):
        texts = open_texts(source, run)
        assert texts.texts(["d1", "d4", "d1"]) == [DOCUMENTS[0].text, "water a warm river", DOCUMENTS[0].text]
        digests.add(digest_texts(texts, run))
    assert len(digests) == 1
    assert digest_texts(InMemoryTexts({"d1": "x", "d4": "y"}), run) not in digests


def test_a_collection_is_read_no_further_than_needed(tmp_path: Path, run: Run) -> None:
    path = write_collection(tmp_path / "data", [*LINES[:4], "broken"])
    assert open_texts(path, run).texts(["d4"]) == ["water a warm river"]
    path = write_collection(tmp_path / "data", [*LINES[:3], "broken", LINES[3]])
    with pytest.raises(RankwellError, match="line 4"):
        open_texts(path, run)


def test_the_first_document_that_is_missing_is_named(tmp_path: Path, index: Index) -> None:
    run = Run.from_scores({"q1": {"d1": 2.0}, "q2": {"x": 3.0, "y": 1.0}})
    path = write_collection(tmp_path / "data", LINES)
    DocumentStore.build(DOCUMENTS, tmp_path / "store")
    for source in (path, tmp_path / "store", index.folder):
        with pytest.raises(RankwellError, match=r"document 'x' of the run \(query 'q2'\) is not in"):
            open_texts(source, run)


def test_an_index_without_texts_is_refused_at_once(tmp_path: Path, run: Run) -> None:
    Index.build(DOCUMENTS, tmp_path / "bare", store=False)
    with pytest.raises(RankwellError, match="built without texts"):
        open_texts(tmp_path / "bare", run)
