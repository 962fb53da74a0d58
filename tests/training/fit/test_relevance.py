"""A fit calibrates relevance at its end, on judged queries that no model has seen."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from rankwell import sample
from rankwell.corpus.records import Query
from rankwell.rank.relevance import Found
from rankwell.rank.system import System
from rankwell.training.fit import climb
from rankwell.training.fit import fit as fits
from rankwell.training.fit.climb import Climb, Clock
from rankwell.training.fit.task import FitTask

from .fitting import fitted, take, write_titles


@pytest.fixture(autouse=True)
def _only_bm25(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that takes time is tried: the system is BM25."""
    monkeypatch.setattr(climb, "all_steps", lambda task: [])


def test_the_system_the_report_and_the_last_lines_have_the_same_figures(tmp_path: Path, tiny_bi_encoder: Path) -> None:
    system, said = fitted(tmp_path / "system", tiny_bi_encoder)
    own = system.relevance
    assert own is not None
    assert own == System.open(tmp_path / "system").relevance
    # One of the queries finds nothing.
    assert (own.queries, own.documents, own.signals) == (130 + 189 - 1, 369, ("words", "score"))
    assert own.kept >= 0.95
    assert 0 < own.silent < 1
    assert own.error < 0.1
    assert f"{own} (--min-relevance {own.threshold:g})." in said
    page = (tmp_path / "system" / "report.html").read_text()
    assert f"<p>{own} (<code>--min-relevance {own.threshold:g}</code>).</p>" in page
    [picture] = re.findall(r"<svg[^>]*return nothing.*?</svg>", page)
    assert picture.count("<polyline") == 2
    [answer] = system.search("how do bees keep warm in winter", k=1)
    assert answer.relevance is not None
    assert system.search("how do bees keep warm in winter", k=1, min_relevance=answer.relevance) == [answer]


def test_below_50_judged_queries_there_is_no_figure(tmp_path: Path, tiny_bi_encoder: Path) -> None:
    system, said = fitted(tmp_path / "system", tiny_bi_encoder, take(tmp_path / "data", 49, "train"))
    assert system.relevance is None
    assert "relevance" not in said
    page = (tmp_path / "system" / "report.html").read_text()
    assert "<p>Answers have no relevance: that needs 50 judged queries that no model was trained on" in page
    assert "<polyline" not in page
    assert system.search("how do bees keep warm")[0].relevance is None
    assert json.loads((tmp_path / "system" / "system.json").read_text())["relevance"] is None


def test_titles_say_nothing_of_the_relevance_to_people(tmp_path: Path, tiny_bi_encoder: Path) -> None:
    documents = tmp_path / "titled" / "collection.jsonl"
    write_titles(tmp_path / "titled")
    lines = documents.read_text().splitlines()
    more = [line.replace('"d', '"e').replace(': "', ': "x') for line in lines]
    documents.write_text("\n".join([*lines, *more]))
    for name in ("queries.train.tsv", "qrels.train.txt"):
        (documents.parent / name).unlink()
    system, _ = fitted(tmp_path / "system", tiny_bi_encoder, documents.parent, queries_from="titles")
    assert len(system) == 80
    assert system.relevance is None


@pytest.mark.parametrize(
    ("stages", "turns", "unseen"),
    [({}, (5, 1), "settings"), ({"encoder": {}}, (5, 1), "report"), ({"encoder": {}}, (1,), "report and choose")],
)
def test_queries_that_a_model_was_trained_on_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stages: dict[str, Any], turns: tuple[int, ...], unseen: str
) -> None:
    task = FitTask(str(sample.FOLDER), tmp_path / "system", device="cpu")
    climbed: Climb = climb.climb(task, Clock(600), lambda line: None)
    monkeypatch.setattr(type(task.parts), "turns", turns)
    asked = watch(monkeypatch)
    made = fits.calibrated(climbed, replace(climbed.saved, stages=stages, milliseconds=1.0))
    parts = task.parts
    own = {"settings": [parts.judged, parts.report], "report": [parts.report]}
    expected = own.get(unseen, [parts.report, parts.choose])
    assert sorted(query.text for query in asked) == sorted(query.text for part in expected for query in part.queries)
    assert made is not None


def watch(monkeypatch: pytest.MonkeyPatch) -> list[Query]:
    """The queries that are searched from now on."""
    asked, find = list[Query](), System.find

    def watched(system: System, queries: list[Query], *more: Any) -> Found:
        asked.extend(queries)
        return find(system, queries, *more)

    monkeypatch.setattr(System, "find", watched)
    return asked


def test_a_slow_system_is_calibrated_on_fewer_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = FitTask(str(sample.FOLDER), tmp_path / "system", device="cpu", minutes=2)
    climbed = climb.climb(task, Clock(600), lambda line: None)
    for milliseconds, count in ((1.0, 319), (60.0, 100), (5000.0, 50)):  # a twentieth of two minutes is 6 s
        asked = watch(monkeypatch)
        fits.calibrated(climbed, replace(climbed.saved, milliseconds=milliseconds))
        assert len(asked) == count
