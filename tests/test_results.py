"""The results pages say what the stored results give."""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from rankwell.corpus.query_types import QUERY_TYPES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "attention-rules"
PAPERS = ROOT / "docs" / "results" / "papers"
FIT = ROOT / "docs" / "results" / "fit"
INT8 = ROOT / "docs" / "results" / "int8"
X86 = ROOT / "docs" / "results" / "x86"


def tables_of(text: str) -> list[list[str]]:
    """The Markdown tables of a text, each as its lines."""
    return [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]


def printed_tables(folder: Path, script: str) -> list[list[str]]:
    command = [sys.executable, str(ROOT / "bench" / script), "tables", str(folder)]
    return tables_of(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_the_table_of_rankings_in_int8_is_that_of_the_files() -> None:
    pytest.importorskip("torch")
    (printed,) = printed_tables(INT8, "int8_agreement.py")
    assert printed in tables_of((ROOT / "docs" / "performance.md").read_text(encoding="utf-8"))


def test_the_table_of_word_vectors_is_that_of_the_files() -> None:
    pytest.importorskip("torch")
    (printed,) = printed_tables(ROOT / "docs" / "results" / "words", "word_vectors.py")
    assert printed in tables_of((ROOT / "docs" / "retrieve.md").read_text(encoding="utf-8"))


def rows_of(text: str) -> list[list[str]]:
    """The rows of all tables of a text, each as its cells without stars and the remark about ``auto``."""
    lines = (line.replace("*", "").replace(" (`auto`)", "") for table in tables_of(text) for line in table)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("file", ["rerank", "rerank.vnni", "encode", "encode.vnni"])
def test_the_speeds_of_models_on_x86_are_those_of_the_files(file: str) -> None:
    peer = "CrossEncoder" if file.startswith("rerank") else "sentence-transformers"
    rows = rows_of((ROOT / "docs" / "performance.md").read_text(encoding="utf-8"))
    result = json.loads((ROOT / "docs" / "results" / "x86" / f"{file}.json").read_text(encoding="utf-8"))
    systems = [system for system in result["systems"] if not re.search("STRM|rankwell, openvino", system["system"])]
    assert len(systems) >= 6
    for system in systems:
        kind = re.sub(f"{peer}|rankwell|, batches of .*|^, ", "", system["system"]).strip(" ,").replace("-", " ")
        name = f"{peer if system['system'].startswith(peer) else 'rankwell'}, {kind or 'fp32'}"
        speed = system.get("pairs", result.get("documents")) / median(clock for clock, _ in system["seconds"])
        ratios = [clock for clock, _ in system["ratios"]]
        ratio = f"{median(ratios):.2f}"
        spread = "" if min(ratios) == max(ratios) else f" ({min(ratios):.2f}–{max(ratios):.2f})"
        (row,) = (row for row in rows if row[0] == name and f"{speed:.1f}" in row)
        assert f"{ratio}{spread}" in row


def x86_passage(file: str) -> str:
    """What performance.md says from the link to this file on, on one line, with the words of the link."""
    page = " ".join((ROOT / "docs" / "performance.md").read_text(encoding="utf-8").split())
    ((words, rest),) = re.findall(rf"\[([^]]*)\]\(results/x86/{re.escape(file)}\)(.{{,400}})", page)
    return f"{words}{rest}"


def x86_speeds(file: str) -> dict[str, float]:
    """Pairs or documents a second of each system."""
    result = json.loads((X86 / f"{file}.json").read_text(encoding="utf-8"))
    return {
        re.sub(", batches of .*|,", "", system["system"]): system.get("pairs", result.get("documents"))
        / median(clock for clock, _ in system["seconds"])
        for system in result["systems"]
    }


OTHER_RUNS = [f"rerank.{run}" for run in ("2", "vnni.2", "vnni.3", "all")]
OTHER_RUNS += [f"encode.{run}" for run in ("2", "vnni.2", "all")]


@pytest.mark.parametrize("file", OTHER_RUNS)
def test_other_runs_of_models_on_x86_are_those_of_the_files(file: str) -> None:
    result = json.loads((X86 / f"{file}.json").read_text(encoding="utf-8"))
    (ratios,) = (s["ratios"] for s in result["systems"] if s["system"].replace(",", "") == "rankwell int8")
    (clock, *clocks), (cpu, *_) = (
        (median(own), min(own), max(own)) for own in ([ratio[place] for ratio in ratios] for place in (0, 1))
    )
    said = x86_passage(f"{file}.json")
    assert f"{clock:.2f}" in said[:60]
    assert "({:.2f}–{:.2f}".format(*clocks) in said[:60]
    if file.endswith("all"):
        assert said.startswith(f"{x86_speeds(file)['rankwell int8']:.1f} ")
    assert file.startswith("encode") or f"{cpu:.2f}" in said


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["rerank", "rerank.2", "rerank.vnni", "rerank.vnni.2", "rerank.vnni.3"], "int8 scores {:.2f} to {:.2f} times"),
        (
            ["encode", "encode.2", "encode.vnni", "encode.vnni.2"],
            "int8 is {:.2f} to {:.2f} times as fast",
        ),
    ],
)
def test_int8_beside_the_fastest_peer_is_that_of_the_files(files: list[str], said: str) -> None:
    page = " ".join((ROOT / "docs" / "performance.md").read_text(encoding="utf-8").split())
    times = []
    for speeds in map(x86_speeds, files):
        fastest = max(speed for name, speed in speeds.items() if not name.startswith("rankwell"))
        times.append(speeds["rankwell int8"] / fastest)
    assert said.format(min(times), max(times)) in page


