"""One training of a row of docs/papers.md: its parts, its data, and its figures on dev queries."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import write_json
from papers.results import MEASURES, POINTWISE_ONLY
from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder
from rankwell.corpus.datasets import FolderDataset
from rankwell.corpus.formats import write_qrels, write_queries, write_types
from rankwell.corpus.records import Qrels, Query
from rankwell.evaluation.evaluate import Evaluation, evaluate
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.names import SHIPPED
from rankwell.rank.ranker import Ranker
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index
from rankwell.training.data.prepare import open_collection, open_split
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import build_recipe
from rankwell.training.run import run_recipe
from rankwell.training.stage_store import FINISHED

FIRST_STAGE_MEASURES = ("RR@10", "AP", "nDCG", "P@10", "R@100", "R@1000")
POINTWISE_STEPS, LISTWISE_STEPS, LISTWISE_ONLY = 600, 1100, 1500
"""Steps of 64 and of 96 pairs: 600 and 1,100 together, 2,250 or 1,500 are 144,000 pairs each."""
POINTWISE_RATE, LISTWISE_RATE = 6e-5, 1e-4
"""What training queries set aside preferred, of 6e-5 and 1.5e-4 for pointwise and of 4e-5, 1e-4 and 2.5e-4."""
CHECKED = 100
"""Queries set aside that each stage is measured on, by which nothing is chosen."""
CHOICE_SEED = 20261116


@dataclass(frozen=True)
class Source:
    """A data set, the splits to train on and to report, and how BM25 finds its candidates."""

    folder: Path
    train: str
    dev: str
    k1: float
    b: float
    aside: int
    most: int | None = None
    """Training queries to use, drawn at random; None: all."""
    k2: float | None = None


@dataclass(frozen=True)
class Row:
    """A ranker of Table 1: DR-BERT without some of its parts, or with others."""

    rule: str = "strm"
    template: str = "typed"
    types: str = "auto"
    """``auto``, ``rules``, ``shuffled``, or ``classifier``: the folder that the command names."""
    pretrain: bool = True
    pointwise: bool = True
    listwise: bool = True
    threshold: float | None = None
    """Of noise reduction; None: without it."""
    found_only: bool = False
    markers: bool = False
    unmarked: str = "stop words"
    mark_unmatched_query: bool = False


OFF = Row(rule="full", template="mono", pretrain=False)
POINTWISE, LISTWISE = replace(OFF, listwise=False), replace(OFF, pointwise=False)
MARKED = replace(POINTWISE, markers=True)
ROWS = {
    "drbert": Row(),
    "no-pretraining": Row(pretrain=False),
    "no-pointwise": Row(pointwise=False),
    "no-types": Row(template="mono"),
    "no-listwise": Row(listwise=False),
    "no-strm": Row(rule="full"),
    "denoised": Row(threshold=0.9),
    "pointwise-only": POINTWISE,
    "listwise-only": LISTWISE,
    "found-only": replace(LISTWISE, found_only=True),
    "marked": MARKED,
    "marked-content": replace(MARKED, unmarked="function words"),
    "marked-unmatched": replace(MARKED, mark_unmatched_query=True),
    "full": OFF,
    "strm": replace(OFF, rule="strm"),
    "exact_match": replace(OFF, rule="exact_match"),
    "typed": replace(OFF, template="typed"),
    "rule-types": replace(OFF, template="typed", types="rules"),
    "classifier-types": replace(OFF, template="typed", types="classifier"),
    "shuffled-types": replace(OFF, template="typed", types="shuffled"),
}


def row_recipe(
    data: Path, source: Source, start: str, row: Row, seed: int, scale: float, classifier: Path | None
) -> Recipe:
    """A row at 144,000 pairs, or at a ``scale`` of them: trained on ``fit``, measured on ``choice``.

    The model truncates documents and has no pooler.
    """
    types = {"shuffled": str(data / "shuffled.{split}.tsv"), "classifier": str(classifier)}.get(row.types, row.types)
    tree = {
        "name": "table1",
        "seed": seed,
        "data": {"folder": str(data), "train": "fit", "dev": "choice", "dev_queries": CHECKED, "types": types},
        "first_stage": {"k1": source.k1, "b": source.b, "depth": 100},
        "model": {
            "start": start,
            "template": row.template,
            "attention": row.rule,
            "markers": row.markers,
            "unmarked": row.unmarked,
            "mark_unmatched_query": row.mark_unmatched_query,
            "max_length": 180,
            "max_query": 64,
            "pooler": False,
            "long_documents": "cut",
        },
        "evaluate": {"measures": list(MEASURES), "depth": 100},
        "stages": _stages(row, scale),
    }
    return build_recipe(tree, Path.cwd() / "recipe.yaml")


def _stages(row: Row, scale: float) -> dict[str, Any]:
    stages: dict[str, Any] = {}
    if row.pretrain:
        text = {"batch": 128, "warm_up": 0.1, "max_length": 180, "held_out": 0.01}
        stages["pretrain"] = {**_steps(600 * scale), **text, "learning_rate": 5e-5}
    if row.pointwise:  # a relevant passage and another, 32 times a step
        steps = POINTWISE_STEPS if row.listwise else POINTWISE_ONLY
        lists = {"batch": 32, "positives": 1, "negatives": 1, "depth": 100, "best": "last"}
        stages["pointwise"] = {**lists, **_steps(steps * scale), "learning_rate": POINTWISE_RATE}
    if row.threshold is not None:
        stages["denoise"] = {"threshold": row.threshold, "most": 1.0}
    if row.listwise:  # lists of one relevant passage and five others, 16 a step
        steps = LISTWISE_STEPS if row.pointwise else LISTWISE_ONLY
        lists = {"batch": 16, "positives": 1, "negatives": 5, "depth": 100, "best": "last"}
        lists |= {"found_only": row.found_only, "head": "pointwise" if row.pointwise else "new"}
        stages["listwise"] = {**lists, **_steps(steps * scale), "learning_rate": LISTWISE_RATE}
    return stages


def _steps(steps: float) -> dict[str, Any]:
    return {"epochs": 1000, "max_steps": max(1, round(steps)), "save_every": 100_000}


@contextmanager
def made_once(out: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``out``. If two processes fill one at the same time, that of the first stays."""
    try:
        with atomic_folder(out) as folder:
            yield folder
    except RankwellError:
        if not out.exists():
            raise


