"""The data that stages share, prepared once: index and texts, queries with types, judgments, first-stage candidates.

Everything is stored under the pool's ``data`` folder by a hash of what it was made from, so recipes, seeds and restarts
share it. Concurrent processes wait for the first one and use its results.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.locks import lock
from rankwell.core.manifest import digest, file_digest
from rankwell.corpus.datasets import FILE_NAMES, Dataset, FolderDataset, open_dataset
from rankwell.corpus.formats import read_run, read_types, write_run, write_types
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.query_types import TYPE_SOURCES, rule_types
from rankwell.corpus.records import Qrels, Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.models.checkpoints.names import find_model, model_digest
from rankwell.models.devices import Computing
from rankwell.rank.first_stage import FirstStage
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.description import INDEX_VERSION, analyzer_json
from rankwell.retrieve.index import Index
from rankwell.training.recipe import DEV_NAMES, FirstStageOptions, Recipe

if TYPE_CHECKING:
    from rankwell.inputs.stored import StoredTokens
    from rankwell.inputs.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Collection:
    """A data set with its index; ``digest`` names the documents."""

    dataset: Dataset
    index: Index
    digest: str

    @property
    def store(self) -> DocumentStore:
        """The documents' texts."""
        return self.index.segments[0].store


@dataclass(frozen=True, eq=False)
class Split:
    """Judged queries with their first-stage candidates; ``digest`` names all of it."""

    name: str
    queries: tuple[Query, ...]
    qrels: Qrels
    find: Callable[[], Run]
    digest: str

    @cached_property
    def run(self) -> Run:
        """The candidates, found when they are first needed: after the last stage, they are not."""
        return self.find()


@dataclass(frozen=True, eq=False)
class Prepared:
    """The data of a recipe."""

    collection: Collection
    train: Split
    dev: Split

    @property
    def index(self) -> Index:
        """The first stage's index, which has the texts too."""
        return self.collection.index

    def tokens(self, tokenizer: Tokenizer, *, stems: bool = False) -> StoredTokens:
        """The collection as token ids, tokenised once and stored; markers need ``stems``."""
        from rankwell.inputs.stored import StoredTokens

        return StoredTokens.open(self.collection.store.documents, tokenizer, stems=stems)


def prepare(recipe: Recipe, pool: Path, *, device: str | None = None) -> Prepared:
    """The data of ``recipe``, prepared unless ``pool`` has it already. Raises if anything is wrong with it.

    ``device`` is for models that prepare data: a bi-encoder that finds candidates, a classifier of types.
    """
    options = recipe.data
    collection = open_collection(options.folder, pool)
    dev_split = options.dev or dev_name(collection.dataset)
    first = recipe.first_stage
    train = open_split(
        recipe,
        collection,
        options.train,
        pool,
        run=first.train_run,
        limit=options.train_queries,
        share=options.train_share,
        negatives=True,
        device=device,
    )
    dev = open_split(recipe, collection, dev_split, pool, run=first.dev_run, limit=options.dev_queries, device=device)
    for split, purpose in ((train, "learn from"), (dev, "measure with")):
        if not any(grade >= options.relevance for grades in split.qrels.values() for grade in grades.values()):
            problem = f"no judgment of the split {split.name!r} has a grade of {options.relevance} or more"
            raise InputError(options.folder, None, f"{problem}, so there is nothing to {purpose}")
    missing = [query.qid for query in dev.queries if query.qid not in dev.run]
    if missing:
        warnings.warn(
            f"no candidates for {len(missing):,} of the {len(dev.queries):,} queries of {dev.name!r} (the first is "
            f"{missing[0]!r}), which count 0 in all figures",
            stacklevel=2,
        )
    return Prepared(collection, train, dev)


def open_collection(source: str, pool: Path, columns: Columns | None = None) -> Collection:
    """A data set by folder or id, indexed; ``columns`` are those that later updates have, too."""
    dataset = open_dataset(source)
    name = digest({"version": INDEX_VERSION, "documents": dataset.digest()})
    folder = pool / "data" / f"index-{name}"
    with lock(pool / "data", wait=True):
        if not (folder / "index.json").exists():
            Index.build(dataset.documents(), folder, columns=columns)
    index = Index.open(folder)
    return Collection(dataset, index, digest([name, analyzer_json(index.analyzer)]))


