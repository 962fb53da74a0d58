"""Scores of windows, kept: what is joined from them is what the ranker itself would have given."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.records import Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.reader import Reader
from rankwell.inputs.templates import Template
from rankwell.inputs.windows import Windows
from rankwell.rank.ranker import Ranker
from rankwell.rank.window_scores import WindowScores, score_windows

TEXTS = {
    "a": "bank bank bank tea tea tea bank tea tea tea",  # in windows of 3: 3, 0, 1 and, from the end, 0
    "b": "tea bank",
    "c": "tea tea tea bank bank tea",
}
QUERIES = [Query("q1", "honey"), Query("q2", "tea")]
RUN = Run.from_scores({"q1": {"a": 3.0, "b": 2.0, "c": 1.0}, "q2": {"c": 9.0, "a": 8.0}})
AGGREGATES = ["first", "max", "mean", "top1", "top2", "top3", "top3:0.5,0.3,0.2", "top2:1,3"]


@pytest.fixture(scope="module")
def ranker(counting: Ranker) -> Ranker:
    return Ranker.from_engine(counting.engine, Reader(counting.tokenizer, Template(), Windows(3, 3)))


@pytest.fixture(scope="module")
def scores(ranker: Ranker) -> WindowScores:
    return score_windows(ranker, RUN, QUERIES, DocumentStore.of_texts(TEXTS), keep=3)


def test_the_best_windows_of_each_pair_by_hand(scores: WindowScores) -> None:
    assert scores.docids == {"q1": ("a", "b", "c"), "q2": ("c", "a")}
    assert scores.counts.tolist() == [4, 1, 2, 2, 4]
    assert scores.first.tolist() == [3, 1, 0, 0, 3]
    assert scores.mean.tolist() == [1, 1, 1, 1, 1]
    nan = np.nan
    expected = [[3, 1, 0], [1, nan, nan], [2, 0, nan], [2, 0, nan], [3, 1, 0]]
    assert np.array_equal(scores.best, np.array(expected, np.float32), equal_nan=True)


def test_weights_by_hand(scores: WindowScores) -> None:
    # Of a document of fewer windows, the weights of those it has are shared out.
    expected = [0.5 * 3 + 0.3 * 1, 1, 0.5 * 2 / 0.8, 0.5 * 2 / 0.8, 0.5 * 3 + 0.3 * 1]
    assert scores.aggregate("top3:0.5,0.3,0.2").tolist() == pytest.approx(expected)


@pytest.mark.parametrize("how", AGGREGATES)
def test_they_are_joined_as_the_ranker_joins_them(scores: WindowScores, ranker: Ranker, how: str) -> None:
    direct = Ranker.from_engine(ranker.engine, Reader(ranker.tokenizer, ranker.template, Windows(3, 3, how)))
    expected = direct.rerank(RUN, QUERIES, DocumentStore.of_texts(TEXTS))
    found = scores.run(how)
    assert list(found) == list(expected)
    for qid in expected:
        assert found[qid].docids == expected[qid].docids
        assert found[qid].scores == pytest.approx(expected[qid].scores, rel=1e-6)


def test_depth_and_activation_are_the_rankers(ranker: Ranker) -> None:
    cut = score_windows(ranker, RUN, QUERIES, DocumentStore.of_texts(TEXTS), depth=1, activation="probability")
    assert cut.docids == {"q1": ("a",), "q2": ("c",)}
    assert cut.best[0, 0] == pytest.approx(1 / (1 + np.exp(-3)), rel=1e-6)


def test_more_queries_than_are_scored_at_a_time(
    ranker: Ranker, scores: WindowScores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwell.rank.ranker.PAIRS_AT_A_TIME", 1)
    again = score_windows(ranker, RUN, QUERIES, DocumentStore.of_texts(TEXTS), keep=3)
    assert again.docids == scores.docids
    assert np.array_equal(again.best, scores.best, equal_nan=True)


def test_documents_that_are_cut_are_one_window(ranker: Ranker) -> None:
    whole = Ranker.from_engine(ranker.engine, Reader(ranker.tokenizer, ranker.template, None))
    found = score_windows(whole, RUN, QUERIES, DocumentStore.of_texts(TEXTS), keep=2)
    assert found.counts.tolist() == [1] * 5
    assert found.aggregate("max").tolist() == [4, 1, 2, 2, 4]


def test_what_is_written_reads_back_bit_for_bit(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    counts = np.array([5, 1, 2], np.int64)
    best = np.sort(random.normal(size=(3, 3)).astype(np.float32), axis=1)[:, ::-1].copy()
    best[1, 1:] = best[2, 2:] = np.nan
    first, mean = (random.normal(size=3).astype(np.float32) for _ in range(2))
    WindowScores({"q": ("x", "y"), "r": ("x",)}, counts, first, mean, best).write(tmp_path / "w.npz")
    found = WindowScores.read(tmp_path / "w.npz")
    assert found.docids == {"q": ("x", "y"), "r": ("x",)}
    for ours, theirs in ((found.counts, counts), (found.first, first), (found.mean, mean), (found.best, best)):
        assert np.array_equal(ours, theirs, equal_nan=True)


def test_a_run_is_scores_of_one_window_each() -> None:
    found = WindowScores.of_run(RUN)
    for how in AGGREGATES:
        again = found.run(how)
        assert {qid: again[qid].docids for qid in again} == {qid: RUN[qid].docids for qid in RUN}
        assert again["q2"].scores.tolist() == pytest.approx([9.0, 8.0], rel=1e-6)


def test_windows_that_were_not_kept_cannot_count(scores: WindowScores) -> None:
    with pytest.raises(RankwellError, match="top4 needs the 4 best windows, but only 3 are stored"):
        scores.aggregate("top4")


def test_a_damaged_file_is_refused(tmp_path: Path, scores: WindowScores) -> None:
    path = tmp_path / "w.npz"
    scores.write(path)
    whole = path.read_bytes()
    for number in range(0, len(whole), 7):
        path.write_bytes(whole[:number] + bytes([whole[number] ^ 16]) + whole[number + 1 :])
        with suppress(InputError):
            found = WindowScores.read(path)
            assert found.docids == scores.docids
            assert np.array_equal(found.best, scores.best, equal_nan=True)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q1 Q0 a 1 2.0 bm25\n")
    with pytest.raises(InputError, match="not the scores of windows"):
        WindowScores.read(tmp_path / "run")