def set_aside(source: Source, out: Path) -> Path:
    """A data set with three splits: ``fit``, ``choice`` (training queries set aside) and ``dev``; made once."""
    if out.exists():
        return out
    data = FolderDataset(source.folder)
    judged, dev = data.qrels(source.train), data.qrels(source.dev)
    queries = [query for query in data.queries(source.train) if query.qid in judged]
    order = np.random.default_rng(CHOICE_SEED).permutation(len(queries)).tolist()
    aside = set(order[: source.aside])
    fit = set(order[source.aside :][: source.most])
    splits: dict[str, tuple[list[Query], Qrels]] = {
        "fit": ([query for i, query in enumerate(queries) if i in fit], judged),
        "choice": ([query for i, query in enumerate(queries) if i in aside], judged),
        "dev": ([query for query in data.queries(source.dev) if query.qid in dev], dev),
    }
    types = {**data.types(source.train), **data.types(source.dev)} if data.has("types") else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    with made_once(out) as folder:
        os.symlink(data.collection_path.resolve(), folder / data.collection_path.name)
        for name, (some, qrels) in splits.items():
            write_queries(some, folder / f"queries.{name}.tsv")
            write_qrels(Qrels({query.qid: qrels[query.qid] for query in some}), folder / f"qrels.{name}.txt")
            if labels := {query.qid: types[query.qid] for query in some if query.qid in types}:
                write_types(labels, folder / f"types.{name}.tsv")
                shuffled = np.random.default_rng(CHOICE_SEED).permutation(list(labels.values())).tolist()
                write_types(dict(zip(labels, shuffled, strict=True)), folder / f"shuffled.{name}.tsv")
    return out


