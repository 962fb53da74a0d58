"""One training of docs/attention-rules.md: its data, its recipe, and its figures on queries that chose nothing."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import write_json
from rankwell.core.files import atomic_folder
from rankwell.corpus.datasets import FolderDataset
from rankwell.corpus.formats import write_documents, write_qrels, write_queries, write_run, write_types
from rankwell.corpus.records import Document, Qrels, Query
from rankwell.evaluation.evaluate import evaluate
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.rank.ranker import Ranker
from rankwell.training.data.prepare import prepare
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import build_recipe
from rankwell.training.run import Trained, run_recipe

MEASURES = ("RR@10", "nDCG@10", "AP")
CHOICE_SEED = 20261116
POINTWISE_STEPS, LISTWISE_STEPS = 640, 1700
POINTWISE_ONLY, LISTWISE_ONLY = 3190, 2127
"""Steps of 64 and of 96 pairs: 640 and 1,700 together, 3,190 or 2,127 make about 204,160 pairs each."""


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
    """A row of Table 1: DR-BERT without some of its parts."""

    rule: str = "strm"
    template: str = "typed"
    pretrain: bool = True
    pointwise: bool = True
    denoise: bool = True
    listwise: bool = True


OFF = Row(rule="full", template="mono", pretrain=False, denoise=False)
ROWS = {
    "drbert": Row(),
    "no-pretraining": Row(pretrain=False),
    "no-types": Row(template="mono"),
    "no-strm": Row(rule="full"),
    "no-denoise": Row(denoise=False),
    "no-listwise": Row(denoise=False, listwise=False),
    "no-pointwise": Row(denoise=False, pointwise=False),
    "pointwise-only": replace(OFF, listwise=False),
    "listwise-only": replace(OFF, pointwise=False),
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
    name: str, data: Path, source: Source, start: str, row: Row, stages: Mapping[str, Any], seed: int
) -> Recipe:
    """Training on ``fit``, measured on ``choice``; the model truncates documents and has no pooler."""
    tree = {
        "name": name,
        "seed": seed,
        "data": {"folder": str(data), "train": "fit", "dev": "choice"},
        "first_stage": {"k1": source.k1, "b": source.b, "depth": 100},
        "model": {
            "start": start,
            "template": row.template,
            "attention": row.rule,
            "max_length": 180,
            "max_query": 64,
            "pooler": False,
            "long_documents": "cut",
        },
        "evaluate": {"measures": list(MEASURES), "depth": 100},
        "stages": dict(stages),
    }
    return build_recipe(tree, Path.cwd() / "recipe.yaml")


def listwise_stage(rate: float, steps: int, head: str = "new", depth: int = 100) -> dict[str, Any]:
    """Lists of one relevant passage and five others, 16 a step."""
    lists = {"batch": 16, "positives": 1, "negatives": 5, "depth": depth, "head": head}
    return {**lists, "epochs": 1000, "max_steps": steps, "learning_rate": rate, "best": "last"}


def table1_stages(row: Row, rate: float, scale: float) -> dict[str, Any]:
    """The stages of a row of Table 1 at 204,160 pairs, or at a ``scale`` of them to try the script out."""

    def scaled(steps: int) -> int:
        return max(1, round(steps * scale))

    stages: dict[str, Any] = {}
    if row.pretrain:
        steps = {"epochs": 1000, "max_steps": scaled(600), "batch": 128}
        stages["pretrain"] = {**steps, "learning_rate": 5e-5, "warm_up": 0.1, "max_length": 180, "held_out": 0.01}
    if row.pointwise:
        steps = {"epochs": 1000, "max_steps": scaled(POINTWISE_STEPS if row.listwise else POINTWISE_ONLY)}
        lists = {"batch": 32, "negatives": 1, "depth": 50}
        stages["pointwise"] = {**steps, **lists, "learning_rate": rate, "best": "last"}
    if row.denoise:
        stages["denoise"] = {"threshold": 0.998, "most": 1.0}
    if row.listwise:
        count = LISTWISE_STEPS if row.pointwise else LISTWISE_ONLY
        stages["listwise"] = listwise_stage(rate, scaled(count), "pointwise" if row.pointwise else "new", depth=50)
    return stages


# Figures


def train_arm(recipe: Recipe, out: Path, pool: Path, device: str | None, report: bool) -> None:
    """Train, then write ``result.json`` and, if ``report``, the runs and per-query values of dev."""
    trained = run_recipe(recipe, out, pool=pool, device=device, say=print)
    result = {"recipe": recipe.as_dict(), "stages": _stage_figures(trained)}
    if report and trained.model is not None:
        result |= _measure_dev(recipe, trained.model, out, pool, device)
    write_json(out / "result.json", result)


def _stage_figures(trained: Trained) -> dict[str, Any]:
    """What each stage reports, and its figures on the choice queries."""
    rows = trained.table.data["rows"]
    return {row["stage"]: {key: value for key, value in row.items() if key != "stage"} for row in rows}


def _measure_dev(recipe: Recipe, model: Path, out: Path, pool: Path, device: str | None) -> dict[str, Any]:
    data = recipe.data.model_copy(update={"dev": "dev"})
    prepared = prepare(recipe.model_copy(update={"data": data}), pool, device=device)
    split = prepared.dev
    ranker = Ranker.from_pretrained(model, device=device)
    run = ranker.rerank(split.run, split.queries, prepared.index, depth=100)
    write_run(split.run, out / "first-stage.run.gz")
    write_run(run, out / "dev.run.gz")
    found, first = (evaluate(split.qrels, ranked, MEASURES) for ranked in (run, split.run))
    texts = {query.qid: query.text for query in split.queries}
    is_split = has_split_word([texts[qid] for qid in found.qids], ranker.tokenizer)
    with gzip.open(out / "dev.csv.gz", "wt", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["qid", "split word", *(f"BM25 {name}" for name in MEASURES), *MEASURES])
        for i, qid in enumerate(found.qids):
            values = [f"{each.per_query[name][i]:.6g}" for each in (first, found) for name in MEASURES]
            table.writerow([qid, int(is_split[i]), *values])
    scores = np.concatenate([ranking.scores for ranking in run.values()])
    return {"dev": dict(found.mean), "standard deviation of dev scores": float(scores.std())}


def has_split_word(texts: list[str], tokenizer: Tokenizer) -> list[bool]:
    """Whether the tokenizer splits a word of each text."""
    pieces = tokenizer.encode(texts)
    spans = zip(pieces.begins.tolist(), pieces.ends.tolist(), strict=True)
    return [bool(pieces.continues[begin:end].any()) for begin, end in spans]
