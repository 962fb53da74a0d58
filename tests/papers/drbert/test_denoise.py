"""Noise reduction: what is dropped, what never is, and what the audit says of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rankwell.core.errors import RankwellError
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.formats import read_run
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Document, Qrels, Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.papers.drbert.denoise import AUDIT_COLUMNS, REASONS, Audit, denoise
from rankwell.papers.drbert.options import DenoiseOptions
from rankwell.retrieve.index import Index
from rankwell.sample import FOLDER
from rankwell.training.data.candidates import UNJUDGED, TrainingCandidates, write_candidates
from rankwell.training.data.sampling import Plan, draw

DOCIDS = [*"abcdefghij", *(f"d{i}" for i in range(10))]
DOCUMENTS = DocumentStore.of_texts({docid: f"{docid}\n{docid}" for docid in DOCIDS})
QUERIES = [Query("p", "first\tquery"), Query("q", "second query")]
RELEVANT, NON_RELEVANT, CLEAN, DOUBTED, LAST, NOISE = REASONS
ANY_NUMBER = DenoiseOptions(most=1)


def make(grades: list[list[int]]) -> TrainingCandidates:
    """Queries with candidates of these grades, ranked in this order, documents numbered through."""
    flat = np.array([grade for own in grades for grade in own], np.int32)
    docids = Lexicon()
    documents = docids.add([f"d{i}" for i in range(len(flat))])
    ends = np.cumsum([len(own) for own in grades])
    qids = tuple(f"q{i}" for i in range(len(grades)))
    return TrainingCandidates(qids, ends, documents, flat, -np.arange(len(flat), dtype=np.float32), docids)


def reasons(audit: Audit) -> list[str]:
    return [REASONS[reason] for reason in audit.reasons]


def test_unjudged_candidates_above_the_threshold_are_dropped() -> None:
    candidates = make([[1, UNJUDGED, 0, UNJUDGED, UNJUDGED]])
    kept, audit = denoise(candidates, np.array([0.99, 0.91, 0.99, 0.9, 0.1], np.float32), ANY_NUMBER)
    assert reasons(audit) == [RELEVANT, NOISE, NON_RELEVANT, CLEAN, CLEAN]
    assert kept.documents.tolist() == [0, 2, 3, 4]
    assert kept.scores.tolist() == [0, -2, -3, -4]
    assert audit.rate == pytest.approx(1 / 3)


def test_where_too_many_are_above_the_threshold_none_is_noise() -> None:
    candidates = make([[1, UNJUDGED, UNJUDGED, UNJUDGED, UNJUDGED]])
    p = np.array([0.9, 0.95, 0.2, 0.1, 0.3], np.float32)
    believed, audit = denoise(candidates, p, DenoiseOptions(most=0.25))
    assert (believed.documents.tolist(), audit.rate, audit.doubted) == ([0, 2, 3, 4], 0.25, 0)
    kept, audit = denoise(candidates, p, DenoiseOptions(most=0.24))
    assert (kept.documents.tolist(), audit.rate, audit.doubted) == ([0, 1, 2, 3, 4], 0, 0.25)
    assert reasons(audit) == [RELEVANT, DOUBTED, CLEAN, CLEAN, CLEAN]
    listed = [line.split("\t")[4] for line in audit._lines({}, DOCUMENTS, 0)]
    assert listed[1:] == [DOUBTED, RELEVANT]  # so that one can see for oneself


def test_a_query_keeps_its_least_likely_negative() -> None:
    candidates = make([[UNJUDGED, 1, UNJUDGED, UNJUDGED], [1, UNJUDGED]])
    p = np.array([0.97, 0.9, 0.95, 0.96, 0.9, 0.1], np.float32)
    kept, audit = denoise(candidates, p, ANY_NUMBER)
    assert reasons(audit)[:4] == [NOISE, RELEVANT, LAST, NOISE]
    assert kept.lengths.tolist() == [2, 2]
    assert audit.figures()["queries that keep one negative"] == 1


@given(
    st.lists(st.lists(st.sampled_from([UNJUDGED, UNJUDGED, 0, 1, 2]), max_size=6), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    st.sampled_from([0.2, 1.0]),
    st.randoms(use_true_random=False),
)
def test_what_was_judged_is_never_noise_and_no_query_loses_all(
    grades: list[list[int]], threshold: float, most: float, random: object
) -> None:
    candidates = make([[*own, 1, UNJUDGED] for own in grades])
    p = np.array([random.choice([0, 0.1, 0.5, 0.55, 0.9, 0.95, 1]) for _ in range(len(candidates))], np.float32)  # type: ignore[attr-defined]
    kept, audit = denoise(candidates, p, DenoiseOptions(threshold=threshold, most=most))
    assert set(candidates.documents[candidates.relevant]) <= set(kept.documents)
    noise = candidates.documents[audit.noise]
    assert (candidates.grades[noise] == UNJUDGED).all()
    assert set(kept.documents).isdisjoint(noise)
    assert (kept.per_query(~kept.relevant) >= 1).all()
    figures = audit.figures()
    assert sum(figures["reasons"].values()) == len(candidates)
    assert figures["kept"] == len(kept)
    draw(kept, Plan(), 0, 0)  # what is left can be trained on


def test_probabilities_are_checked() -> None:
    candidates = make([[1, UNJUDGED]])
    for wrong in (1.5, -0.1, np.nan):
        with pytest.raises(RankwellError, match=f"document 'd1' of query 'q0' is {wrong:g}, expected a probability"):
            denoise(candidates, np.array([0.5, wrong]))
    with pytest.raises(ValueError, match="for 2 candidates"):
        denoise(candidates, np.array([0.5]))


@pytest.mark.parametrize("options", [{"threshold": 1.1}, {"most": 2}])
def test_options_are_checked(options: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(options))):
        DenoiseOptions(**options)  # type: ignore[arg-type]


def found(level: int = 1) -> TrainingCandidates:
    run = Run.from_scores(
        {"p": {"a": 3.25, "b": 2.1, "c": -0.1, "d": -0.2}, "q": {"e": 1e-9, "f": 0.0}}, name="first stage"
    )
    qrels = Qrels({"p": {"b": 1, "i": 2, "j": 0}, "q": {"f": 2, "e": 0}})
    return TrainingCandidates.of(QUERIES, qrels, run, DOCUMENTS, level=level)


QRELS = Qrels({"p": {"b": 1, "i": 2, "j": 0}, "q": {"f": 2, "e": 0}})


def test_the_audit_lists_what_was_dropped_first(tmp_path: Path) -> None:
    candidates = found()
    assert candidates.docids.strings(candidates.documents) == list("abcdief")
    _, audit = denoise(candidates, np.array([0.93, 0.7, 0.2, 0.98, 0.5, 0.99, 1.0], np.float32), ANY_NUMBER)
    audit.write(tmp_path, QUERIES, DOCUMENTS)
    header, *lines = gzip.decompress((tmp_path / "audit.tsv.gz").read_bytes()).decode().splitlines()
    assert tuple(header.split("\t")) == AUDIT_COLUMNS
    assert [line.split("\t") for line in lines[:3]] == [
        ["p", "d", "0.980000", "dropped", NOISE, "first query", "d d"],
        ["p", "a", "0.930000", "dropped", NOISE, "first query", "a a"],
        ["q", "f", "1.000000", "kept", RELEVANT, "second query", "f f"],
    ]
    assert [line.split("\t")[1] for line in lines] == list("dafebic")
    figures = json.loads((tmp_path / "audit.json").read_text())
    assert figures["noise"] == 2
    assert figures["noise rate"] == pytest.approx(2 / 3)
    assert figures["noise a query"] == {"mean": 1.0, "most": 2}
    assert figures["queries with noise"] == 1
    assert figures["reasons"][RELEVANT] == 3
    assert figures["options"] == {"threshold": 0.9, "most": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.json", "audit.tsv.gz"]


def test_the_audit_can_be_short(tmp_path: Path) -> None:
    _, audit = denoise(found(), np.array([0.93, 0.7, 0.2, 0.3, 0.5, 0.99, 1.0], np.float32), ANY_NUMBER)
    for most, docids in ((1, "afebid"), (None, "afebidc"), (0, "afebi")):
        audit.write(tmp_path, QUERIES, DOCUMENTS, most=most)
        lines = gzip.decompress((tmp_path / "audit.tsv.gz").read_bytes()).decode().splitlines()[1:]
        assert [line.split("\t")[1] for line in lines] == list(docids)


def test_an_audit_that_fails_half_way_leaves_no_file(tmp_path: Path) -> None:
    _, audit = denoise(found(), np.full(7, 0.5))
    with pytest.raises(RankwellError, match="document 'b' is not among the texts"):
        audit.write(tmp_path, QUERIES, DocumentStore.of_texts({"a": "the only text"}))
    assert not (tmp_path / "audit.tsv.gz").exists()


def test_kept_candidates_are_read_back_the_same(tmp_path: Path) -> None:
    kept, _ = denoise(found(), np.array([0.93, 0.7, 0.2, 0.1, 0.5, 0.99, 1.0], np.float32), ANY_NUMBER)
    path = tmp_path / "candidates.run.gz"
    write_candidates(kept, path)
    again = TrainingCandidates.of(QUERIES, QRELS, read_run(path), DOCUMENTS, depth=None)
    assert again.qids == kept.qids
    for column in ("ends", "documents", "grades", "scores"):
        np.testing.assert_array_equal(getattr(again, column), getattr(kept, column))
    assert again.docids.strings(again.documents) == list("bcdief")
    assert read_run(path)["p"].docids == ("b", "c", "d")


def test_unjudged_copies_of_relevant_passages_are_found(tmp_path: Path) -> None:
    data = open_dataset(FOLDER)
    queries, qrels = data.queries("train"), data.qrels("train")
    texts = {document.docid: document.text for document in data.documents()}
    wanted = {docid for grades in qrels.values() for docid, grade in grades.items() if grade >= 2}
    copies = [Document(f"copy-{docid}", texts[docid]) for docid in sorted(wanted)]
    index = Index.build([*(Document(*pair) for pair in texts.items()), *copies], tmp_path / "index")
    store = index.segments[0].store
    candidates = TrainingCandidates.of(queries, qrels, index.search(queries, k=50), store, level=2)
    assert len(candidates.qids) == 130

    names = candidates.docids.strings(candidates.documents)
    texts_of = dict(zip(names, index.texts(names), strict=True))
    answers = {qid: {texts[d] for d, grade in qrels[qid].items() if grade >= 2} for qid in candidates.qids}
    qids = [candidates.qids[row] for row in candidates.rows]
    perfect = np.array([0.97 if texts_of[d] in answers[q] else 0.03 for q, d in zip(qids, names, strict=True)])
    planted = [d.startswith("copy-") and texts_of[d] in answers[q] for q, d in zip(qids, names, strict=True)]

    kept, audit = denoise(candidates, perfect, ANY_NUMBER)
    assert audit.noise.tolist() == planted
    assert sum(planted) > 100
    lists = draw(kept, Plan(negatives=20), 1, 0)
    for query, documents in zip(lists.queries, lists.documents, strict=True):
        own = answers[kept.qids[query]]
        assert own.isdisjoint(texts_of[name] for name in kept.docids.strings(documents[1:]))
    audit.write(tmp_path, queries, index)
    first = gzip.decompress((tmp_path / "audit.tsv.gz").read_bytes()).decode().splitlines()[1 : 1 + sum(planted)]
    assert all("\tcopy-" in line and "\tdropped\t" in line for line in first)