@pytest.mark.parametrize("file", ["path.json", "x86/path.27k.json", "x86/path.241k.json", "x86/path.1M.json"])
def test_the_path_of_a_query_is_that_of_the_file(file: str) -> None:
    parts = json.loads((X86.parent / file).read_text(encoding="utf-8"))["parts"]
    times = {name: part["ms"] for name, part in parts.items()}
    whole = times["whole, hybrid search"]
    names = ("encode the query", "BM25, the best 1,000", "vectors, the best 1,000")
    shown = [
        *(times[name] for name in names),
        whole,
        *([words] if (words := times.get("compare words of 100")) else []),
    ]
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    (row,) = (row for row in rows_of(page) if f"(results/{file})" in row[0])
    assert [float(cell) for cell in row[1:-1] if cell] == pytest.approx(shown, abs=0.051)
    assert row[-1] == f"{times['whole, re-ranked'] - whole:.0f}"


def test_the_growth_of_bm25_on_x86_is_that_of_the_file() -> None:
    sizes = json.loads((X86 / "first_stage.json").read_text(encoding="utf-8")).values()
    passages = [size["corpus"]["passages"] for size in sizes]
    own = [size["measured"]["rankwell"] for size in sizes]
    best, many = ([one["query"][f"cpu_ms_{depth}"] for one in own] for depth in (10, 1000))
    times = best, many, [one["index_text"]["cpu_s"] for one in own]
    top, deep, indexed = (np.log(some[-1] / some[0]) / np.log(passages[-1] / passages[0]) for some in times)
    said = x86_passage("first_stage.json")
    shown = "{:.3f}, {:.3f} and {:.3f} ms; the powers are {:.2f}, {:.2f} and {:.2f}.".format(*best, top, deep, indexed)
    assert said.startswith(re.sub(r"\b0\.", ".", shown))


