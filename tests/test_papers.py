"""What bench/papers measures besides trained rankers, and what docs/papers.md and its neighbours say of it."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankwell import Index
from rankwell.corpus.datasets import FolderDataset

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAPERS = DOCS / "results" / "papers"


def papers(*arguments: str | Path, cwd: Path) -> None:
    """Run bench/papers."""
    subprocess.run([sys.executable, str(ROOT / "bench" / "papers"), *map(str, arguments)], cwd=cwd, check=True)


def words_of(page: str) -> str:
    """A page without its line breaks."""
    return " ".join((DOCS / page).read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((PAPERS / "runs.json").read_text(encoding="utf-8"))
    return recorded


def small_data(folder: Path) -> Path:
    """Four documents, with two queries for training and two that find them."""
    folder.mkdir()
    texts = ("the cat sleeps on a mat", "a dog barks at the cat", "the river runs to the sea", "ships and sails")
    (folder / "collection.tsv").write_text("".join(f"d{k}\t{text}\n" for k, text in enumerate(texts)))
    (folder / "queries.dev.tsv").write_text("q1\twho sleeps on the mat of a cat\nq2\twhere is the cat\n")
    (folder / "qrels.dev.txt").write_text("q1 0 d0 1\nq2 0 d1 1\n")
    (folder / "queries.train.tsv").write_text("t1\tthe dog barks\nt2\ta cat at sea\n")
    (folder / "qrels.train.txt").write_text("t1 0 d1 1\nt2 0 d0 1\nt2 0 d3 1\n")
    return folder


def test_types_of_queries_are_kept_by_id(tmp_path: Path) -> None:
    data = small_data(tmp_path / "data")
    papers("collect-types", "--data", data, "--dev", "dev", "--out", "types.csv.gz", cwd=tmp_path)
    with gzip.open(tmp_path / "types.csv.gz", "rt", encoding="utf-8") as file:
        assert file.read().splitlines() == ["qid,type", "q1,person", "q2,location"]


def test_the_entailment_model_of_the_document_ranker_is_as_accurate_as_the_page_says(runs: dict[str, Any]) -> None:
    (windows,) = (run for run in runs["document"] if run["row"] == "windows")
    figures = windows["seeds"]["1"]["stages"]["nli"]
    sentence = f"labels {figures['accuracy']:.0%} of SNLI's {figures['texts']:,} dev pairs correctly".replace("%", " %")
    assert sentence in words_of("papers.md")


def test_the_page_counts_passages_that_answer_training_queries_as_the_file_does() -> None:
    counts = json.loads((PAPERS / "overlap.insuranceqa.json").read_text(encoding="utf-8"))
    known, share = counts["dev queries with such a relevant passage"], counts["passages relevant to a training query"]
    page = words_of("papers.md")
    assert f"Only {known} of the {counts['dev queries']:,} queries have a relevant passage that also answers" in page
    assert f"But {share / counts['passages']:.0%} of the collection".replace("%", " %") in page
    missed, found = sum(counts["missed"]), sum(counts["found"])
    assert f"{missed / (missed + found):.0%} of the relevant passages are not among".replace("%", " %") in page


def test_the_shares_of_hidden_passages_that_are_found_are_those_of_the_table() -> None:
    page = (DOCS / "papers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| 1 of (\d+) \| one model \| \.9 \| .*? \| (.*?)% \| \.(\d\d) \|$", page, re.MULTILINE)
    assert [row[0] for row in rows] == ["100", "33", "10"]
    found, precise = ([round(float(row[k])) for row in rows] for k in (1, 2))
    said = (
        "finds {}, {} and {} % of the passages hidden among 100, 33 and 10; of what it drops, at least {}, {} and {} %"
    )
    assert said.format(*found, *precise) in words_of("papers.md")


def test_the_share_that_misleads_rankers_is_that_of_the_table() -> None:
    page = (DOCS / "papers.md").read_text(encoding="utf-8")
    (share,) = re.findall(r"^\| up to 25% \|.*\| (\d+)% \| \d+% \|$", page, re.MULTILINE)
    assert f"with a quarter of the query's words or fewer is relevant ({share} %)" in words_of("papers.md")


def test_the_shares_of_passages_without_a_query_word_are_those_of_the_table() -> None:
    page = (DOCS / "papers.md").read_text(encoding="utf-8")
    shares = re.findall(r"^\| with marks \| (?:all|those that BM25 found) \| (\d+)% ", page, re.MULTILINE)
    said = "without a query word above {} % of BM25's candidates; trained on those that BM25 found, above {} %"
    assert said.format(*shares) in words_of("papers.md")


def test_the_page_says_how_many_queries_are_written_for_a_passage(runs: dict[str, Any]) -> None:
    (run,) = (run for run in runs["first-stage"] if run["row"] == "doc2query")
    left = run["seeds"]["1"]["stages"]["doc2query"]["queries a passage"]
    assert f"generates 20 queries per passage, of which {left:.0f} are left without duplicates" in words_of("papers.md")


def test_the_figures_of_the_stage_that_made_an_index_are_kept(tmp_path: Path) -> None:
    data, stage = small_data(tmp_path / "data"), tmp_path / "stage"
    Index.build(FolderDataset(data).documents(), stage / "index")
    (stage / "stage.json").write_text(json.dumps({"produced": {"figures": {"queries a passage": 3}}}))
    papers("first-stage", "--data", data, "--index", stage / "index", "--row", "doc2query", "--out", "o", cwd=tmp_path)
    result = json.loads((tmp_path / "o" / "result.json").read_text(encoding="utf-8"))
    assert result["stages"] == {"doc2query": {"figures": {"queries a passage": 3}}}


def test_commands_of_learned_first_stages_have_the_k1_and_b_that_were_tuned(runs: dict[str, Any]) -> None:
    tuned = {run["row"]: run["recipe"]["first_stage"] for run in runs["first-stage"] if run["data"] == "insuranceqa"}
    calls = re.findall(r"-(deepct|doc2query)-HASH/index --k1 (\S+) --b (\S+)", words_of("papers.md"))
    assert {row for row, _, _ in calls} == {"deepct", "doc2query"}
    assert all((float(k1), float(b)) == (tuned[row]["k1"], tuned[row]["b"]) for row, k1, b in calls)


@pytest.mark.parametrize(
    ("page", "section", "settings"),
    [
        ("deepct.md", "First stages", set[str]()),
        ("doc2query.md", "First stages", set[str]()),
        ("documents.md", "Documents", {".652"}),
    ],
)
def test_figures_of_a_system_page_are_in_the_table_of_the_papers_page(
    page: str, section: str, settings: set[str]
) -> None:
    figure = re.compile(r"(?<![\d.])\.\d{3,4}(?!\d)|[+−]\d+(?:\.\d+)? %")
    said = set(figure.findall(re.sub(r"(?ms)^```.*?^```", "", (DOCS / page).read_text(encoding="utf-8"))))
    _, _, rest = (DOCS / "papers.md").read_text(encoding="utf-8").partition(f"\n## {section}\n")
    table = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    assert len(said - settings) >= 3
    assert said - settings <= set(figure.findall("\n".join(table)))
