"""One training of docs/papers.md or docs/attention-rules.md: its data, and its figures on dev queries."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from harness import write_json
from papers.recipes import LEFT_OUT, MEASURES, Source
from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder
from rankwell.corpus.datasets import FolderDataset
from rankwell.corpus.formats import write_documents, write_qrels, write_queries, write_run, write_types
from rankwell.corpus.formats.lines import write_lines
from rankwell.corpus.records import Document, Qrels, Query
from rankwell.evaluation.evaluate import Evaluation, evaluate
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.names import SHIPPED
from rankwell.rank.ranker import Ranker
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index
from rankwell.training.data.prepare import open_collection, open_split
from rankwell.training.recipe import Recipe
from rankwell.training.run import Trained, run_recipe
from rankwell.training.stage_store import FINISHED

CHOICE_SEED = 20261116
FIRST_STAGE_MEASURES = ("RR@10", "AP", "nDCG", "P@10", "R@100", "R@1000")


# Data


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
    left_out = documents_of_articles(
        [query for split in data.splits for query in data.queries(split)],
        Qrels({qid: grades for split in data.splits for qid, grades in data.qrels(split).items()}),
        {article_of(query) for query in splits["dev"][0]},
    )
    types = {**data.types(source.train), **data.types(source.dev)} if data.has("types") else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    with made_once(out) as folder:
        os.symlink(data.collection_path.resolve(), folder / data.collection_path.name)
        write_lines(folder / LEFT_OUT, "documents", (f"{docid}\n" for docid in left_out))
        for name, (some, qrels) in splits.items():
            write_queries(some, folder / f"queries.{name}.tsv")
            write_qrels(Qrels({query.qid: qrels[query.qid] for query in some}), folder / f"qrels.{name}.txt")
            if labels := {query.qid: types[query.qid] for query in some if query.qid in types}:
                write_types(labels, folder / f"types.{name}.tsv")
                shuffled = np.random.default_rng(CHOICE_SEED).permutation(list(labels.values())).tolist()
                write_types(dict(zip(labels, shuffled, strict=True)), folder / f"shuffled.{name}.tsv")
    return out


def article_of(query: Query) -> str:
    """The article that a query such as ``Banksia / Woodworking`` asks about; for other queries, the query itself."""
    return query.text.partition(" / ")[0]


def documents_of_articles(queries: Iterable[Query], qrels: Qrels, articles: set[str]) -> list[str]:
    """The documents that are relevant to any query about these articles."""
    asked = (query for query in queries if article_of(query) in articles)
    return sorted({docid for query in asked for docid, grade in qrels.get(query.qid, {}).items() if grade >= 1})


def join_collections(folders: list[Path], out: Path) -> Path:
    """All collections as one, in which the id of a document begins with its folder's name. Made once."""
    if out.exists():
        return out
    sources = [FolderDataset(folder) for folder in folders]
    first, prefixes = sources[0], [f"{folder.name}-" if len(folders) > 1 else "" for folder in folders]

    def documents() -> Iterator[Document]:
        for source, prefix in zip(sources, prefixes, strict=True):
            for document in source.documents():
                yield Document(f"{prefix}{document.docid}", document.text)

    # Pre-training reads no queries, but a recipe's data has some: one is enough.
    judged = first.qrels(first.splits[0])
    query = next(query for query in first.queries(first.splits[0]) if query.qid in judged)
    grades = {f"{prefixes[0]}{docid}": grade for docid, grade in judged[query.qid].items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    with made_once(out) as folder:
        if len(sources) == 1:
            os.symlink(first.collection_path.resolve(), folder / first.collection_path.name)
        else:
            write_documents(documents(), folder / "collection.tsv")
        for split in ("train", "dev"):
            write_queries([query], folder / f"queries.{split}.tsv")
            write_qrels(Qrels({query.qid: grades}), folder / f"qrels.{split}.txt")
    return out


# Figures


def train_arm(
    recipe: Recipe, arm: Mapping[str, Any], out: Path, pool: Path, device: str | None, report: bool = True
) -> None:
    """Train, then write ``result.json`` and, if ``report``, the runs and per-query values of dev.

    ``arm`` says what was trained: its study, data set, row and seed.
    """
    trained = run_recipe(recipe, out, pool=pool, device=device, say=print)
    result: dict[str, Any] = {"arm": dict(arm), "recipe": recipe.as_dict(), "stages": _stage_figures(trained)}
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
    write_values(out, split.queries, ranker.tokenizer, first, found)
    scores = np.concatenate([ranking.scores for ranking in run.values()])
    return {"dev": dict(found.mean), "standard deviation of dev scores": float(scores.std())}


def write_values(
    out: Path, queries: Iterable[Query], tokenizer: Tokenizer, first: Evaluation, found: Evaluation
) -> None:
    """Write ``dev.csv.gz``: of each query its words, whether one is split, and the values of BM25 and of a ranker."""
    texts = {query.qid: query.text for query in queries}
    is_split = has_split_word([texts[qid] for qid in found.qids], tokenizer)
    names = list(found.per_query)
    out.mkdir(parents=True, exist_ok=True)
    with gzip.open(out / "dev.csv.gz", "wt", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["qid", "words", "split word", *(f"BM25 {name}" for name in names), *names])
        for i, qid in enumerate(found.qids):
            values = [f"{each.per_query[name][i]:.6g}" for each in (first, found) for name in names]
            table.writerow([qid, len(texts[qid].split()), int(is_split[i]), *values])


def has_split_word(texts: list[str], tokenizer: Tokenizer) -> list[bool]:
    """Whether the tokenizer splits a word of each text."""
    pieces = tokenizer.encode(texts)
    spans = zip(pieces.begins.tolist(), pieces.ends.tolist(), strict=True)
    return [bool(pieces.continues[begin:end].any()) for begin, end in spans]


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