def test_searching_vectors_on_x86_is_as_in_the_files() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    tables = [row for row in rows_of(page.replace("**", "").replace("`", "").replace(" 0.7", "")) if len(row) == 5]
    rows = json.loads((X86 / "vector_search.vnni.json").read_text(encoding="utf-8"))["rows"]
    names = ("rankwell", "rabitqlib", "faiss IVF1024", "faiss PQ96x4fs", "faiss HNSW32", "usearch", "hnswlib")
    for name in names:
        shown = next(row for row in tables if row[0].startswith(name))
        first, *_ = own = [row for row in rows if row["name"].startswith(name)]
        times = [f"{median(row['clocks']):.1f} ({row['cpu']:.1f})" for row in own]
        recall = f"{own[-1]['recall']:.3f}".removeprefix("0")
        reached = float(recall) >= 0.998
        assert shown[1:3] == [times[0], times[-1] if reached else f"{recall} at most"]
        assert shown[3:] == [f"{first['memory']:,.0f}", f"{first['built_cpu']:,.0f}"]
    assert f"(recall {rows[0]['recall']:.4f})".replace("0.", ".") in page
    printed = rows_of((X86 / "vector_search.txt").read_text(encoding="utf-8"))
    ours, early, _, _, late, rabitqlib, *_ = (row[1] for row in printed if row[0] not in ("search", "---"))
    said = x86_passage("vector_search.txt")
    assert said.startswith(
        f"{ours} ms at .998, rabitqlib {rabitqlib} at .991, faiss {early} at .991 and {late} at .998"
    )
    ours, usearch, low, high = json.loads((X86 / "vector_search.graphs.json").read_text(encoding="utf-8"))["rows"]
    said = x86_passage("vector_search.graphs.json")
    for row in (ours, usearch, low, high):
        assert f"{median(row['clocks']):.1f}" in said
    assert f"with {low['memory']:,.0f} MB instead of {ours['memory']:.0f} and {low['built_cpu']:,.0f} s of CPU" in said
    ours, faiss = json.loads((X86 / "vector_search.8.8M.json").read_text(encoding="utf-8"))["rows"]
    said = x86_passage("vector_search.8.8M.json")
    assert said.startswith(f"rankwell takes {median(ours['clocks']):.1f} ms ({ours['cpu']:.1f})")
    assert f"{median(faiss['clocks']):.1f} ({faiss['cpu']:.1f})" in said
    *sizes, others = json.loads((X86 / "vector_search.growth.json").read_text(encoding="utf-8"))["rows"]
    times, found = [median(row["clocks"]) for row in sizes], [f"{row['recall']:.3f}"[1:] for row in sizes]
    said = x86_passage("vector_search.growth.json")
    assert said.startswith("{:.1f}, {:.1f} and {:.1f} ms at recalls of {}, {} and {}:".format(*times, *found))
    assert f"drop: {others['memory']:.0f} MB after 500 questions" in page
    assert f"on 500 others, recall among a million is {others['recall']:.4f}.".replace("0.", ".") in page
    ways = json.loads((X86 / "gpu_search.json").read_text(encoding="utf-8"))["ways"].values()
    kept, copied, compressed, _ = (round(way["hybrid"]["median_ms"], 1) for way in ways)
    said = x86_passage("gpu_search.json")
    assert said.startswith(f"{kept} ms, {copied} if they are copied each time, {compressed} compressed on a CPU")


def test_a_training_step_on_x86_is_that_of_the_files() -> None:
    profiles = (X86 / "train-profile.txt").read_text(encoding="utf-8").split("\n\n")
    before, after = (
        sum(map(float, re.findall(r"^forward(?: and backward)? ([\d.]+)$", own, re.M))) for own in profiles[:2]
    )
    assert f"take {after:.1f} s instead of {before:.1f} " in x86_passage("train-profile.txt")


