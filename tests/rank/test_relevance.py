"""Relevance: what it is made of, how it is fitted, and what a least one leaves out."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.manifest import write_sealed
from rankwell.corpus.records import Document, Query, Run
from rankwell.rank import system as systems
from rankwell.rank.calibration import (
    Judged,
    Trial,
    calibrate,
    fit,
    fit_isotonic,
    fit_logistic,
    judged_lists,
    try_out,
)
from rankwell.rank.first_stage import EVERYTHING, FirstStage, Scope
from rankwell.rank.relevance import Calibration, Found, Signals, features, word_shares
from rankwell.rank.system import System
from rankwell.retrieve.index import Index

WORDS = "bank money interest bee honey hive winter river fish whale city country king queen year music book".split()
OWN = Calibration(("words", "score"), (-2.0, 4.0, 0.5, -1.0), queries=60, documents=60, threshold=0.3)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    random = np.random.default_rng(0)
    documents = [Document(f"d{number}", " ".join(random.choice(WORDS, 6))) for number in range(60)]
    return Index.build(documents, tmp_path_factory.mktemp("relevance") / "index")


@pytest.fixture
def system(index: Index, tmp_path: Path) -> System:
    return System(FirstStage(index), relevance=OWN).save(tmp_path / "system")


def queries_of(index: Index, words: int = 3) -> tuple[list[Query], dict[str, dict[str, int]]]:
    """For each document the query of its first words."""
    docids = [f"d{number}" for number in range(len(index))]
    texts = zip(docids, index.texts(docids), strict=True)
    return [Query(docid, " ".join(text.split()[:words])) for docid, text in texts], {name: {name: 1} for name in docids}


# The regression and the curve


def random_rows(count: int, columns: int) -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    rows = random.normal(size=(count, columns)) * [1, 20, 0.01][:columns] + 5
    return rows, random.random(count) < 1 / (1 + np.exp(-(rows[:, 0] - 5)))


@pytest.mark.parametrize("ridge", [0.01, 1.0, 30.0])
def test_the_regression_is_the_minimum_that_another_optimiser_finds(ridge: float) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    rows, labels = random_rows(200, 3)
    scaled = (rows - rows.mean(axis=0)) / rows.std(axis=0)

    def loss(weights: Any) -> float:
        linear = scaled @ weights[1:] + weights[0]
        return float(np.logaddexp(0, linear).sum() - linear[labels].sum() + ridge / 2 * (weights[1:] ** 2).sum())

    best = optimize.minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-9}).x
    weights = fit_logistic(rows, labels, ridge)
    assert rows @ weights[1:] + weights[0] == pytest.approx(scaled @ best[1:] + best[0], abs=1e-4)


def test_a_column_that_never_changes_has_no_weight_and_separable_labels_have_finite_ones() -> None:
    rows = np.column_stack([np.arange(10.0), np.full(10, 7.0)])
    weights = fit_logistic(rows, np.arange(10) > 4)
    assert np.isfinite(weights).all()
    assert weights[1] > 0
    assert weights[2] == pytest.approx(0, abs=1e-9)


def test_neighbours_that_fall_are_merged() -> None:
    values, labels = np.arange(1.0, 7), np.array([False, True, False, False, True, True])
    # 0 | 1 0 0 → 1/3 | 1 1 → 1, at the mean of the values of each.
    assert fit_isotonic(values, labels) == [(1.0, 0.0), (3.0, pytest.approx(1 / 3)), (5.5, 1.0)]


def test_the_curve_is_the_nearest_rising_one() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    random = np.random.default_rng(5)
    values = random.permutation(300) / 10
    labels = random.random(300) < values / 30
    levels = fit_isotonic(values, labels)
    nearest = optimize.isotonic_regression(labels[np.argsort(values)].astype(float)).x
    assert sorted({y for _, y in levels}) == pytest.approx(sorted(set(np.round(nearest, 12))))
    assert [x for x, _ in levels] == sorted(x for x, _ in levels)


def test_equal_values_have_one_probability() -> None:
    assert fit_isotonic(np.array([2.0, 1.0, 2.0, 2.0]), np.array([True, False, False, True])) == [
        (1.0, 0.0),
        (2.0, pytest.approx(2 / 3)),
    ]


# What is measured


def test_a_trial_counts_what_stays_and_what_returns_nothing() -> None:
    right, unanswered = np.array([0.2, 0.5, 0.8, 0.9]), np.array([0.0, 0.1, 0.3, 0.6])
    first = np.array([0.2, 0.2, 0.7, 0.7])
    trial = Trial(right, unanswered, first, np.array([False, True, True, True]))
    assert trial.at(0.5) == (0.75, 0.75)
    assert trial.threshold == 0.2  # one right answer of four may not be lost
    # Ten groups: those of one answer each, off by .2, .8, .3 and .3.
    assert trial.error == pytest.approx(0.4)


def test_a_query_without_an_answer_is_the_same_list_without_its_relevant_documents() -> None:
    values = np.array([[0.9, 3.0], [0.8, 2.0], [0.1, 1.0]])
    [judged] = judged_lists({"q": Signals(["a", "b", "c"], values)}, {"q": {"a": 1, "b": 0, "c": 2}})
    assert judged.relevant.tolist() == [True, False, True]
    assert judged.unanswered().values.tolist() == [[0.8, 2.0]]
    assert not judged_lists({"q": Signals(["a"], values[:1])}, {"q": {"a": 0}})  # nothing answers it


def lists_of(count: int, seed: int = 0) -> list[Judged]:
    """Lists of which one document is relevant, and on average has more of the query's words than the others."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        words, relevant = random.normal(0.3, 0.12, 20), np.arange(20) == 0
        words[0] = random.normal(0.6, 0.15)
        order = np.argsort(-words)
        made.append(Judged(np.column_stack([words, 10 * words])[order], relevant[order]))
    return made


