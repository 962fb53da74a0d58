"""What bench/papers.py measures besides trained rankers, and what docs/papers.md and its neighbours say of it."""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankwell import Index
from rankwell.corpus.datasets import FolderDataset

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAPERS = DOCS / "results" / "papers"


def papers(*arguments: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run bench/papers.py."""
    command = [sys.executable, str(ROOT / "bench" / "papers.py"), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, check=False, capture_output=True, text=True)
    assert done.returncode == 0 or not check, done.stderr
    return done


def read_rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


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
    command = [sys.executable, str(ROOT / "bench" / "papers.py"), "collect-types", "--data", str(data), "--dev", "dev"]
    subprocess.run([*command, "--out", "types.csv.gz"], cwd=tmp_path, check=True)
    with gzip.open(tmp_path / "types.csv.gz", "rt", encoding="utf-8") as file:
        assert file.read().splitlines() == ["qid,type", "q1,person", "q2,location"]


def test_figures_by_depth_are_those_of_the_first_candidates(tiny_checkpoint: Path, tmp_path: Path) -> None:
    data = small_data(tmp_path / "data")
    command = [sys.executable, str(ROOT / "bench" / "papers.py"), "depths", "--data", str(data), "--queries", "2"]
    command += ["--model", str(tiny_checkpoint), "--device", "cpu", "--out", "depths.csv.gz"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    with gzip.open(tmp_path / "depths.csv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = {row["qid"]: row for row in csv.DictReader(file)}
    assert {row["first stage R at 10"] for row in rows.values()} == {"1"}
    assert rows["q1"]["first stage RR@10 at 1000"] == "1"
    for row in rows.values():  # fewer than ten candidates: every depth is the same
        assert len({row[f"ranker AP at {depth}"] for depth in (10, 100, 1000)}) == 1
        assert 0.3 < float(row["ranker RR@10 at 10"]) <= 1


def write_depths(path: Path, values: Mapping[str, str]) -> None:
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([list(values), list(values.values())])


def test_figures_by_depth_get_a_column_for_each_ranker_and_seed(tmp_path: Path) -> None:
    found = {"qid": "q1", "first stage R at 10": "1", "first stage RR@10 at 10": "0.5"}
    for row, seed, value in (("marked", 1, "0.25"), ("marked", 2, "1"), ("drbert", 1, "0.5")):
        write_depths(tmp_path / "depths.csv.gz", {**found, "ranker RR@10 at 10": value})
        options = ("--data", "small", "--first", "doc2query", "--row", row, "--seed", seed, "--out", ".")
        papers("collect-depths", "depths.csv.gz", *map(str, options), cwd=tmp_path)
    columns = {
        "marked RR@10 at 10/seed 1": "0.25",
        "marked RR@10 at 10/seed 2": "1",
        "drbert RR@10 at 10/seed 1": "0.5",
    }
    assert read_rows(tmp_path / "depths.small.doc2query.csv.gz") == [{**found, **columns}]


def test_rankers_of_other_candidates_are_not_put_side_by_side(tmp_path: Path) -> None:
    for recall, kept in (("1", True), ("0.5", False)):
        values = {"qid": "q1", "first stage R at 10": recall, "ranker RR@10 at 10": "1"}
        write_depths(tmp_path / "depths.csv.gz", values)
        options = ("--data", "small", "--first", "bm25", "--row", "marked", "--out", ".")
        done = papers("collect-depths", "depths.csv.gz", *options, cwd=tmp_path, check=False)
        assert (done.returncode == 0) == kept
    assert "its queries or candidates are not those of" in done.stderr


def test_overlap_counts_the_query_words_of_found_missed_and_other_passages(tmp_path: Path) -> None:
    data = small_data(tmp_path / "data")
    papers("overlap", "--data", data, "--out", "overlap.json", cwd=tmp_path)
    counts = json.loads((tmp_path / "overlap.json").read_text(encoding="utf-8"))
    # Of "dog bark", d1 has both; of "cat sea", d0, d1 and d2 have one, and d3 has none.
    assert (counts["found"], counts["missed"], counts["other"]) == ([0, 0, 1, 0, 1], [1, 0, 0, 0, 0], [0, 0, 2, 0, 0])
    assert (counts["passages relevant to a training query"], counts["dev queries with such a relevant passage"]) == (
        3,
        2,
    )


def test_a_small_ranker_scores_passages_without_a_query_word(tiny_checkpoint: Path, tmp_path: Path) -> None:
    data = small_data(tmp_path / "data")
    (data / "queries.train.tsv").write_text("".join(f"t{k}\ta cat at sea\n" for k in range(4)))
    (data / "qrels.train.txt").write_text("".join(f"t{k} 0 d0 1\n" for k in range(4)))
    options = ("--data", data, "--aside", "1", "--start", tiny_checkpoint, "--steps", "1", "--queries", "2")
    for found in ((), ("--found-only",)):
        papers("shortcut", *options, *found, "--device", "cpu", "--out", "shortcut.csv.gz", cwd=tmp_path)
    rows = read_rows(tmp_path / "shortcut.csv.gz")
    assert [row.pop("qid") for row in rows] == ["q1", "q2"]
    figures = ("unmatched over candidates", "unmatched over relevant", "relevant over candidates")
    assert list(rows[0]) == [f"marked, {kind} {figure}/seed 1" for kind in ("all", "found") for figure in figures]
    assert all(0 <= float(value) <= 1 for row in rows for value in row.values())


def test_documents_are_ranked_by_windows_alone_and_with_bm25(tiny_checkpoint: Path, tmp_path: Path) -> None:
    data = small_data(tmp_path / "data")
    queries = [(f"q{k}", "where is the cat") for k in range(1, 7)]
    (data / "queries.dev.tsv").write_text("".join(f"{qid}\t{text}\n" for qid, text in queries))
    (data / "qrels.dev.txt").write_text("".join(f"{qid} 0 d1 1\n" for qid, _ in queries))
    for split in ("train", "dev"):
        pairs = {"entailment": "the cat", "neutral": "the dog", "contradiction": "no cat"}
        premises = [f"a cat sleeps {place}" for place in ("here", "on the mat", "at sea")]
        lines = (f"{label}\t{premise}\t{text} {premise}\n" for label, text in pairs.items() for premise in premises)
        (data / f"snli.{split}.tsv").write_text("".join(lines))
    options = ("--data", data, "--nli", data, "--start", tiny_checkpoint, "--steps", "1", "--device", "cpu")
    papers("documents", *options, "--out", "documents", cwd=tmp_path)
    for row in ("windows", "interpolate"):
        values = read_rows(tmp_path / "documents" / row / "dev.csv.gz")
        assert [value["qid"] for value in values] == [qid for qid, _ in queries]
        assert {value["AP"] for value in values} <= {"1", "0.5"}
    papers("collect", "documents/windows", "documents/interpolate", "--out", ".", cwd=tmp_path)
    assert {"BM25", "windows/seed 1", "interpolate/seed 1"} <= read_rows(tmp_path / "document.data.AP.csv.gz")[0].keys()
    (row,) = (row for row in json.loads((tmp_path / "runs.json").read_text())["document"] if row["row"] == "windows")
    assert 0 <= row["seeds"]["1"]["stages"]["nli"]["accuracy"] <= 1


def test_the_curve_by_training_pairs_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    papers("picture", PAPERS, "--out", "curve.png", cwd=tmp_path)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


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