def train_arm(recipe: Recipe, arm: Mapping[str, Any], out: Path, pool: Path, device: str | None) -> None:
    """Train, then write ``result.json`` and the values of each dev query.

    ``arm`` says what was trained: its study, data set, row and seed.
    """
    trained = run_recipe(recipe, out, pool=pool, device=device, say=print)
    rows = trained.table.data["rows"]
    stages = {row["stage"]: {key: value for key, value in row.items() if key != "stage"} for row in rows}
    collection = trained.work.data.collection
    split = open_split(trained.work.recipe, collection, "dev", pool, device=device)
    ranker = Ranker.from_pretrained(trained.work.model, device=device)
    run = ranker.rerank(split.run, split.queries, collection.index, depth=100)
    found, first = (evaluate(split.qrels, ranked, MEASURES) for ranked in (run, split.run))
    write_values(out, split.queries, ranker.tokenizer, first, found)
    result = {"arm": dict(arm), "recipe": recipe.as_dict(), "stages": stages, "dev": dict(found.mean)}
    write_json(out / "result.json", result)


def write_values(
    out: Path, queries: Iterable[Query], tokenizer: Tokenizer, first: Evaluation, found: Evaluation
) -> None:
    """Write ``dev.csv.gz``: of each query its words, whether one is split, and the values of BM25 and of a ranker."""
    texts = {query.qid: query.text for query in queries}
    pieces = tokenizer.encode([texts[qid] for qid in found.qids])
    spans = zip(pieces.begins.tolist(), pieces.ends.tolist(), strict=True)
    is_split = [bool(pieces.continues[begin:end].any()) for begin, end in spans]
    names = list(found.per_query)
    out.mkdir(parents=True, exist_ok=True)
    with gzip.open(out / "dev.csv.gz", "wt", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["qid", "words", "split word", *(f"BM25 {name}" for name in names), *names])
        for i, qid in enumerate(found.qids):
            values = [f"{each.per_query[name][i]:.6g}" for each in (first, found) for name in names]
            table.writerow([qid, len(texts[qid].split()), int(is_split[i]), *values])


def measure_first_stage(source: Source, index: Path | None, row: str, out: Path, pool: Path) -> None:
    """Write the values of the first 1,000 documents, beside BM25's on counted terms (k1 and b, without k2).

    ``index`` is another index of the same documents, such as one of DeepCT's weights or doc2query's queries. If it is
    in the folder of the stage that made it, the figures of that stage are kept, too.
    """
    collection = open_collection(str(source.folder), pool)
    data = FolderDataset(source.folder)
    qrels = data.qrels(source.dev)
    queries = [query for query in data.queries(source.dev) if query.qid in qrels]
    stages = {}
    if index is not None and (record := index.parent / FINISHED).exists():
        stages[row] = {"figures": json.loads(record.read_text(encoding="utf-8"))["produced"]["figures"]}
    searched = collection.index if index is None else Index.open(index)
    plain = collection.index.search(queries, k=1000, bm25=BM25(0.9, 0.4))
    run = searched.search(queries, k=1000, bm25=BM25(source.k1, source.b, source.k2))
    first, found = (evaluate(qrels, each, FIRST_STAGE_MEASURES) for each in (plain, run))
    write_values(out, queries, Tokenizer.open(SHIPPED), first, found)  # BERT's vocabulary, as MiniLM's
    # The Wikipedia data have two sets of queries, questions.dev and headings.dev.
    name = source.dev.partition(".")[0] if "." in source.dev else source.folder.name
    arm = {"study": "first-stage", "data": name, "row": row, "seed": 1, "measures": FIRST_STAGE_MEASURES}
    recipe = {"first_stage": {"k1": source.k1, "b": source.b, "k2": source.k2}}
    write_json(out / "result.json", {"arm": arm, "recipe": recipe, "stages": stages, "dev": dict(found.mean)})
    print(row, {name: round(value, 4) for name, value in found.mean.items()})