def test_50_queries_are_needed_and_a_fifth_of_them_answered_right() -> None:
    assert calibrate(("words", "score"), lists_of(49), 9) is None
    assert calibrate(("words", "score"), lists_of(50), 9) is not None
    wrong = [judged for judged in lists_of(400) if not judged.relevant[0]]
    assert len(wrong) >= 50
    assert calibrate(("words", "score"), wrong, 9) is None


@pytest.mark.parametrize(("count", "curved"), [(100, False), (199, False), (200, True), (1000, True)])
def test_the_probability_is_right_for_queries_it_was_not_fitted_to(count: int, curved: bool) -> None:
    made = calibrate(("words", "score"), lists_of(count), 20_000)
    assert made is not None
    calibration, trial = made
    assert bool(calibration.levels) == curved
    assert (calibration.queries, calibration.documents) == (count, 20_000)
    fresh = try_out(calibration, lists_of(2000, seed=1))
    assert fresh.error < (0.05 if count == 1000 else 0.1)
    assert calibration.kept >= 0.95
    kept, silent = fresh.at(calibration.threshold)
    assert kept == pytest.approx(0.95, abs=0.02 if count == 1000 else 0.07)
    assert silent == pytest.approx(calibration.silent, abs=0.15)
    assert silent > 0.25
    curves = trial.curves()
    assert (curves["kept"][0], curves["silent"][0]) == (1, 0)
    assert len(curves["kept"]) == 101


def test_figures_are_of_queries_that_were_left_out() -> None:
    random = np.random.default_rng(0)
    # Nothing tells which is relevant: what is fitted to all seems to know, what is cross-validated does not.
    lists = [Judged(random.normal(size=(4, 2)), np.array([place % 2 == 0, False, False, False])) for place in range(60)]
    made = calibrate(("words", "score"), lists, 9)
    assert made is not None
    whole = try_out(fit(("words", "score"), lists), lists)
    assert made[0].error > whole.error


# What it is made of


def test_features_are_signals_how_far_above_the_first_ten_they_are_and_the_rank() -> None:
    values = np.array([[0.5, 0.9, 4.0], [1.0, 0.3, 2.0]])
    made = features(("words", "similarity", "score"), values)
    assert made.tolist() == [
        [0.5, 0.9, pytest.approx(0.3), 1.0, 0.0],
        [1.0, 0.3, pytest.approx(-0.3), -1.0, pytest.approx(np.log(2))],
    ]
    long = np.column_stack([np.zeros(30), np.arange(30.0)])
    assert features(("words", "score"), long)[0, 1] == -4.5  # the mean of 0 to 9


def test_rare_words_count_more_and_unknown_ones_most() -> None:
    index = Index.build(["bees make honey", "bees sting", "bees fly"])
    common, rare, unknown = (float(np.log1p((3 - n + 0.5) / (n + 0.5))) for n in (3, 1, 0))
    shares = word_shares(index, "bees honey", ["Bees make honey.", "A bee.", "Tea."])
    assert shares == pytest.approx([1, common / (common + rare), 0])
    assert word_shares(index, "honey zygote", ["honey"]) == pytest.approx([rare / (rare + unknown)])
    assert word_shares(index, "of the", ["honey"]).tolist() == [0]


def test_the_probability_is_the_regressions_or_a_line_between_the_points_of_the_curve() -> None:
    values = np.array([[1.0, 3.0], [0.0, 1.0]])  # features: 1, 1, 0 and 0, -1, ln 2
    assert OWN.rate(values) == pytest.approx([1 / (1 + np.exp(-2.5)), 1 / (1 + np.exp(2.5 + np.log(2)))])
    curved = replace(OWN, levels=((-1.0, 0.0), (2.0, 0.6), (3.0, 1.0)))
    assert curved.rate(values) == pytest.approx([0.8, 0.0])


