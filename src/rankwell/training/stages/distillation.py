"""Stages with a teacher: learning its scores over many and varied queries, and noise reduction by them.

What is asked are the training split's queries, those of further splits, and queries made of passages. A list has a
document known to be relevant (a judged one, or the passage the query was made of), some of the query's candidates (the
first stage's, the teacher's nearest) and some of the collection at random. All labels are the teachers'.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankwell.core.arrays import map_array, save_array
from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder
from rankwell.core.manifest import digest
from rankwell.core.types import Rows
from rankwell.corpus.records import Query, Run
from rankwell.evaluation.notation import parse_measures
from rankwell.rank.dense import PassageVectors
from rankwell.training.data.candidates import UNJUDGED, Candidates, Names
from rankwell.training.data.denoising import write_candidates
from rankwell.training.data.lists import Lists, TrainingSet
from rankwell.training.data.sampling import Plan, draw
from rankwell.training.data.synthetic import synthetic_queries
from rankwell.training.data.teachers import BiEncoderTeacher, CrossEncoderTeacher, Named, Teacher, teach
from rankwell.training.guard import CollapseGuard
from rankwell.training.loop import train
from rankwell.training.losses import make_loss
from rankwell.training.options import DistilOptions, FilterOptions
from rankwell.training.stage import Produced, Work
from rankwell.training.stage_store import process_number
from rankwell.training.stages.ranking import load_one_score, ranker_tokens, ranking_validation, training_candidates
from rankwell.training.stages.text import loop_options, outcome_figures

EVERY_EPOCH = -1


@dataclass(frozen=True, eq=False)
class Asked:
    """What teachers are asked.

    ==============  ================  =================================================================================
    ``texts``       Q                 the queries
    ``epochs``      (Q,) int64        the epoch a query is asked in, or :data:`EVERY_EPOCH`
    ``rows``        (K,) int64        of documents known to be relevant: the query
    ``documents``   (K,) int64        and the document's number
    ``given``       Q' ≤ Q            how many come from the training split; they are the first
    ==============  ================  =================================================================================
    """

    qids: tuple[str, ...]
    texts: tuple[str, ...]
    epochs: Rows
    rows: Rows
    documents: Rows
    given: int

    @property
    def digest(self) -> str:
        """A name for all of it."""
        return digest([self.qids, self.texts, self.rows.tolist(), self.documents.tolist()])


def gather(work: Work, options: DistilOptions) -> Asked:
    """The given queries, those of further splits, and those made of passages for all epochs."""
    store, level = work.data.collection.store, work.recipe.data.relevance
    qids: list[str] = []
    texts: list[str] = []
    rows: list[int] = []
    docids: list[str] = []
    splits = [(work.data.train.name, work.data.train.queries, work.data.train.qrels)]
    dataset = work.data.collection.dataset
    splits += [(name, tuple(dataset.queries(name)), dataset.qrels(name)) for name in options.queries]
    given = 0
    for number, (name, queries, qrels) in enumerate(splits):
        for query in queries:
            relevant = [docid for docid, grade in qrels.get(query.qid, {}).items() if grade >= level]
            if relevant and query.text.strip():
                rows += [len(qids)] * len(relevant)
                docids += relevant
                qids.append(f"{name}:{query.qid}" if number else query.qid)
                texts.append(query.text)
        given = given or len(qids)
    known = [store.numbers(docids).astype(np.int64)]
    epochs = [EVERY_EPOCH] * len(qids)
    for epoch in range(math.ceil(options.epochs) if options.synthetic else 0):
        made, owners = synthetic_queries(store.texts_at, len(store), options.synthetic, work.seed, epoch)
        rows += range(len(qids), len(qids) + len(made))
        qids += [f"synthetic:{epoch}:{number}" for number in range(len(made))]
        texts += made
        epochs += [epoch] * len(made)
        known.append(owners)
    return Asked(
        tuple(qids), tuple(texts), np.array(epochs, np.int64), np.array(rows, np.int64), np.concatenate(known), given
    )


def load_teachers(work: Work, names: Sequence[str], texts: Sequence[str], max_length: int | None) -> list[Teacher]:
    """The teachers, ready to score ``texts`` by number; the texts' vectors are kept beside the collection's."""
    store = work.data.collection.store
    teachers: list[Teacher] = []
    for one in map(Named.of, names):
        if one.pairs:
            teachers.append(CrossEncoderTeacher(one.load_ranker(work.device), texts, store))
            continue
        encoder = one.load_encoder(work.device, max_length)
        place = store.folder / f"asked-{digest([encoder.name, [encoder.query_prompt + text for text in texts]])}"
        if not place.is_dir():
            vectors = encoder.encode_queries(texts)
            _keep(place, {"vectors": vectors.reshape(-1)})
        else:
            vectors = map_array(place / "vectors.npy", np.float32).reshape(-1, encoder.width)
        documents = PassageVectors.open(store, encoder)
        teachers.append(BiEncoderTeacher(np.array(vectors), documents, encoder.device, encoder.query_prompt))
    return teachers


def _keep(place: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as a folder, unless another process has just done so: what it wrote is the same."""
    if process_number() > 0:
        return
    try:
        with atomic_folder(place) as temporary:
            for name, array in arrays.items():
                save_array(temporary / f"{name}.npy", array)
    except (OSError, RankwellError):
        if not place.is_dir():
            raise