def open_split(
    recipe: Recipe,
    collection: Collection,
    name: str,
    pool: Path,
    *,
    run: str | None = None,
    limit: int | None = None,
    share: float = 1.0,
    negatives: bool = False,
    device: str | None = None,
) -> Split:
    """A split's judged queries (the first ``limit``, a random ``share`` of them) with candidates, and with types if the
    template takes them.

    With ``negatives``, the candidates of a query are the negatives that the data set has for it, if any.
    """
    from rankwell.inputs.templates import TEMPLATES

    dataset = collection.dataset
    dataset.split(name)
    queries, qrels = _judged(dataset, name, limit, share)
    judgments = f"{dataset.name}: the judgments of the split {name!r} name"
    _refuse_unknown_documents(judgments, qrels.items(), collection.index)
    if any(field.name == "type" for field in TEMPLATES[recipe.model.template](recipe.model.max_query)):
        types = find_types(recipe.data.types, dataset, name, queries, pool, device)
        queries = tuple(replace(query, type=types.get(query.qid)) for query in queries)
    texts = [(query.qid, query.text) for query in queries]

    def find(some: Sequence[Query]) -> Run:
        first = first_stage_of(recipe.first_stage, collection.index, device)
        return first.search(some, recipe.first_stage.depth, threads=os.cpu_count() or 1)

    mined = dataset.negatives(name) if negatives and run is None else None
    if mined:
        negatives_of = {qid: ranking.docids for qid, ranking in mined.items()}
        key = digest([collection.digest, negatives_of, _first_stage(recipe.first_stage)])
        candidates = _mined(mined, queries, find)
        docids = ((qid, ranking.docids) for qid, ranking in candidates.items())
        _refuse_unknown_documents(f"{dataset.name}: the triples of the split {name!r} name", docids, collection.index)
    elif run is None:
        key = digest({"index": collection.digest, "queries": texts, **_first_stage(recipe.first_stage)})
        path = pool / "data" / f"{re.sub(r'[^A-Za-z0-9.]+', '-', name)}-{key}.run.npz"
        with lock(path.parent, wait=True):
            if not path.exists():
                if not (found := find(queries)):
                    raise RankwellError(f"the first stage finds no document for any query of the split {name!r}")
                write_run(found, path)
        candidates = read_run(path, name="first-stage")
    else:
        key = digest({"file": file_digest(run), "depth": recipe.first_stage.depth})
        candidates = _read_candidates(Path(run), queries, collection.index, recipe.first_stage.depth)
    content = {
        "queries": [(*text, query.type) for text, query in zip(texts, queries, strict=True)],
        "qrels": {qid: dict(grades) for qid, grades in qrels.items()},
        "relevance": recipe.data.relevance,
        "run": key,
    }
    return Split(name, queries, qrels, lambda: candidates, digest(content))


def dev_name(dataset: Dataset) -> str:
    """The split to measure on where none is named: the first of :data:`DEV_NAMES` that there is."""
    for name in DEV_NAMES:
        if name in dataset.splits:
            return name
    if not dataset.splits:
        raise RankwellError(f"{dataset.name} has no judged queries, which every recipe needs, if only to measure on")
    splits = ", ".join(dataset.splits)
    raise RankwellError(f"{dataset.name} has no split {' or '.join(DEV_NAMES)}; set data.dev to one of: {splits}")


def _judged(dataset: Dataset, name: str, limit: int | None, share: float) -> tuple[tuple[Query, ...], Qrels]:
    judged, queries = dataset.qrels(name), dataset.queries(name)
    known = {query.qid for query in queries}
    usable = tuple(query for query in queries if query.qid in judged)
    if not usable:
        raise RankwellError(f"{dataset.name}: no query of the split {name!r} is judged")
    if silent := [qid for qid in judged if qid not in known]:
        # They would always count 0, and there is nothing to learn from them.
        problem = f"{len(silent):,} of {len(judged):,} judged queries of the split {name!r} have no text"
        warnings.warn(f"{dataset.name}: {problem} and are left out (the first is {silent[0]!r})", stacklevel=2)
    usable = usable[:limit]
    if share < 1:
        # The same order for all shares and seeds, so that a smaller share is part of a larger one.
        drawn = np.random.default_rng(len(usable)).permutation(len(usable))[: max(1, round(share * len(usable)))]
        usable = tuple(usable[i] for i in sorted(drawn.tolist()))
    return usable, Qrels({query.qid: judged[query.qid] for query in usable})