def test_the_sentence_has_the_measured_figures() -> None:
    told = str(replace(OWN, kept=0.951, silent=0.62))
    assert told == (
        "At a relevance of 0.3, 95 % of the queries that are answered right keep their answer, "
        "and 62 % of those without an answer return nothing"
    )


# Systems


def test_answers_have_the_relevance_that_the_calibration_makes_of_their_signals(system: System, index: Index) -> None:
    query = index.text("d7")
    answers = system.search(query, k=20)
    values = np.column_stack(
        [word_shares(index, query, [answer.text for answer in answers]), [answer.score for answer in answers]]
    )
    assert [answer.relevance for answer in answers] == pytest.approx(OWN.rate(values).tolist())
    assert all(answer.relevance is None for answer in System(FirstStage(index)).search(query))


def test_relevance_does_not_depend_on_how_many_are_returned(system: System) -> None:
    whole = system.search("honey in winter", k=20)
    assert system.search("honey in winter", k=1) == whole[:1]
    assert system.search("honey in winter", k=4) == whole[:4]


def test_what_is_less_relevant_is_left_out_in_one_search_and_in_many(system: System, index: Index) -> None:
    whole = system.search("honey hive", k=20)
    least = sorted(answer.relevance or 0 for answer in whole)[len(whole) // 2]
    kept = system.search("honey hive", k=20, min_relevance=least)
    assert kept == [answer for answer in whole if (answer.relevance or 0) >= least]
    assert 0 < len(kept) < len(whole)
    run = system.search({"a": "honey hive", "b": "zygote of"}, k=20, min_relevance=least)
    assert {qid: ranking.docids for qid, ranking in run.items()} == {"a": tuple(answer.docid for answer in kept)}
    assert system.search("honey hive", min_relevance=1.0) == []


def test_a_run_that_nobody_rates_reads_no_text(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Any:
        raise AssertionError("rated although nobody asked")

    asked = [Query("q", "honey hive")]
    expected = system.search(asked, k=5)
    monkeypatch.setattr(systems, "signals_of", refused)
    assert system.search(asked, k=5) == expected
    with pytest.raises(AssertionError, match="rated"):
        system.search(asked, k=5, min_relevance=0.1)


@pytest.mark.parametrize("least", [-0.1, 1.1, float("nan")])
def test_a_relevance_that_is_no_probability_is_refused(system: System, least: float) -> None:
    with pytest.raises(RankwellError, match="expected a number from 0 to 1"):
        system.search("honey", min_relevance=least)


def test_a_system_without_relevance_says_why_it_has_none(index: Index, tmp_path: Path) -> None:
    plain = System(FirstStage(index))
    with pytest.raises(RankwellError, match="cannot tell how relevant its answers are: it is not fitted"):
        plain.search("honey", min_relevance=0.5)
    saved = plain.save(tmp_path / "system")
    with pytest.raises(RankwellError, match="it was fitted with fewer than 50 judged queries"):
        saved.search("honey", min_relevance=0.5)


def test_a_calibration_is_saved_opened_and_saved_again(system: System, tmp_path: Path) -> None:
    assert system.relevance == OWN
    assert System.open(tmp_path / "system").save(tmp_path / "copy").relevance == OWN
    assert System.open(tmp_path / "copy").search("honey hive") == system.search("honey hive")


def rewritten(folder: Path, relevance: object) -> Path:
    record = json.loads((folder / "system.json").read_text())
    del record["checksum"]
    write_sealed(folder / "system.json", {**record, "relevance": relevance})
    return folder


def test_a_system_that_was_saved_without_one_still_opens(system: System) -> None:
    assert system.folder is not None
    record = json.loads((system.folder / "system.json").read_text())
    del record["checksum"], record["relevance"]
    write_sealed(system.folder / "system.json", record)
    assert System.open(system.folder).relevance is None


GOOD = {"signals": ["words", "score"], "weights": [0, 1, 1, 1], "levels": [], "queries": 50, "documents": 9}
FIGURES = dict.fromkeys(("threshold", "kept", "silent", "error"), 0.5)


@pytest.mark.parametrize(
    "change",
    [
        {"signals": ["words", "beauty"]},
        {"weights": [0, 1, 1]},
        {"weights": [0, 1, 1, "NaN"]},
        {"weights": None},
        {"levels": [[0, 0.5], [1, 0.4]]},
        {"levels": [[0, 0.5], [1, 1.5]]},
        {"levels": [[0, 0.5]] * 1001},
        {"levels": [[0]]},
        {"queries": "many"},
        {"threshold": None},
    ],
)
def test_a_calibration_that_cannot_be_is_refused_in_a_line(system: System, change: dict[str, Any]) -> None:
    assert system.folder is not None
    assert System.open(rewritten(system.folder, {**GOOD, **FIGURES})).relevance is not None
    with pytest.raises(InputError, match=r"system.json: not the description of a system \(its relevance\)"):
        System.open(rewritten(system.folder, {**GOOD, **FIGURES, **change}))


def test_a_changed_calibration_does_not_pass_the_checksum(system: System) -> None:
    assert system.folder is not None
    path = system.folder / "system.json"
    path.write_text(path.read_text().replace("-2.0", "-3.0"))
    with pytest.raises(InputError, match="wrong checksum"):
        System.open(system.folder)


def test_relevance_follows_the_index_and_is_stale_after_a_quarter_of_it_changed(system: System) -> None:
    [before] = system.search("zygote honey", k=1)
    system.add([Document(f"new-{number}", "zygote honey") for number in range(15)])
    [after] = system.search("zygote honey", k=1)
    assert after.docid.startswith("new-")
    assert after.relevance is not None
    assert before.relevance is not None
    assert after.relevance > before.relevance
    assert OWN.stale(len(system)) is None
    system.add([Document("one-more", "tea")])
    assert OWN.stale(len(system)) == "relevance was measured on 60 documents, and there are 76; fit again"
    assert OWN.stale(44) is not None


@pytest.mark.parametrize("reranked", [False, True])
def test_what_a_search_knows_decides_the_signals(
    index: Index, tiny_bi_encoder: Path, tiny_checkpoint: Path, reranked: bool
) -> None:
    first = FirstStage(index, encoder=tiny_bi_encoder, share=0.6)
    system = System(first, ranker=tiny_checkpoint if reranked else None, depth=5)
    names = ("words", "model") if reranked else ("words", "similarity", "score")
    assert system.signals == names
    query = Query("q", "honey in the winter hive")
    found = system.find([query], 8, Scope(signals=names))
    docids, values = found.signals["q"].docids, found.signals["q"].values
    assert values[:, 0] == pytest.approx(word_shares(index, query.text, index.texts(docids)))
    if reranked:
        top = list(docids[:5])
        own = system.reranker.rerank(Run({"q": found.run["q"].head(5)}), [query], index)
        known = dict(own["q"])
        # Below its depth, documents have the lowest score of those that it read.
        assert values[:, 1] == pytest.approx([known.get(docid, min(known.values())) for docid in docids])
        assert set(known) == set(top)
    else:
        asked, documents = first.dense.encoder.encode_queries([query.text]), index.texts(docids)
        expected = first.dense.encoder.encode_documents(documents) @ asked[0]
        assert values[:, 1] == pytest.approx(expected, abs=2e-3)
        assert values[: len(found.run["q"]), 2] == pytest.approx(found.run["q"].scores)


def test_a_run_from_elsewhere_is_rated_by_the_systems_index_only(system: System, index: Index) -> None:
    query = Query("q", "honey hive")
    run = index.search([query], k=5)
    given = system.given(run).find([query], 5, system.rated(EVERYTHING, None))
    assert given.relevance["q"].keys() == set(run["q"].docids)
    elsewhere = Run.from_scores({"q": {"x": 1.0}})
    store = Index.build([Document("x", "honey")]).documents.stores[0]
    with pytest.raises(RankwellError, match="relevance needs the index of the system"):
        system.given(elsewhere, store).search([query], min_relevance=0.1)


def test_documents_that_were_dropped_are_known_with_their_relevance() -> None:
    run = Run.from_scores({"q": {"a": 2.0, "b": 1.0}, "r": {"c": 1.0}})
    rated = {"q": {"a": 0.7, "b": 0.2}, "r": {"c": 0.1}}
    found = Found(run, relevance=rated).least(0.5, k=10)
    assert found.run.to_dict() == {"q": {"a": 2.0}}
    assert found.relevance == rated


def test_a_calibrated_index_tells_questions_it_answers_from_those_it_does_not(index: Index, tmp_path: Path) -> None:
    queries, qrels = queries_of(index, words=5)
    names, system = ("words", "score"), System(FirstStage(index))
    found = system.find(queries, 30, Scope(signals=names))
    made = calibrate(names, judged_lists(found.signals, qrels), len(index))
    assert made is not None
    rated = replace(system, relevance=made[0]).save(tmp_path / "fitted")
    answered = [rated.search(query.text, k=1)[0].relevance or 0 for query in queries]
    unanswered = [
        rated.search(" ".join(words), k=1)[0].relevance or 0
        for words in list(combinations(["honey", "zygote", "quark", "gluon", "boson", "muon"], 5))
        if "honey" in words
    ]
    assert float(np.mean(answered)) > 0.4
    assert max(unanswered) < 0.2
