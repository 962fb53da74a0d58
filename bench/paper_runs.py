"""One training of docs/attention-rules.md: its data, its recipe, and its figures on queries that chose nothing."""

from __future__ import annotations

import csv
import gzip
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import write_json
from rankwell.core.files import atomic_folder
from rankwell.corpus.datasets import FolderDataset
from rankwell.corpus.formats import read_qrels, write_documents, write_qrels, write_queries, write_run, write_types
from rankwell.corpus.records import Document, Qrels, Query, Ranking, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.names import BACKBONE
from rankwell.rank.ranker import Ranker
from rankwell.training.data.prepare import open_split, prepare
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import build_recipe
from rankwell.training.run import Trained, run_recipe

MEASURES = ("RR@10", "nDCG@10", "AP")
CHOICE_SEED = 20261116
POINTWISE_STEPS, LISTWISE_STEPS = 600, 1100
POINTWISE_ONLY, LISTWISE_ONLY = 2250, 1500
"""Steps of 64 and of 96 pairs: 600 and 1,100 together, 2,250 or 1,500 are 144,000 pairs each."""
JUDGE_STEPS, CLEANED_STEPS = POINTWISE_ONLY, 800
"""Noise reduction on its own: the judge is as good as pointwise training alone, then 76,800 pairs of listwise."""
POINTWISE_RATE, LISTWISE_RATE = 6e-5, 1e-4
"""What training queries set aside preferred, of 6e-5 and 1.5e-4 for pointwise and of 4e-5, 1e-4 and 2.5e-4."""
THRESHOLDS = (0.9, 0.95, 0.97, 0.99)


@dataclass(frozen=True)
class Source:
    """A data set, the splits to train on and to report, and how BM25 finds its candidates."""

    folder: Path
    train: str
    dev: str
    k1: float
    b: float
    aside: int


@dataclass(frozen=True)
class Row:
    """A ranker of Table 1: DR-BERT without some of its parts, or with others."""

    rule: str = "strm"
    template: str = "typed"
    types: str = "auto"
    pretrain: bool = True
    pointwise: bool = True
    listwise: bool = True
    threshold: float | None = None
    """Of noise reduction; None: without it."""
    found_only: bool = False
    markers: bool = False
    unmarked: str = "stop words"


OFF = Row(rule="full", template="mono", pretrain=False)
POINTWISE, LISTWISE = replace(OFF, listwise=False), replace(OFF, pointwise=False)
ROWS = {
    "drbert": Row(),
    "no-pretraining": Row(pretrain=False),
    "no-pointwise": Row(pointwise=False),
    "no-types": Row(template="mono"),
    "no-listwise": Row(listwise=False),
    "no-strm": Row(rule="full"),
    "denoised": Row(threshold=0.9),
    "shuffled-types": Row(types="shuffled"),
    "rule-types": Row(types="rules"),
    "pointwise-only": POINTWISE,
    "listwise-only": LISTWISE,
    "found-only": replace(LISTWISE, found_only=True),
    "marked": replace(POINTWISE, markers=True),
    "marked-content": replace(POINTWISE, markers=True, unmarked="function words"),
}


# Data


def set_aside(source: Source, out: Path) -> Path:
    """A data set with three splits: ``fit``, ``choice`` (training queries set aside) and ``dev``; made once."""
    if out.exists():
        return out
    data = FolderDataset(source.folder)
    judged, dev = data.qrels(source.train), data.qrels(source.dev)
    queries = [query for query in data.queries(source.train) if query.qid in judged]
    order = np.random.default_rng(CHOICE_SEED).permutation(len(queries)).tolist()
    aside = set(order[: source.aside])
    splits: dict[str, tuple[list[Query], Qrels]] = {
        "fit": ([query for i, query in enumerate(queries) if i not in aside], judged),
        "choice": ([query for i, query in enumerate(queries) if i in aside], judged),
        "dev": ([query for query in data.queries(source.dev) if query.qid in dev], dev),
    }
    types = {**data.types(source.train), **data.types(source.dev)} if data.has("types") else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        os.symlink(data.collection_path.resolve(), folder / data.collection_path.name)
        for name, (some, qrels) in splits.items():
            write_queries(some, folder / f"queries.{name}.tsv")
            write_qrels(Qrels({query.qid: qrels[query.qid] for query in some}), folder / f"qrels.{name}.txt")
            if labels := {query.qid: types[query.qid] for query in some if query.qid in types}:
                write_types(labels, folder / f"types.{name}.tsv")
                shuffled = np.random.default_rng(CHOICE_SEED).permutation(list(labels.values())).tolist()
                write_types(dict(zip(labels, shuffled, strict=True)), folder / f"shuffled.{name}.tsv")
    return out