def test_what_is_served_on_x86_is_that_of_the_files() -> None:
    rows = rows_of((ROOT / "docs" / "performance.md").read_text(encoding="utf-8"))
    served = json.loads((X86 / "serve.json").read_text(encoding="utf-8"))
    busiest = []
    for name, system in (("plain", "plain"), ("rankwell, int8", "torch-int8"), ("rankwell, fp32", "torch-fp32")):
        *_, last = own = [row for row in served if row["system"] == system]
        busiest.append(last)
        rates = " / ".join(f"{row['per_second']:.1f}" for row in own)
        assert any(row[:2] == [name, rates] for row in rows), name
    plain, *ours = busiest
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for own, said in zip(ours, ("int8 has {:.1f} times the throughput", "64 clients is {:.2f} times"), strict=True):
        assert said.format(own["per_second"] / plain["per_second"]) in page
    int8, exact = json.loads((X86 / "serve.100.json").read_text(encoding="utf-8"))
    said = x86_passage("serve.100.json")
    assert said.startswith(f"{int8['p50']:.1f} s in int8 on the same cores, {exact['p50']:.1f} in fp32")


def test_training_beside_compiled_layers_is_that_of_the_file() -> None:
    result = json.loads((ROOT / "docs" / "results" / "gpu" / "train-compiled.json").read_text(encoding="utf-8"))
    page = " ".join((ROOT / "docs" / "performance.md").read_text(encoding="utf-8").split())

    def best(model: str, *, compiled: bool) -> str:
        tried = [
            found["pairs_per_s"]
            for name, found in result.items()
            if name.startswith(f"{model}: trainer") and ("compiled" in name) is compiled
        ]
        return f"{max(tried):,.0f}"

    for model, said in (
        ("minilm-l6", "MiniLM {} pairs/s ({} without)"),
        ("bert-base", "BERT-base {} ({})"),
        ("bert-large", "BERT-large {} ({})"),
    ):
        assert said.format(best(model, compiled=True), best(model, compiled=False)) in page
    (turns,) = (found for name, found in result.items() if name.startswith("bert-large: in turns"))
    times = [ours / theirs for ours, theirs in zip(turns["rankwell"], turns["trainer"], strict=True)]
    assert f"{turns['times']:.2f} times as fast ({min(times):.2f}–{max(times):.2f})" in page


@pytest.mark.parametrize(("file", "column"), [("minilm", 1), ("base", 2)])
def test_the_speeds_of_training_are_those_of_the_files(file: str, column: int) -> None:
    rows = rows_of((ROOT / "docs" / "performance.md").read_text(encoding="utf-8"))
    shown = {row[0]: row[column] for row in rows if len(row) > column}
    result = json.loads((ROOT / "docs" / "results" / "gpu" / f"train-{file}.json").read_text(encoding="utf-8"))
    (turns,) = (value for name, value in result.items() if "in turns" in name)
    times = [ours / theirs for ours, theirs in zip(turns["rankwell"], turns["trainer"], strict=True)]
    assert shown["times (range)"] == f"{turns['times']:.2f} ({min(times):.2f}–{max(times):.2f})"
    assert shown["rankwell, in the same turns (share)"].startswith(f"{median(turns['rankwell']):,.0f} ")
    assert shown["the best of these, in turns with rankwell, median of three"] == f"{median(turns['trainer']):,.0f}"


def figures_of(text: str) -> set[str]:
    """The differences, p-values and ratios of a text: +.028, .047, 1.46."""
    return set(re.findall(r"[+−]?(?<![\d.])\.\d{3}(?!\d)|\d\.\d\d(?!\d)", text))


def test_the_accuracy_of_the_entailment_model_is_that_of_its_counts() -> None:
    counts = json.loads((PAPERS / "nli.json").read_text(encoding="utf-8"))["confusion"]
    right = sum(row[label] for label, row in counts.items())
    accuracy = right / sum(sum(row.values()) for row in counts.values())
    assert f"an accuracy of {accuracy:.3f} ".replace(" 0.", " .") in (ROOT / "docs" / "rank.md").read_text(
        encoding="utf-8"
    )


def test_the_figures_of_the_readme_are_those_of_the_files() -> None:
    (table,) = tables_of((ROOT / "README.md").read_text(encoding="utf-8"))
    rows = [line for line in table if "nothing trained" not in line]
    printed = "\n".join(line for table in printed_tables(FIT, "fit.py") for line in table)
    shown = set(re.findall(r"(?<!\d)\.\d{3}", "\n".join(rows)))
    assert len(shown) > 3
    assert {f"0{figure}" for figure in shown} <= set(re.findall(r"\d\.\d{3}", printed))