def find_candidates(work: Work, options: DistilOptions, asked: Asked, teachers: Sequence[Teacher]) -> Candidates:
    """The candidates of all queries: first stage's and teacher's merged by rank, those known to be relevant first."""
    parts = [(asked.rows, asked.documents, np.full(len(asked.rows), -1))]
    if options.depth:
        run, first = work.data.train.run, work.recipe.first_stage
        rows, documents, ranks = _ranked(work, asked.qids[: asked.given], run, options.depth)
        parts.append((rows, documents, ranks))
        if options.search == "all" and len(asked.qids) > asked.given:
            rest = [Query(q, t) for q, t in zip(asked.qids[asked.given :], asked.texts[asked.given :], strict=True)]
            threads = os.cpu_count() or 1
            found = work.data.index.search(rest, k=options.depth, k1=first.k1, b=first.b, k2=first.k2, threads=threads)
            rows, documents, ranks = _ranked(work, asked.qids[asked.given :], found, options.depth)
            parts.append((rows + asked.given, documents, ranks))
    if options.dense:
        nearest = next(one for one in teachers if isinstance(one, BiEncoderTeacher)).nearest(options.dense)
        rows = np.repeat(np.arange(len(nearest)), nearest.shape[1])
        parts.append((rows, nearest.reshape(-1), np.tile(np.arange(nearest.shape[1]), len(nearest))))
    return merge(work, asked.qids, parts)