def hide_positives(data: Path, source: Source, pool: Path, count: int, out: Path) -> Path:
    """The queries of ``fit`` with two or more relevant passages, one of which is hidden among ``count`` candidates.

    A query's judgments keep one passage, drawn at random. ``noisy.run.gz`` has BM25's candidates with the hidden
    passage at a random rank, ``clean.run.gz`` has them without it; neither has other relevant passages of the query.
    """
    if out.exists():
        return out
    recipe = ranking_recipe("hide", data, source, BACKBONE, OFF, table1_stages(OFF), 1)
    split, base = prepare(recipe, pool).train, FolderDataset(data)
    random = np.random.default_rng(CHOICE_SEED)
    judged: dict[str, dict[str, int]] = {}
    hidden: dict[str, dict[str, int]] = {}
    noisy: dict[str, Ranking] = {}
    clean: dict[str, Ranking] = {}
    for query in split.queries:
        relevant = sorted(docid for docid, grade in split.qrels[query.qid].items() if grade >= 1)
        if len(relevant) < 2 or query.qid not in split.run:
            continue
        shown, secret = random.permutation(relevant).tolist()[:2]
        others = [docid for docid in split.run[query.qid].docids if docid not in relevant][: count - 1]
        place = int(random.integers(len(others) + 1))
        judged[query.qid], hidden[query.qid] = {shown: 1}, {secret: 1}
        for run, docids in ((noisy, [*others[:place], secret, *others[place:]]), (clean, others)):
            run[query.qid] = Ranking(tuple(docids), np.arange(len(docids), 0, -1, dtype=np.float32))
    queries = [query for query in split.queries if query.qid in judged]
    with atomic_folder(out) as folder:
        os.symlink(base.collection_path.resolve(), folder / base.collection_path.name)
        for name in ("choice", "dev"):
            for kind, extension in (("queries", "tsv"), ("qrels", "txt")):
                shutil.copy(data / f"{kind}.{name}.{extension}", folder)
        write_queries(queries, folder / "queries.fit.tsv")
        write_qrels(Qrels(judged), folder / "qrels.fit.txt")
        write_qrels(Qrels(hidden), folder / "hidden.txt")
        for name, rankings in (("noisy", noisy), ("clean", clean)):
            write_run(Run(rankings, name=name), folder / f"{name}.run.gz")
    return out


