"""The results pages say what the stored results give."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rankwell.corpus.query_types import QUERY_TYPES
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "attention-rules.md"
RESULTS = ROOT / "docs" / "results" / "attention-rules"
PAPERS = ROOT / "docs" / "results" / "papers"
FIT = ROOT / "docs" / "results" / "fit"
INT8 = ROOT / "docs" / "results" / "int8"
SETTINGS = {".998", "2.11", "0.03"}
"""A threshold, a version and a share of the pairs, which look like results."""


def tables_of(text: str) -> list[list[str]]:
    """The Markdown tables of a text, each as its lines."""
    return [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]


def printed_tables(folder: Path, script: str = "papers", *options: str) -> list[list[str]]:
    command = [sys.executable, str(ROOT / "bench" / script), "tables", str(folder), *options]
    return tables_of(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def printed() -> list[list[str]]:
    return printed_tables(RESULTS)


def test_the_tables_of_the_page_are_those_of_the_files(printed: list[list[str]]) -> None:
    assert tables_of(PAGE.read_text(encoding="utf-8")) == printed


def test_the_tables_of_the_papers_page_are_those_of_the_files() -> None:
    assert tables_of((ROOT / "docs" / "papers.md").read_text(encoding="utf-8")) == printed_tables(PAPERS)


def test_the_first_table_of_the_results_page_is_that_of_the_files() -> None:
    command = [sys.executable, str(ROOT / "bench" / "papers"), "summary", str(ROOT / "docs" / "results")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert tables_of((ROOT / "docs" / "results.md").read_text(encoding="utf-8"))[0] == tables_of(printed)[0]


def test_the_table_of_rankings_in_int8_is_that_of_the_files() -> None:
    pytest.importorskip("torch")
    (printed,) = printed_tables(INT8, "int8_agreement.py")
    assert printed in tables_of((ROOT / "docs" / "performance.md").read_text(encoding="utf-8"))


def figures_of(text: str) -> set[str]:
    """The differences, p-values and ratios of a text: +.028, .047, 1.46."""
    return set(re.findall(r"[+−]?(?<![\d.])\.\d{3}(?!\d)|\d\.\d\d(?!\d)", text))


RESULTS_PAGES = ("results.md", "papers.md", "attention-rules.md")


@pytest.mark.parametrize("page", RESULTS_PAGES)
def test_figures_in_sentences_are_in_the_tables_of_the_results_pages(page: str) -> None:
    pages = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in RESULTS_PAGES}
    tables = "\n".join(line for text in pages.values() for table in tables_of(text) for line in table)
    known = figures_of(tables) | {figure.lstrip("+−") for figure in figures_of(tables)}
    said = figures_of("\n".join(line for line in pages[page].splitlines() if not line.startswith("|")))
    assert said - known - SETTINGS == set()
    assert said


def test_the_results_of_the_page_on_sdnet_are_those_of_the_files() -> None:
    _, heading, results = (ROOT / "docs" / "ccnu.md").read_text(encoding="utf-8").partition("\n## Results\n")
    assert heading
    assert tables_of(results.partition("\n## ")[0]) == printed_tables(PAPERS, "papers", "--page", "ccnu")


NO_RESULTS = {
    "distillation.md": set[str](),
    "ccnu.md": set[str](),
}
"""Pages that have commands, and besides the tables above no figures: their settings that look like figures."""


@pytest.mark.parametrize("page", NO_RESULTS)
def test_pages_without_stored_results_have_no_figures(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    before, _, results = text.partition("\n## Results\n")
    sentences = re.sub(r"(?ms)^```.*?^```", "", before + "\n## " + results.partition("\n## ")[2])
    sentences += "\n".join(line for line in results.partition("\n## ")[0].splitlines() if not line.startswith("|"))
    said = set(re.findall(r"(?<![\d.])\.\d{2,4}(?!\d)|[+−]\d+(?:\.\d+)? %", sentences))
    assert said - NO_RESULTS[page] == set()


def test_the_accuracy_of_the_entailment_model_is_that_of_its_counts() -> None:
    counts = json.loads((PAPERS / "nli.json").read_text(encoding="utf-8"))["confusion"]
    right = sum(row[label] for label, row in counts.items())
    accuracy = right / sum(sum(row.values()) for row in counts.values())
    assert f"an accuracy of {accuracy:.3f} ".replace(" 0.", " .") in (ROOT / "docs" / "documents.md").read_text(
        encoding="utf-8"
    )


def test_the_figures_of_the_readme_are_those_of_the_files() -> None:
    _, heading, results = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Results\n")
    rows = [line for line in tables_of(results)[0] if "nothing trained" not in line]
    assert heading
    printed = "\n".join(line for table in printed_tables(FIT, "fit.py") for line in table)
    shown = set(re.findall(r"(?<!\d)\.\d{3}", "\n".join(rows)))
    assert len(shown) > 3
    assert {f"0{figure}" for figure in shown} <= set(re.findall(r"\d\.\d{3}", printed))


def test_the_tables_of_fitted_pipelines_are_those_of_the_files() -> None:
    _, heading, results = (ROOT / "docs" / "fitting.md").read_text(encoding="utf-8").partition("\n## Results\n")
    assert heading
    assert tables_of(results) == printed_tables(FIT, "fit.py")


def test_arms_are_joined_by_seed(tmp_path: Path) -> None:
    for seed in (1, 2):
        folder = tmp_path / "runs" / f"fit.medquad.s{seed}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps({"stages": {}}))
        with gzip.open(folder / "blend.csv.gz", "wt", encoding="utf-8") as file:
            file.write(f"qid,RR@10,nDCG@10,R@100\nq1,{1 / seed},0,1\nq2,0,0,1\n")
    command = [sys.executable, str(ROOT / "bench" / "fit.py"), "collect", "runs", "out"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with gzip.open(tmp_path / "out" / "medquad.csv.gz", "rt", encoding="utf-8", newline="") as file:
        header, first, _ = csv.reader(file)
    assert first[header.index("small blend/seed 1/RR@10")] == "1.0"
    assert first[header.index("small blend/seed 2/RR@10")] == "0.5"


def test_collecting_keeps_what_was_collected_and_tries_blends(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "runs" / "found.medquad.s1"
    out.mkdir()
    with gzip.open(out / "medquad.csv.gz", "wt", encoding="utf-8") as file:
        file.write("qid,small blend/seed 1/RR@10\nq1,0.25\n")
    folder.mkdir(parents=True)
    row = {"stage": "blend", "mean": {"RR@10": 0.5}}
    (folder / "result.json").write_text(json.dumps({"stages": {}, "choice": [row], "dev": {"blend": {"RR@10": 0.75}}}))
    with gzip.open(folder / "blend.csv.gz", "wt", encoding="utf-8") as file:
        file.write("qid,RR@10,nDCG@10,R@100\nq1,1,1,1\n")
    first, model = np.tile([3.0, 2.0, np.nan], (6, 1)), np.tile([1.0, 2.0, np.nan], (6, 1))
    relevant = np.tile([False, True, False], (6, 1))
    relevant[0] = False
    scores = {"choice.first": first, "choice.model": model, "choice.relevant": relevant}
    np.savez(folder / "scores.npz", **scores)
    command = [sys.executable, str(ROOT / "bench" / "fit.py"), "collect", "runs", "out"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with gzip.open(out / "medquad.csv.gz", "rt", encoding="utf-8", newline="") as file:
        [row] = csv.DictReader(file)
    assert (row["small blend/seed 1/RR@10"], row["found blend/seed 1/RR@10"]) == ("0.25", "1")
    assert json.loads((out / "aside.json").read_text())["found"]["medquad"] == {"aside": 0.5, "RR@10": 0.75}
    with gzip.open(out / "blends.csv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    # The model ranks the relevant document first, and a query without one counts 0.
    assert [row["medquad/found/z-scores, shares in steps of .1"] for row in rows] == ["0", *["1"] * 5]


def test_a_changed_file_changes_a_table(printed: list[list[str]], tmp_path: Path) -> None:
    folder = tmp_path / "results"
    shutil.copytree(RESULTS, folder)
    path = folder / "rules.medquad.RR10.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    column = header.index("minilm/strm/seed 1")
    for row in rows[:50]:
        row[column] = "0"
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    assert printed_tables(folder) != printed


def test_collecting_arms_gives_a_column_for_each_seed(tmp_path: Path) -> None:
    for seed in (1, 2):
        arm = tmp_path / f"row-{seed}"
        arm.mkdir()
        recipe = {"data": {"folder": "/somewhere/data"}, "seed": seed}
        stages = {"first stage": {}, "denoise": {"figures": {"noise": 3, "options": {}}}}
        told = {"study": "table1", "data": "small", "row": "drbert", "seed": seed}
        result = {"arm": told, "recipe": recipe, "stages": stages, "drops": [{"threshold": 0.9}]}
        (arm / "result.json").write_text(json.dumps(result), encoding="utf-8")
        names = [f"{prefix}{name}" for prefix in ("BM25 ", "") for name in ("RR@10", "nDCG@10", "AP")]
        with gzip.open(arm / "dev.csv.gz", "wt", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(
                [["qid", "words", "split word", *names], ["q1", 4, 0, *[0.5] * 6], ["q2", 3, 1, *[seed] * 6]]
            )
    command = [sys.executable, str(ROOT / "bench" / "papers"), "collect", "row-1", "row-2", "--out", "results"]
    subprocess.run([*command, "--measures", "RR@10", "AP"], cwd=tmp_path, check=True)
    assert not (tmp_path / "results" / "table1.small.nDCG10.csv.gz").exists()
    with gzip.open(tmp_path / "results" / "table1.small.RR10.csv.gz", "rt", encoding="utf-8") as file:
        assert file.read().splitlines() == [
            "qid,words,split word,BM25,drbert/seed 1,drbert/seed 2",
            "q1,4,0,0.5,0.5,0.5",
            "q2,3,1,1,1,2",
        ]
    (row,) = json.loads((tmp_path / "results" / "runs.json").read_text(encoding="utf-8"))["table1"]
    assert row["recipe"]["data"] == {"folder": "data"}
    assert row["seeds"]["2"] == {"stages": {"denoise": {"noise": 3}}, "drops": [{"threshold": 0.9}]}


def test_collecting_again_leaves_other_arms_as_they_are(tmp_path: Path) -> None:
    names = [f"{prefix}{name}" for prefix in ("BM25 ", "") for name in ("RR@10", "nDCG@10", "AP")]
    for row, value in (("noisy", 0.25), ("clean", 0.5)):
        arm = tmp_path / row
        arm.mkdir()
        told = {"study": "noise", "data": "small", "row": row, "seed": 1}
        (arm / "result.json").write_text(json.dumps({"arm": told, "recipe": {}, "stages": {}}), encoding="utf-8")
        with gzip.open(arm / "dev.csv.gz", "wt", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["qid", "words", "split word", *names], ["q1", 4, 0, *[value] * 6]])
        command = [sys.executable, str(ROOT / "bench" / "papers"), "collect", row, "--out", "results"]
        subprocess.run(command, cwd=tmp_path, check=True)
    with gzip.open(tmp_path / "results" / "noise.small.RR10.csv.gz", "rt", encoding="utf-8") as file:
        assert file.read().splitlines() == [
            "qid,words,split word,BM25,noisy/seed 1,clean/seed 1",
            "q1,4,0,0.25,0.25,0.5",
        ]
    rows = json.loads((tmp_path / "results" / "runs.json").read_text(encoding="utf-8"))["noise"]
    assert [row["row"] for row in rows] == ["noisy", "clean"]


def test_an_effect_counts_seeds_and_queries_as_two_samples() -> None:
    # Gaps 1 2 3 and 3 4 5: mean squares 6 of the seeds, 2 of the queries, 0 of the rest.
    code = """
