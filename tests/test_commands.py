"""The commands on the guide's pages run, in a folder that has the files they name."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient

from rankwell import Document, Index, Qrels, Query, Run, open_dataset, sample, write_run
from rankwell.training.fit import climb
from rankwell.training.loop.losses import LOSSES

if TYPE_CHECKING:
    from rankwell.serve.state import Sources

ROOT = Path(__file__).parents[1]
NAMES = "quickstart corpus fitting your-engine retrieve rank models evaluation serve launch scale recipes"
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in NAMES.split())]
LEFT_OUT = {
    "index hf:": "the Hugging Face hub",
    "index irds:": "ir_datasets and its downloads",
    "fit src/rankwell/sample": "three minutes; tests/package runs it",
    "fit insuranceqa": "a GPU and the data",
    "fit my-data --out my-system --try": "the Hugging Face hub",
    "rerank my-engine.run --queries q.tsv --collection c.tsv": "the Hugging Face hub",
    "weigh": "a trained model; tests/papers runs it",
    "rerank mono.run": "a trained duoBERT; tests/papers runs it",
    "mcp": "an agent; tests/serve/test_agents.py is one",
    "train distil": "MiniLM's weights, a package of its own",
    "train ccnu-document": "the shell's $PWD; tests/papers runs it",
    "types queries.dev.tsv --model": "a trained classifier; tests/papers runs it",
}
"""Beginnings of commands that cannot run here, and what they need. Commands with --ray or an ellipsis do not
run either, and recipes are checked (--check), not trained."""


LABELS = ("entailment", "neutral")
LOSS = """
from rankwell import loss
from rankwell.training.loop.losses import TWO_LABELS

@loss("worst_pair", TWO_LABELS)
def worst_pair(scores, labels):
    return (scores - labels).sum(1)