def _refuse_unknown_documents(what: str, documents: Iterable[tuple[str, Iterable[str]]], index: Index) -> None:
    """``documents``: the ids of each query."""
    query_of: dict[str, str] = {}
    for qid, docids in documents:
        for docid in docids:
            query_of.setdefault(docid, qid)
    docids = list(query_of)
    unknown = [docids[place] for place in np.flatnonzero(index.documents.find(docids) < 0)]
    if unknown:
        first = f"{unknown[0]!r} (query {query_of[unknown[0]]!r})"
        raise RankwellError(f"{what} {len(unknown):,} documents that are not in the collection; the first is {first}")


# First stage


def _first_stage(options: FirstStageOptions) -> dict[str, Any]:
    """The options in the candidates' hash. A model is named by its contents."""
    settings: dict[str, Any] = {"k1": options.k1, "b": options.b, "depth": options.depth}
    if options.k2 is not None:
        settings |= {"k2": options.k2}
    if options.hybrid is not None:
        settings |= {"hybrid": options.hybrid, "encoder": model_digest(find_model(options.encoder))}
    return settings


def first_stage_of(options: FirstStageOptions, index: Index, device: str | None = None) -> FirstStage:
    """The first stage that a recipe describes."""
    encoder = None if options.hybrid is None else options.encoder
    bm25, computing = BM25(options.k1, options.b, options.k2), Computing(device)
    return FirstStage(index, bm25, encoder, options.hybrid or 0.0, computing=computing)


def _mined(mined: Run, queries: Sequence[Query], find: Callable[[Sequence[Query]], Run]) -> Run:
    """The negatives that come with the data; for queries without any, the first stage's candidates."""
    others = [query for query in queries if query.qid not in mined]
    searched = find(others) if others else Run()
    candidates = {query.qid: mined.get(query.qid) or searched.get(query.qid) for query in queries}
    return Run({qid: ranking for qid, ranking in candidates.items() if ranking is not None}, name="first-stage")


def _read_candidates(path: Path, queries: Sequence[Query], index: Index, depth: int) -> Run:
    run = read_run(path, name="first-stage").head(depth)
    candidates = Run({query.qid: run[query.qid] for query in queries if query.qid in run}, name="first-stage")
    if not candidates:
        problem = f"has no query of the split (it has {next(iter(run))!r}, the split {queries[0].qid!r})"
        raise InputError(path, None, problem)
    _refuse_unknown_documents(f"{path} names", ((qid, ranking.docids) for qid, ranking in candidates.items()), index)
    return candidates


# Types


def find_types(
    source: str, dataset: Dataset, split: str, queries: Sequence[Query], pool: Path, device: str | None = None
) -> dict[str, str]:
    """The queries' types: by default the data set's labels, else rules; or what ``source`` names."""
    if source == "none":
        return {}
    if source == "auto" and _has_types(dataset, split):
        return _some(dataset.types(split), queries, dataset.name)
    if source in ("auto", "rules"):
        return rule_types(queries)
    path = Path(source.replace("{split}", split))
    if path.is_dir():
        return classified(path, queries, pool, device)
    return _some(read_types(path), queries, str(path))


def _has_types(dataset: Dataset, split: str) -> bool:
    """Whether there is a label file for the split. A broken one counts, so that reading it raises."""
    if not isinstance(dataset, FolderDataset):
        return False
    matches = (FILE_NAMES["types"][0].fullmatch(path.name) for path in dataset.folder.iterdir())
    return any(match["part"] in (None, split) for match in matches if match)


def _some(types: dict[str, str], queries: Sequence[Query], where: str) -> dict[str, str]:
    labels = {query.qid: types[query.qid] for query in queries if query.qid in types}
    if not labels:
        raise RankwellError(f"{where}: the types are of other queries (none of them is {queries[0].qid!r})")
    return labels


def classified(model: Path, queries: Sequence[Query], pool: Path, device: str | None = None) -> dict[str, str]:
    """The types a classifier gives, computed once."""
    texts = [(query.qid, query.text) for query in queries]
    path = pool / "data" / f"types-{digest({'model': model_digest(model), 'queries': texts})}.tsv"
    with lock(pool / "data", wait=True):
        if not path.exists():
            labels = TYPE_SOURCES["model"](model, [query.text for query in queries], device)
            write_types({query.qid: label for query, label in zip(queries, labels, strict=True)}, path)
    return read_types(path)


# Hashes


def folder_digest(folder: Path) -> str:
    """A hash of the files of a data folder; models have ``models.checkpoints.names.model_digest``."""
    if not folder.is_dir():
        raise InputError(folder, None, "no such folder")
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix not in (".md", ".lock"))
    return digest({path.name: file_digest(path) for path in files})