from papers.results import Effect, student_t_quantile
import numpy as np
ours = {1: np.array([1.0, 2, 3]), 2: np.array([3.0, 4, 5])}
effect = Effect.of(ours, {seed: np.zeros(3) for seed in ours})
print(effect.mean, round(effect.error**2, 6), round(effect.freedom, 6), round(student_t_quantile(0.05, 2), 3))
print(Effect(0.02, 0.001, 50).verdict(0.03), Effect(0.0, 0.001, 50).verdict(0.03), Effect(0.0, 0.1, 50).verdict(0.03))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "bench"), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == ["3.0 1.333333 1.684211 4.303", "reproduced not reproduced cannot be told"]


def test_two_processes_may_make_the_same_data(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from papers.training import made_once
out = Path(sys.argv[1]) / "out"
with made_once(out) as slow:
    with made_once(out) as fast:
        (fast / "made").write_text("first")
    (slow / "made").write_text("second")
print((out / "made").read_text(), len(list(out.parent.iterdir())))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "bench"), *sys.path])}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["first", "1"]


def test_training_queries_are_set_aside(tmp_path: Path) -> None:
    (tmp_path / "collection.tsv").write_text("".join(f"d{k}\ta text\n" for k in range(9)))
    for split, count in {"train": 4, "dev": 1}.items():
        (tmp_path / f"queries.{split}.tsv").write_text("".join(f"{split}{k}\ta query\n" for k in range(count)))
        (tmp_path / f"qrels.{split}.txt").write_text("".join(f"{split}{k} 0 d{k} 1\n" for k in range(count)))
    code = """
from pathlib import Path
from papers.training import Source, set_aside
set_aside(Source(Path("."), "train", "dev", 0.9, 0.4, aside=1, most=2), Path("out"))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "bench"), *sys.path])}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=environment)
    fit, choice = ((tmp_path / "out" / f"queries.{name}.tsv").read_text().splitlines() for name in ("fit", "choice"))
    assert len(fit) == 2
    assert len(choice) == 1
    assert not set(fit) & set(choice)


def test_two_models_rank_the_documents_of_mined_cases(tiny_checkpoint: Path, tmp_path: Path) -> None:
    for rule in ("full", "strm"):
        model, tokenizer, config = load_checkpoint(tiny_checkpoint, attention=rule)
        save_checkpoint(tmp_path / rule, model, tokenizer, config)
    # A candidate with another form of the word does not mislead.
    texts = ("the bogue is a fish", "bogus bogues are fish", "a bogus fish", "the whale is large")
    (tmp_path / "collection.tsv").write_text("".join(f"d{k}\t{text}\n" for k, text in enumerate(texts)))
    (tmp_path / "queries.dev.tsv").write_text("q1\tbogue fish\nq2\thow large is the whale\n")
    (tmp_path / "qrels.dev.txt").write_text("q1 0 d0 1\nq2 0 d3 1\n")
    command = [sys.executable, str(ROOT / "bench" / "papers"), "rare-words", "--model", "full", "strm", "--data", "."]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*command, "--out", "out", "--device", "cpu"], cwd=tmp_path, check=True, env=environment)
    (row,) = csv.DictReader((tmp_path / "out" / "cases.csv").open(encoding="utf-8"))
    assert list(row.values())[:5] == ["q1", "bogue", "bogus", "d0", "d2"]
    assert row["full misleading score"] != row["strm misleading score"]  # the rule closes bog(query) → bog(document)


def test_rare_words_are_kept_as_numbers_alone(tmp_path: Path) -> None:
    names = [f"{model} {name}" for model in ("a b", "c") for name in ("right score", "misleading rank")]
    with (tmp_path / "cases.csv").open("w", encoding="utf-8", newline="") as file:
        header = ["qid", "word", "look_alike", "right", "misleading", *names]
        csv.writer(file).writerows([header, ["q1", "bogue", "bogus", "d1", "d2", 1.5, 2, -1, 30]])
    command = [sys.executable, str(ROOT / "bench" / "papers"), "collect-rare-words", "."]
    subprocess.run([*command, "--name", "mine", "--out", "."], cwd=tmp_path, check=True)
    with gzip.open(tmp_path / "rare-words.mine.csv.gz", "rt", encoding="utf-8") as file:
        assert file.read().splitlines() == [
            "qid,full right score,full misleading rank,STRM right score,STRM misleading rank",
            "q1,1.5,2,-1,30",
        ]


def test_trainings_done_twice_are_added_as_columns(tmp_path: Path) -> None:
    names = [f"{prefix}{name}" for prefix in ("BM25 ", "") for name in ("RR@10", "nDCG@10", "AP")]
    for name, again in (("first", False), ("second", True)):
        arm = tmp_path / name
        arm.mkdir()
        told = {"study": "rank", "data": "small", "row": "pretrained-9/strm", "seed": 1}
        (arm / "result.json").write_text(json.dumps({"arm": told, "recipe": {}, "stages": {}}), encoding="utf-8")
        with gzip.open(arm / "dev.csv.gz", "wt", encoding="utf-8", newline="") as file:
            rows = [["q1", 4, 0, *[0.5] * 6], ["q2", 3, 1, *[0.25] * 6]]
            csv.writer(file).writerows([["qid", "words", "split word", *names], *(rows[::-1] if again else rows)])
        command = [sys.executable, str(ROOT / "bench" / "papers"), "collect", name, "--out", "results"]
        subprocess.run([*command, *(["--repeated"] if again else [])], cwd=tmp_path, check=True)

    with gzip.open(tmp_path / "results" / "rules.small.RR10.csv.gz", "rt", encoding="utf-8") as file:
        assert file.read().splitlines() == [
            "qid,words,split word,BM25,pretrained-9/strm/seed 1,pretrained-9/strm/seed 1 repeated",
            "q1,4,0,0.5,0.5,0.5",
            "q2,3,1,0.25,0.25,0.25",
        ]
    rows = json.loads((tmp_path / "results" / "runs.json").read_text(encoding="utf-8"))["rank"]
    assert [row["row"] for row in rows] == ["pretrained-9/strm", "pretrained-9/strm, repeated"]


def test_the_figures_named_in_the_first_paragraph_are_in_the_summary(printed: list[list[str]]) -> None:
    claim = " ".join(PAGE.read_text(encoding="utf-8").split("\n\n")[1].split())
    lower, after_holm = re.findall(r"\d+ of 12 comparisons|(?<=, )\d+ of them", claim)
    assert f"| RR@10 | queries | {lower.split()[0]} of 12 |" in printed[0][2]
    assert printed[0][2].endswith(f"| {after_holm.split()[0]} of 12 |")


@pytest.mark.parametrize("folder", [RESULTS, PAPERS, FIT], ids=lambda folder: folder.name)
def test_the_files_are_small_and_hold_no_text(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    for path in folder.glob("*.csv.gz"):
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            _, *rows = csv.reader(file)
        words = {
            cell for row in rows for cell in row if re.search(r"[a-z]{3}", cell) and not re.fullmatch(r"\S+\d", cell)
        }
        assert words <= {"look-alike", "unlike", "neither", *QUERY_TYPES}, path.name