def _ranked(work: Work, qids: Sequence[str], run: Run, depth: int) -> tuple[Rows, Rows, Rows]:
    """Rows, document numbers and ranks of a run."""
    found = [run[qid].docids[:depth] if qid in run else () for qid in qids]
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    rows = np.repeat(np.arange(len(found)), lengths)
    numbers = work.data.collection.store.numbers(list(chain.from_iterable(found))).astype(np.int64)
    return rows, numbers, np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def merge(work: Work, qids: Sequence[str], parts: Sequence[tuple[Rows, Rows, Rows]]) -> Candidates:
    """One list of candidates a query from several, by the best rank each document has; rank -1 is a relevant one."""
    rows, documents, ranks = (np.concatenate([part[place] for part in parts]) for place in range(3))
    # One number for row, document and rank: sorting millions of these is many times faster than sorting by three keys.
    most, deep = 1 + int(documents.max(initial=0)), 2 + int(ranks.max(initial=0))
    found = np.sort((rows * most + documents) * deep + ranks + 1)
    pairs = found // deep
    first = np.ones(len(pairs), np.bool_)
    first[1:] = pairs[1:] != pairs[:-1]
    pairs, ranks = pairs[first], found[first] % deep
    found = np.sort((pairs // most * deep + ranks) * most + pairs % most)
    rows, documents, ranks = found // most // deep, found % most, found // most % deep - 1
    distinct = np.unique(documents)
    names = Names(distinct, tuple(work.data.collection.store.docids.strings(distinct.tolist())))
    grades = np.where(ranks < 0, 1, UNJUDGED).astype(np.int32)
    ends = np.cumsum(np.bincount(rows, minlength=len(qids)))
    return Candidates(tuple(qids), ends, documents, grades, -ranks.astype(np.float32), names)


def _kept_candidates(work: Work, options: DistilOptions, asked: Asked, teachers: Sequence[Teacher]) -> Candidates:
    """The candidates, found once: a search on a GPU need not find the same twice, and a resumed run must.

    They lie beside the collection, where variants of a stage that ask the same find them.
    """
    settings = {name: getattr(options, name) for name in ("depth", "dense", "search", "teachers", "teacher_length")}
    first = [work.recipe.first_stage.model_dump(mode="json"), work.data.train.digest]
    encoders = [one.name for one in teachers if isinstance(one, BiEncoderTeacher)]
    name = digest([asked.digest, settings, first, encoders])
    place = work.data.collection.store.folder / f"candidates-{name}"
    if not place.is_dir():
        found = find_candidates(work, options, asked, teachers)
        _keep(place, {"rows": found.rows, "documents": found.documents, "ranks": -found.scores.astype(np.int64)})
        return found
    rows, documents, ranks = (np.array(map_array(place / f"{name}.npy")) for name in ("rows", "documents", "ranks"))
    return merge(work, asked.qids, [(rows, documents, ranks)])


@dataclass(frozen=True, eq=False)
class Lessons:
    """The lists of an epoch with the teachers' labels: a pure function of seed and epoch."""

    candidates: Candidates
    asked: Asked
    teachers: Sequence[Teacher]
    options: DistilOptions
    documents: int
    seed: int

    def __call__(self, epoch: int) -> Lists:
        """The lists of ``epoch``."""
        options, candidates = self.options, self.candidates
        negatives = candidates.lengths - candidates.per_query(candidates.relevant)
        now = (self.asked.epochs == EVERY_EPOCH) | (self.asked.epochs == epoch)
        rows = np.flatnonzero(now & (negatives > 0))
        if not len(rows):
            return Lists(rows, np.zeros((0, options.list_size), np.int64), np.zeros((0, options.list_size), np.float32))
        plan = Plan(1, options.list_size - 1 - options.random, options.weighting, "query")
        drawn = draw(candidates.take(rows), plan, self.seed, epoch)
        queries = rows[drawn.queries]
        random = np.random.default_rng([self.seed, epoch, 0xD1])
        others = random.integers(self.documents, size=(len(queries), options.random))
        documents = np.concatenate([drawn.documents, others], axis=1)
        labels = teach(self.teachers, queries, documents, unit=options.unit)
        # A passage a query was made of need not answer it: only judgments earn the bonus.
        labels[:, 0] += options.bonus * (self.asked.epochs[queries] == EVERY_EPOCH)
        return Lists(queries, documents, labels / np.float32(options.temperature))


def distil(work: Work, options: DistilOptions, folder: Path) -> Produced:
    """A ranker of one score that scores as its teachers do."""
    ranker = load_one_score(work, options.head)
    folder.mkdir(parents=True, exist_ok=True)
    asked = gather(work, options)
    teachers = load_teachers(work, options.teachers, asked.texts, options.teacher_length)
    candidates = _kept_candidates(work, options, asked, teachers)
    documents = ranker_tokens(work, ranker)
    lessons = Lessons(candidates, asked, teachers, options, len(work.data.collection.store), work.seed)
    stems = ranker.config.template.markers
    queries = ranker.tokenizer.encode(list(asked.texts), stems=stems)
    loss = make_loss(options.loss, **options.loss_options)
    data = TrainingSet(queries, None, documents, candidates)
    task = ranker.task(data, lessons, loss, options.max_pairs_in_memory)
    count = task.draw(0)
    if not count:
        raise RankwellError("stages.distil: no query has a candidate beside its relevant documents")
    outcome = train(
        ranker.model,
        task,
        loop_options(work, options),
        folder,
        save=ranker.save,
        rule=ranker.config.attention,
        validate=ranking_validation(work, options, ranker),
        guard=CollapseGuard(loss.chance(torch.from_numpy(task.drawn(np.arange(min(count, 1024))).labels))),
        description="distillation",
    )
    made = int((asked.epochs != EVERY_EPOCH).sum())
    figures = {"queries": len(asked.texts) - made, "synthetic queries": made}
    return Produced(folder / "model", figures={**outcome_figures(outcome), **figures})


def check_distil(work: Work, options: DistilOptions) -> None:
    """Loss, teachers, lists and splits before any work."""
    make_loss(options.loss, **options.loss_options)
    if options.best != "last":
        parse_measures([options.best])
    if options.list_size - options.random < 2:
        problem = f"{options.list_size} documents, {options.random} of them at random"
        raise RankwellError(f"stages.distil: a list has {problem}: beside its relevant one no candidate is left")
    named = [Named.of(name) for name in options.teachers]
    if options.dense and all(one.pairs for one in named):
        raise RankwellError("stages.distil.dense: none of the teachers is a bi-encoder; set it to 0")
    if not options.dense and not options.depth:
        raise RankwellError("stages.distil: without `dense` and `depth` there are no candidates")
    if not options.dense and options.search == "given" and (options.synthetic or options.queries):
        raise RankwellError("stages.distil: only the given queries have candidates; set `dense`, or `search` to all")
    for name in options.queries:
        work.data.collection.dataset.split(name)


def filter_stage(work: Work, options: FilterOptions, folder: Path) -> Produced:
    """Drop unjudged candidates that teachers score above the relevant documents; a query keeps one negative."""
    folder.mkdir(parents=True, exist_ok=True)
    candidates = training_candidates(work, work.data.collection.store)
    by_id = {query.qid: query.text for query in work.data.train.queries}
    texts = [by_id[qid] for qid in candidates.qids]
    teachers = load_teachers(work, options.teachers, texts, options.teacher_length)
    scores = standard_scores(teachers, candidates)
    kept = keep_below_relevant(candidates, scores, options.margin)
    write_candidates(kept, folder / "candidates.run.gz")
    unjudged = int(candidates.unjudged.sum())
    dropped = len(candidates) - len(kept)
    return Produced(candidates=folder / "candidates.run.gz", figures={"unjudged": unjudged, "dropped": dropped})


def standard_scores(teachers: Sequence[Teacher], candidates: Candidates) -> NDArray[np.float32]:
    """The teachers' mean score of each candidate (C,), standardised within its query."""
    whole = np.zeros(len(candidates), np.float64)
    lengths = candidates.lengths
    for teacher in teachers:
        scores = teacher.scores(candidates.rows, candidates.documents[:, None])[:, 0].astype(np.float64)
        begins = candidates.ends - lengths
        means = np.add.reduceat(scores, begins) / lengths
        scores -= np.repeat(means, lengths)
        deviations = np.sqrt(np.add.reduceat(scores**2, begins) / lengths)
        whole += scores / np.repeat(np.where(deviations > 1e-6, deviations, np.inf), lengths)
    return (whole / len(teachers)).astype(np.float32)


def keep_below_relevant(candidates: Candidates, scores: NDArray[np.float32], margin: float) -> Candidates:
    """The candidates without the unjudged ones scored above their query's best relevant one less ``margin``."""
    begins = candidates.ends - candidates.lengths
    best = np.maximum.reduceat(np.where(candidates.relevant, scores, -np.inf), begins)
    keep = ~candidates.unjudged | (scores <= np.repeat(best - margin, candidates.lengths))
    # A query that would lose its last negative keeps the lowest.
    empty = candidates.per_query(keep & ~candidates.relevant) == 0
    lowest = np.minimum.reduceat(np.where(candidates.relevant, np.inf, scores), begins)
    keep |= (
        np.repeat(empty, candidates.lengths) & ~candidates.relevant & (scores <= np.repeat(lowest, candidates.lengths))
    )
    return candidates.where(keep)


def check_filter(work: Work, options: FilterOptions) -> None:
    """The teachers must be there."""
    for name in options.teachers:
        Named.of(name)