"""


def commands(page: Path) -> list[list[str]]:
    text = re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8"))
    lines = re.findall(r"^ {4}(?:\$ )?(?:RANKWELL_\w+=\S+ )?(rankwell .*)$", text, re.MULTILINE)
    return [shlex.split(part, comments=True)[1:] for line in lines for part in line.split(" && ")]


def left_out(command: list[str]) -> bool:
    line = " ".join(command)
    return "…" in line or "--ray" in line or line.startswith(tuple(LEFT_OUT))


def test_few_commands_are_left_out() -> None:
    every = [command for page in PAGES for command in commands(page)]
    assert len(every) > 70
    assert sum(map(left_out, every)) < len(every) // 4
    assert [start for start in LEFT_OUT if not any(" ".join(one).startswith(start) for one in every)] == []


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """A folder with every file that the pages name."""
    folder = tmp_path_factory.mktemp("guide")
    data = open_dataset(sample.FOLDER)
    qrels = data.qrels("dev")
    many = [query for query in data.queries("dev") if query.qid in qrels][:60]  # enough to calibrate relevance
    queries = many[:8]
    wanted = {docid for query in many for docid in qrels[query.qid]} | {"P136"}
    documents = sorted(data.documents(), key=lambda document: document.docid not in wanted)[: max(110, len(wanted))]
    tsv = "".join(f"{document.docid}\t{document.text}\n" for document in documents)
    lines_of = [f"{query.qid}\t{query.text}\n" for query in many]
    grades = ["".join(f"{query.qid} 0 {d} {grade}\n" for d, grade in qrels[query.qid].items()) for query in many]
    lines = [{"id": d.docid, "title": f"On {d.docid}", "text": d.text} for d in documents]
    for name in ("collection.tsv", "my-data/collection.tsv"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(tsv)
    quoted = [f'{document.docid},"{document.text.replace(chr(34), chr(39))}"\n' for document in documents]
    (folder / "documents.csv").write_text("id,text\n" + "".join(quoted))
    (folder / "collection.tsv.gz").write_bytes(gzip.compress(tsv.encode()))
    for name in ("queries.tsv", "queries.dev.tsv", "q.tsv", "my-data/queries.train.tsv", "my-data/queries.dev.tsv"):
        (folder / name).write_text("".join(lines_of[: None if "train" in name else 8]))
    for name in ("qrels.txt", "qrels.dev.txt", "my-data/qrels.train.txt", "my-data/qrels.dev.txt"):
        (folder / name).write_text("".join(grades[: None if "train" in name else 8]))
    for name in ("articles.jsonl", "changed.jsonl"):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("articles.csv", "products.csv", "changed.csv"):
        (folder / name).write_text(
            "id,text,price,lang,year\nsku-17,A waterproof jacket,90,en,2020\ndoc-2,Eine,5,de,2019\n"
        )
    for name in ("mine.tsv", "types.gold.tsv"):
        (folder / name).write_text("".join(f"{query.qid}\tdescription\n" for query in queries))
    rows = [f'"{q.text}",{d},{grade}' for q in many for d, grade in qrels[q.qid].items()]
    (folder / "golden.csv").write_text("\n".join(["query,document,grade", *rows]))
    (folder / "notizen").mkdir()
    (folder / "notizen" / "eins.md").write_text("# Bienen\n\nDie Bienen halten sich warm.\n")
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(lines), folder / "docs.parquet")
    Index.build([*documents, *(Document(name, "to be deleted") for name in ("doc-17", "doc-18"))], folder / "my-index")
    for name in ("bm25", "engine", "my-engine", "noisy", "top20", "bert"):
        scores = {query.qid: {d.docid: -float(n) for n, d in enumerate(documents)} for query in queries}
        write_run(Run.from_scores(scores, name=name), folder / f"{name}.run")
    for name in ("nli/snli.train.tsv", "nli/snli.dev.tsv", "FOLDER/train.tsv", "FOLDER/test.tsv"):
        (folder / name).parent.mkdir(exist_ok=True)
        second = "\tBees {0} are warm." if name.startswith("nli") else ""
        rows = (f"{label}\tHow do {n} bees keep warm?" + second.format(n) for n, label in enumerate(LABELS * 4))
        (folder / name).write_text("\n".join(rows) + "\n")
    (folder / "my_losses.py").write_text(LOSS)
    (folder / "searches").mkdir()
    for days in range(1, 21):
        write_log(folder / "searches", datetime.now(UTC) - timedelta(days), many, qrels)
    for name in ("model", "my-model", "ranker/model"):
        shutil.copytree(tiny_checkpoint, folder / name)
    return folder


def write_log(folder: Path, day: datetime, queries: Sequence[Query], qrels: Qrels) -> None:
    """A day of searches in which each query is asked twice, and what is relevant is clicked once."""
    kinds: dict[str, list[dict[str, Any]]] = {"queries": [], "events": []}
    for number, query in enumerate([*queries, *queries]):
        own = {"query_id": f"{day:%d}-{number}", "timestamp": day.isoformat(timespec="milliseconds")}
        attributes = {"from": 0, "candidates": 10, "special": False}
        shown = {
            "user_query": query.text,
            "query_response_hit_ids": list(qrels[query.qid]),
            "query_attributes": attributes,
        }
        kinds["queries"].append({**own, **shown})
        event = {"action_name": "click", "event_attributes": {"object": {"object_id": max(qrels[query.qid])}}}
        kinds["events"] += [{**own, **event}] * (number < len(queries))
    for kind, rows in kinds.items():
        path = folder / f"{kind}-{day:%Y-%m-%d}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def start(command: list[str], folder: Path) -> subprocess.Popen[str]:
    """A service as a user starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "rankwell", *command, "--port", str(port)]
    return subprocess.Popen(line, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Sources]:
    """What `rankwell serve` serves in this process, which is opened and closed at once."""
    from rankwell.serve.api import create_app
    from rankwell.serve.service import Service

    every: list[Sources] = []

    def serve(sources: Sources, limits: Any, batching: Any, *rest: object) -> Any:
        with TestClient(create_app(Service(sources, limits, batching))) as client:
            assert client.get("/ready").status_code == 200
        every.append(sources)
        return SimpleNamespace(unfinished=False)

    monkeypatch.setattr("rankwell.serve.server.serve", serve)
    return every


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_one_after_the_other(
    page: Path,
    files: Path,
    rankwell: Callable[..., Any],
    opened: list[Sources],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The first service of a page is a process; the others are opened in this one."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(LOSSES, "_parts", dict(LOSSES.registered()))  # a page adds one: no other test is to find it
    steps = climb.all_steps  # of which one is tried, so that a slow machine fits the same system
    monkeypatch.setattr(climb, "all_steps", lambda task: [step for step in steps(task) if step.name == "hybrid"])
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    if page.stem in ("fitting", "your-engine", "serve", "evaluation", "launch"):
        fitted = files.with_name("my-system")  # once for all pages
        if not fitted.exists():
            assert rankwell("fit", "my-data", "--out", fitted, "--minutes", "60", "--device", "cpu").code == 0
        shutil.copytree(fitted, "my-system")
    if page.stem == "serve":
        assert rankwell("export", "my-model", "--to", "onnx", "--out", "exported").code == 0
    monkeypatch.setenv("RANKWELL_WRITING_KEY", "a key")
    monkeypatch.syspath_prepend(tmp_path)
    served: list[subprocess.Popen[str]] = []
    for command in commands(page):
        if left_out(command):
            continue
        if command[0] == "serve" and not served:
            served.append(start(command, tmp_path))
            continue
        if command[0] == "serve":
            before, done = len(opened), rankwell(*command, "--port", "0")
            assert (done.code, len(opened)) == (0, before + 1), (command, done)
            continue
        out = Path(command[command.index("--out") + 1]) if "--out" in command else None
        new = "--update" not in command and "--from" not in command
        if out is not None and out.is_dir() and command[0] in ("index", "fit", "train") and new:
            shutil.rmtree(out)
        check = ["--check"] if command[0] in ("train", "experiment") and "--check" not in command else []
        patient = ["--minutes", "60"] if command[0] == "fit" else []
        done = rankwell(*command, *check, *patient)
        assert done.code in ((0, 3) if "--log" in command else (0,)), (command, done)
    for process in served:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("serving at" in line for line in lines), process.args
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, process.args
        process.stderr.close()