def test_the_fit_of_the_readme_is_one_that_was_printed() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^ {4}\$ (rankwell fit .*\n(?: {4}.+\n)+)", readme, re.MULTILINE)
    fits = (FIT / "fits.txt").read_text(encoding="utf-8").split("$ ")
    (printed,) = (fit for fit in fits if fit.splitlines()[:1] == shown.splitlines()[:1])
    lines = [re.sub(r"^ *\d+\.\d ?", "", line).strip() for line in printed.splitlines()]
    steps = [line for line in lines if line.startswith(("✓", "·", "RR@10"))]
    assert [line.strip() for line in shown.splitlines()[1:] if line.strip() != "…"] == steps


def test_the_tables_of_fitted_pipelines_are_those_of_the_files() -> None:
    _, heading, results = (ROOT / "docs" / "fitting.md").read_text(encoding="utf-8").partition("\n## Results\n")
    assert heading
    others = tables_of((FIT / "README.md").read_text(encoding="utf-8").partition("\n## Differences\n")[2])
    printed = printed_tables(FIT, "fit.py")
    assert sorted(tables_of(results) + others) == sorted(printed)


def test_gains_by_judged_queries_and_by_clicks_are_those_of_the_files() -> None:
    page = (ROOT / "docs" / "fitting.md").read_text(encoding="utf-8")
    for name, row in (
        ("insuranceqa", "InsuranceQA, unfitted .447"),
        ("medquad", "MedQuAD, .684"),
        ("wiki", "Wikipedia"),
    ):
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {row}"))
        columns = columns_of(FIT / f"curve-{name}.csv.gz")
        before, gains = columns[f"{name}/0/hybrid"], defaultdict[int, list[float]](list)
        for column, values in columns.items():
            if column.endswith(" all"):
                gains[int(column.split("/")[1])].append(float(np.mean(values - before)))
        means = [float(np.mean(gains[size])) for size in (100, 300, 1_000, 3_000, 10_000)]
        assert line.split("|")[2:-1] == [f" +{mean:.3f} ".replace("0.", ".") if mean else " 0 " for mean in means]
        assert f".{1000 * before.mean():.0f}" in line
    for kind, row in (("/engine", "nothing: the engine"), ("/judgments", "judgments"), ("100/clicks", "clicks, 100")):
        columns = [columns_of(FIT / f"clicks-all-{name}.csv.gz") for name in ("insuranceqa", "medquad")]
        means = [np.mean(next(own[name] for name in own if name.endswith(kind))) for own in columns]
        assert any(
            re.match(rf"\| {row}.*\| \.{1000 * means[0]:.0f} \| \.{1000 * means[1]:.0f} \|$", line)
            for line in page.splitlines()
        )


def columns_of(path: Path) -> dict[str, np.ndarray]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        (_, *names), *rows = csv.reader(file)
    return {name: np.array([float(row[place]) for row in rows]) for place, name in enumerate(names, 1)}


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


def test_collecting_keeps_what_was_collected(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "runs" / "found.medquad.s1"
    out.mkdir()
    with gzip.open(out / "medquad.csv.gz", "wt", encoding="utf-8") as file:
        file.write("qid,small blend/seed 1/RR@10\nq1,0.25\n")
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    with gzip.open(folder / "blend.csv.gz", "wt", encoding="utf-8") as file:
        file.write("qid,RR@10,nDCG@10,R@100\nq1,1,1,1\n")
    command = [sys.executable, str(ROOT / "bench" / "fit.py"), "collect", "runs", "out"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with gzip.open(out / "medquad.csv.gz", "rt", encoding="utf-8", newline="") as file:
        [row] = csv.DictReader(file)
    assert (row["small blend/seed 1/RR@10"], row["found blend/seed 1/RR@10"]) == ("0.25", "1")


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
