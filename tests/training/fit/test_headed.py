"""Titles and headings as queries, where nobody judged any."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
from tests.training import toys
from tests.training.fit.fitting import named, perfect

from rankwell.core.errors import RankwellError
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.records import Document, Run
from rankwell.corpus.sources import read_text_file
from rankwell.rank.system import System
from rankwell.retrieve.bm25_tuning import built_with
from rankwell.retrieve.description import stored_columns
from rankwell.training.fit import climb, steps
from rankwell.training.fit.fit import fit
from rankwell.training.fit.headings import Kind, headed
from rankwell.training.fit.results import Step
from rankwell.training.fit.task import FitTask

WORDS = [f"{first}{second}" for first in ("ba", "de", "fi", "go", "lu") for second in "bcdfghjklmnpqrstvwxz"]


def write(folder: Path, *, title: str = "title") -> Path:
    """Documents that begin with a rare word of their title, and have another in their text."""
    folder.mkdir()
    rows = [
        {"_id": f"d{n}", title: f"the {word} and {other}", "text": f"{word} is a word of the text"}
        for n, (word, other) in enumerate(zip(WORDS, reversed(WORDS), strict=True))
    ]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


def test_a_system_is_fitted_to_titles_and_searches_documents_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(climb, "all_steps", lambda task: [])
    said: list[str] = []
    system = fit(write(tmp_path / "data"), tmp_path / "system", queries_from="titles", device="cpu", say=said.append)
    assert said[0].startswith("The titles of the documents are the queries.")
    assert "100 documents; 100 judged queries" in said[2]
    assert said[-1] == f"serve:   rankwell serve {tmp_path / 'system'}"
    page = (tmp_path / "system" / "report.html").read_text()
    expected = f"rankwell fit {tmp_path / 'data'} --out {tmp_path / 'system'} --device cpu --queries-from titles"
    assert expected in html.unescape(page)
    assert "system.work" not in page + "".join(said)
    assert (system.card["queries"], len(system)) == ("titles", 100)
    assert [result["step"] for result in system.card["steps"]] == ["bm25"]
    # The last word is in the text of the last document and in the title of the first alone.
    found = System.open(tmp_path / "system").search(WORDS[-1], k=5)
    assert {answer.docid for answer in found} == {"d0", "d99"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "system"]


def test_the_small_system_has_the_documents_as_they_are_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taught = Step("taught", "a small bi-encoder", perfect, replaces=("best", "candidates", "small"))
    monkeypatch.setattr(climb, "all_steps", lambda task: [taught])
    said: list[str] = []
    fit(write(tmp_path / "data"), tmp_path / "system", queries_from="titles", device="cpu", say=said.append)
    small = System.open(tmp_path / "system-small")
    assert f"{tmp_path / 'system-small'}: {small.describe()}, to serve without a GPU" in said
    assert (small.card["queries"], small.first_stage.bm25.k1) == ("titles", 1.2)
    assert {answer.docid for answer in small.search(WORDS[-1], k=5)} == {"d0", "d99"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "system", "system-small"]


def test_titles_that_do_not_find_their_documents_are_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(climb, "all_steps", lambda task: [named("hybrid"), Step("better", "a better step", perfect)])
    folder, others = write(tmp_path / "data"), [*WORDS[37:], *WORDS[:37]]
    rows = [
        {"_id": f"d{n}", "title": title, "text": f"a {other}"}
        for n, (title, other) in enumerate(zip(WORDS, others, strict=True))
    ]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    problem = (
        r"--queries-from titles: the titles do not find their documents \(RR@10 0\.0\d\d with .*leave the option out"
    )
    with pytest.raises(RankwellError, match=problem):
        fit(folder, tmp_path / "system", queries_from="titles", device="cpu")
    assert not (tmp_path / "system").exists()


def test_titles_never_take_the_words_of_the_documents_out_of_the_search(tmp_path: Path) -> None:
    """Although a bi-encoder alone would rank the titles' documents best."""
    folder = write(tmp_path / "data")
    (folder / "queries.train.tsv").write_text("".join(f"q{n}\tquestion {n}\n" for n in range(100)))
    (folder / "qrels.train.txt").write_text("".join(f"q{n} 0 d{n} 1\n" for n in range(100)))
    kinds: tuple[Kind | None, ...] = (None, "titles")
    chosen = []
    for kind in kinds:
        task = FitTask(str(folder), tmp_path / "system", queries_from=kind)
        found = Run.from_scores({f"q{n}": {f"d{n}": 1.0, "d100": 0.0} for n in range(100)})
        wrong = Run.from_scores({f"q{n}": {f"d{n}": 0.0, "d100": 1.0} for n in range(100)})
        chosen.append(steps._tune_shares(task, {"similarity": found, "first": wrong}, task.parts.judged))
    assert max(shares.similarity for shares in chosen[0].settings) == 1.0
    assert max(shares.similarity for shares in chosen[1].settings) == pytest.approx(0.7)
    assert min(shares.first for shares in chosen[1].settings) == pytest.approx(0.3)


def test_data_without_titles_or_with_judged_queries_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match=r"--queries-from titles: no document of .* has any; `rankwell expand"):
        fit(write(tmp_path / "data", title="other"), tmp_path / "system", queries_from="titles")
    judged = toys.write_data(tmp_path / "judged", queries=20)
    with pytest.raises(RankwellError, match=r"--queries-from headings: .* has judged queries"):
        fit(judged, tmp_path / "other", queries_from="headings")
    assert not (tmp_path / "system").exists()


def test_headings_are_titles_and_lines_of_markdown(tmp_path: Path) -> None:
    document = Document("d", "# Bees\nThey shiver.\n\n## In winter ##\nIt is warm #inside.", "Insects")
    assert headed(document, "headings") == (
        ["Insects", "Bees", "In winter"],
        Document("d", "They shiver. It is warm #inside."),
    )
    (tmp_path / "note.md").write_text("# Bees\n\nThey shiver.\n")  # the first heading of a file is its title
    assert headed(read_text_file(tmp_path / "note.md", "d"), "headings") == (["Bees"], Document("d", "They shiver."))
    assert headed(document, "titles") == (["Insects"], Document("d", document.text))
    assert headed(Document("d", "text"), "titles") == ([], Document("d", "text"))


@pytest.mark.parametrize("kind", [None, "titles"])
def test_later_updates_read_the_columns_that_were_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind | None
) -> None:
    monkeypatch.setattr(climb, "all_steps", lambda task: [])
    data, columns = write(tmp_path / "data", title="label") / "corpus.jsonl", Columns("_id", "text", "label")
    system = fit(data, tmp_path / "system", columns=columns, queries_from=kind, device="cpu")
    other = built_with(system.index, Analyzer.of("en", title_weight=2), tmp_path / "other")
    assert stored_columns(other.folder) == stored_columns(system.index.folder) == columns