def join_collections(folders: list[Path], out: Path) -> Path:
    """All collections as one; the id of a document begins with its folder's name. Made once."""
    if out.exists():
        return out
    sources = [FolderDataset(folder) for folder in folders]

    def documents() -> Iterator[Document]:
        for source in sources:
            for document in source.documents():
                yield Document(f"{source.folder.name}-{document.docid}", document.text)

    # Pre-training reads no queries, but a recipe's data has some: one is enough.
    first = sources[0]
    judged = first.qrels(first.splits[0])
    query = next(query for query in first.queries(first.splits[0]) if query.qid in judged)
    grades = {f"{first.folder.name}-{docid}": grade for docid, grade in judged[query.qid].items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        write_documents(documents(), folder / "collection.tsv")
        for split in ("train", "dev"):
            write_queries([query], folder / f"queries.{split}.tsv")
            write_qrels(Qrels({query.qid: grades}), folder / f"qrels.{split}.txt")
    return out


# Recipes


def pretraining_recipe(data: Path, start: str, rule: str, steps: int, batch: int, seed: int) -> Recipe:
    """General pre-training under a rule in every layer; 1 % of the passages are held out."""
    stage = {
        "epochs": 1000,
        "max_steps": steps,
        "batch": batch,
        "learning_rate": 1e-4,
        "warm_up": 0.05,
        "head_scale": 5.0,
        "max_length": 128,
        "held_out": 0.01,
    }
    tree = {"name": f"pretrain-{rule}", "seed": seed, "data": {"folder": str(data)}}
    tree |= {"model": {"start": start, "attention": rule, "max_length": 128}, "stages": {"pretrain": stage}}
    return build_recipe(tree, Path.cwd() / "recipe.yaml")


def ranking_recipe(
    name: str,
    data: Path,
    source: Source,
    start: str,
    row: Row,
    stages: Mapping[str, Any],
    seed: int,
    train_run: str | None = None,
) -> Recipe:
    """Training on ``fit``, measured on ``choice``; the model truncates documents and has no pooler."""
    types = str(data / "shuffled.{split}.tsv") if row.types == "shuffled" else row.types
    tree = {
        "name": name,
        "seed": seed,
        "data": {"folder": str(data), "train": "fit", "dev": "choice", "types": types},
        "first_stage": {"k1": source.k1, "b": source.b, "depth": 100, "train_run": train_run},
        "model": {
            "start": start,
            "template": row.template,
            "attention": row.rule,
            "markers": row.markers,
            "unmarked": row.unmarked,
            "max_length": 180,
            "max_query": 64,
            "pooler": False,
            "long_documents": "cut",
        },
        "evaluate": {"measures": list(MEASURES), "depth": 100},
        "stages": dict(stages),
    }
    return build_recipe(tree, Path.cwd() / "recipe.yaml")


def listwise_stage(rate: float, steps: int, row: Row = LISTWISE) -> dict[str, Any]:
    """Lists of one relevant passage and five others, 16 a step."""
    lists = {"batch": 16, "positives": 1, "negatives": 5, "depth": 100, "found_only": row.found_only}
    head = "pointwise" if row.pointwise else "new"
    return {**lists, **_steps(steps), "learning_rate": rate, "head": head, "best": "last"}


def pointwise_stage(rate: float, steps: int) -> dict[str, Any]:
    """A relevant passage and another, 32 times a step."""
    lists = {"batch": 32, "positives": 1, "negatives": 1, "depth": 100}
    return {**lists, **_steps(steps), "learning_rate": rate, "best": "last"}


def _steps(steps: int) -> dict[str, Any]:
    return {"epochs": 1000, "max_steps": max(1, steps), "save_every": 100_000}


def table1_stages(row: Row, scale: float = 1.0) -> dict[str, Any]:
    """The stages of a row of Table 1 at 144,000 pairs, or at a ``scale`` of them to try the script out."""
    stages: dict[str, Any] = {}
    if row.pretrain:
        text = {"batch": 128, "warm_up": 0.1, "max_length": 180, "held_out": 0.01}
        stages["pretrain"] = {**_steps(round(600 * scale)), **text, "learning_rate": 5e-5}
    if row.pointwise:
        steps = POINTWISE_STEPS if row.listwise else POINTWISE_ONLY
        stages["pointwise"] = pointwise_stage(POINTWISE_RATE, round(steps * scale))
    if row.threshold is not None:
        stages["denoise"] = {"threshold": row.threshold, "most": 1.0}
    if row.listwise:
        steps = LISTWISE_STEPS if row.pointwise else LISTWISE_ONLY
        stages["listwise"] = listwise_stage(LISTWISE_RATE, round(steps * scale), row)
    return stages


def noise_stages(threshold: float | None, scale: float = 1.0) -> dict[str, Any]:
    """A judge, noise reduction at ``threshold`` (None: none) and listwise training on what it leaves."""
    stages: dict[str, Any] = {"pointwise": pointwise_stage(POINTWISE_RATE, round(JUDGE_STEPS * scale))}
    if threshold is not None:
        stages["denoise"] = {"threshold": threshold, "most": 1.0}
    return {**stages, "listwise": listwise_stage(LISTWISE_RATE, round(CLEANED_STEPS * scale), OFF)}


# Figures


def train_arm(
    recipe: Recipe, arm: Mapping[str, Any], out: Path, pool: Path, device: str | None, report: bool = True
) -> None:
    """Train, then write ``result.json`` and, if ``report``, the runs and per-query values of dev.

    ``arm`` says what was trained: its study, data set, row and seed.
    """
    trained = run_recipe(recipe, out, pool=pool, device=device, say=print)
    result: dict[str, Any] = {"arm": dict(arm), "recipe": recipe.as_dict(), "stages": _stage_figures(trained)}
    hidden = Path(recipe.data.folder) / "hidden.txt"
    if hidden.is_file() and (audit := next((done for done in trained.work.done if done.stage.kind == "denoise"), None)):
        result["drops"] = count_drops(audit.folder / "audit.tsv.gz", read_qrels(hidden))
    if report and trained.model is not None:
        result |= _measure_dev(trained, out, pool, device)
    write_json(out / "result.json", result)


def _stage_figures(trained: Trained) -> dict[str, Any]:
    """What each stage reports, and its figures on the choice queries."""
    rows = trained.table.data["rows"]
    return {row["stage"]: {key: value for key, value in row.items() if key != "stage"} for row in rows}


def _measure_dev(trained: Trained, out: Path, pool: Path, device: str | None) -> dict[str, Any]:
    collection = trained.work.data.collection
    split = open_split(trained.work.recipe, collection, "dev", pool, device=device)
    ranker = Ranker.from_pretrained(trained.work.model, device=device)
    run = ranker.rerank(split.run, split.queries, collection.index, depth=100)
    write_run(split.run, out / "first-stage.run.gz")
    write_run(run, out / "dev.run.gz")
    found, first = (evaluate(split.qrels, ranked, MEASURES) for ranked in (run, split.run))
    texts = {query.qid: query.text for query in split.queries}
    is_split = has_split_word([texts[qid] for qid in found.qids], ranker.tokenizer)
    with gzip.open(out / "dev.csv.gz", "wt", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["qid", "words", "split word", *(f"BM25 {name}" for name in MEASURES), *MEASURES])
        for i, qid in enumerate(found.qids):
            values = [f"{each.per_query[name][i]:.6g}" for each in (first, found) for name in MEASURES]
            table.writerow([qid, len(texts[qid].split()), int(is_split[i]), *values])
    scores = np.concatenate([ranking.scores for ranking in run.values()])
    return {"dev": dict(found.mean), "standard deviation of dev scores": float(scores.std())}


def count_drops(audit: Path, hidden: Qrels) -> list[dict[str, float]]:
    """How many candidates noise reduction drops at each threshold, and how many of them are hidden relevant passages.

    The audit lists all that the stage dropped, so the counts are right from the stage's own threshold on.
    """
    with gzip.open(audit, "rt", encoding="utf-8", newline="") as file:
        rows = [
            row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row["verdict"] == "dropped"
        ]
    found = []
    for threshold in THRESHOLDS:
        dropped = [row for row in rows if float(row["p"]) > threshold]
        right = sum(row["docid"] in hidden.get(row["qid"], {}) for row in dropped)
        found.append({"threshold": threshold, "dropped": len(dropped), "hidden": right, "of": len(hidden)})
    return found


def has_split_word(texts: list[str], tokenizer: Tokenizer) -> list[bool]:
    """Whether the tokenizer splits a word of each text."""
    pieces = tokenizer.encode(texts)
    spans = zip(pieces.begins.tolist(), pieces.ends.tolist(), strict=True)
    return [bool(pieces.continues[begin:end].any()) for begin, end in spans]
