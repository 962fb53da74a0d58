"""``distil``: how would a teacher score these documents? Leaves a ranker of one score.

The queries are the training split's, those of further splits, and some made of passages. A list has a document known
to be relevant (a judged one, or the passage the query was made of), some of the query's candidates (the
first stage's, the teacher's nearest) and some of the collection at random. All labels are the teachers'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from rankwell.core.arrays import Rows, positions
from rankwell.core.errors import RankwellError
from rankwell.core.manifest import digest
from rankwell.core.mapped import map_array
from rankwell.corpus.records import Run
from rankwell.evaluation.notation import parse_measures
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import find_model
from rankwell.papers.mini.options import DistilOptions
from rankwell.papers.mini.synthetic import synthetic_queries
from rankwell.training.data.candidates import UNJUDGED, TrainingCandidates
from rankwell.training.data.sampling import Lists, Plan, TrainingSet, draw
from rankwell.training.data.teachers import BiEncoderTeacher, Teacher, load_teachers, store_arrays, teach
from rankwell.training.loop.loop import CollapseGuard, train
from rankwell.training.loop.losses import make_loss
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import STAGES, StageKind, StageResult, Work, write_once
from rankwell.training.stages.shared import load_one_score, measure_ranker, ranker_tokens, ranking_validation

EVERY_EPOCH = -1


@dataclass(frozen=True, eq=False)
class TeacherQueries:
    """The queries that teachers score documents for.

    ==============  ================  =================================================================================
    ``texts``       Q                 the queries
    ``epochs``      (Q,) int64        the epoch a query is used in, or :data:`EVERY_EPOCH`
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
        """Identifies the queries and their relevant documents."""
        return digest([self.qids, self.texts, self.rows.tolist(), self.documents.tolist()])


def gather_queries(work: Work, options: DistilOptions) -> TeacherQueries:
    """The training queries, those of further splits, and the synthetic ones of all epochs."""
    store, level = work.data.collection.store, work.recipe.data.relevance
    qids: list[str] = []
    texts: list[str] = []
    rows: list[int] = []
    docids: list[str] = []
    splits = [(work.data.train.name, work.data.train.queries, work.data.train.qrels)]
    dataset = work.data.collection.dataset
    splits += [(name, tuple(dataset.queries(name)), dataset.qrels(name)) for name in options.queries]
    from_train = 0
    for number, (name, queries, qrels) in enumerate(splits):
        for query in queries:
            relevant = [docid for docid, grade in qrels.get(query.qid, {}).items() if grade >= level]
            if relevant and query.text.strip():
                rows += [len(qids)] * len(relevant)
                docids += relevant
                qids.append(f"{name}:{query.qid}" if number else query.qid)
                texts.append(query.text)
        from_train = from_train or len(qids)
    known = [store.numbers(docids)]
    epochs = [EVERY_EPOCH] * len(qids)
    for epoch in range(math.ceil(options.epochs) if options.synthetic else 0):
        synthetic, owners = synthetic_queries(store.texts_at, len(store), options.synthetic, work.seed, epoch)
        rows += range(len(qids), len(qids) + len(synthetic))
        qids += [f"synthetic:{epoch}:{number}" for number in range(len(synthetic))]
        texts += synthetic
        epochs += [epoch] * len(synthetic)
        known.append(owners)
    return TeacherQueries(
        tuple(qids),
        tuple(texts),
        np.array(epochs, np.int64),
        np.array(rows, np.int64),
        np.concatenate(known),
        from_train,
    )


def find_candidates(
    work: Work, options: DistilOptions, queries: TeacherQueries, teachers: Sequence[Teacher]
) -> TrainingCandidates:
    """The candidates of all queries: first stage's and teacher's merged by rank, those known to be relevant first."""
    parts = [(queries.rows, queries.documents, np.full(len(queries.rows), -1))]
    if options.depth:
        parts.append(_ranked(work, queries.qids[: queries.given], work.data.train.run, options.depth))
    if options.dense:
        nearest = next(teacher for teacher in teachers if isinstance(teacher, BiEncoderTeacher)).nearest(options.dense)
        rows = np.repeat(np.arange(len(nearest)), nearest.shape[1])
        parts.append((rows, nearest.reshape(-1), np.tile(np.arange(nearest.shape[1]), len(nearest))))
    return merge(work, queries.qids, parts)


def _ranked(work: Work, qids: Sequence[str], run: Run, depth: int) -> tuple[Rows, Rows, Rows]:
    """Rows, document numbers and ranks of a run."""
    docids = [run[qid].docids[:depth] if qid in run else () for qid in qids]
    lengths = np.fromiter(map(len, docids), np.int64, len(docids))
    rows = np.repeat(np.arange(len(docids)), lengths)
    numbers = work.data.collection.store.numbers(list(chain.from_iterable(docids)))
    return rows, numbers, positions(lengths)


def merge(work: Work, qids: Sequence[str], parts: Sequence[tuple[Rows, Rows, Rows]]) -> TrainingCandidates:
    """Merge several lists of candidates per query, by each document's best rank; rank -1 marks a relevant document."""
    rows, documents, ranks = (np.concatenate([part[place] for part in parts]) for place in range(3))
    # One number for row, document and rank: sorting millions of these is many times faster than sorting by three keys.
    most, deep = 1 + int(documents.max(initial=0)), 2 + int(ranks.max(initial=0))
    keys = np.sort((rows * most + documents) * deep + ranks + 1)
    pairs = keys // deep
    first = np.ones(len(pairs), np.bool_)
    first[1:] = pairs[1:] != pairs[:-1]
    pairs, ranks = pairs[first], keys[first] % deep
    keys = np.sort((pairs // most * deep + ranks) * most + pairs % most)
    rows, documents, ranks = keys // most // deep, keys % most, keys // most % deep - 1
    docids = work.data.collection.store.docids
    grades = np.where(ranks < 0, 1, UNJUDGED).astype(np.int32)
    ends = np.cumsum(np.bincount(rows, minlength=len(qids)))
    return TrainingCandidates(tuple(qids), ends, documents, grades, -ranks.astype(np.float32), docids)


def stored_candidates(
    work: Work, options: DistilOptions, queries: TeacherQueries, teachers: Sequence[Teacher]
) -> TrainingCandidates:
    """The candidates, searched once by the first process: a search on a GPU may differ from run to run.

    They are stored beside the collection, so that a resumed run, other processes and other variants use the same.
    """
    settings = {name: getattr(options, name) for name in ("depth", "dense", "teachers", "teacher_length")}
    first = [work.recipe.first_stage.model_dump(mode="json"), work.data.train.digest]
    encoders = [teacher.name for teacher in teachers if isinstance(teacher, BiEncoderTeacher)]
    name = digest([queries.digest, settings, first, encoders])
    place = work.data.collection.store.folder / f"candidates-{name}"

    def search() -> None:
        candidates = find_candidates(work, options, queries, teachers)
        ranks = -candidates.scores.astype(np.int64)
        store_arrays(place, {"rows": candidates.rows, "documents": candidates.documents, "ranks": ranks})

    write_once(place, search)
    rows, documents, ranks = (np.array(map_array(place / f"{name}.npy")) for name in ("rows", "documents", "ranks"))
    return merge(work, queries.qids, [(rows, documents, ranks)])


def teacher_lists(
    candidates: TrainingCandidates,
    queries: TeacherQueries,
    teachers: Sequence[Teacher],
    options: DistilOptions,
    documents: int,
    seed: int,
    epoch: int,
) -> Lists:
    """The lists of an epoch with the teachers' labels: a pure function of seed and epoch.

    ``documents`` is the size of the collection.
    """
    negatives = candidates.lengths - candidates.per_query(candidates.relevant)
    in_epoch = (queries.epochs == EVERY_EPOCH) | (queries.epochs == epoch)
    usable = np.flatnonzero(in_epoch & (negatives > 0))
    if not len(usable):
        return Lists(usable, np.zeros((0, options.list_size), np.int64), np.zeros((0, options.list_size), np.float32))
    plan = Plan(1, options.list_size - 1 - options.random, "rank", "query")
    drawn = draw(candidates.take(usable), plan, seed, epoch)
    rows = usable[drawn.queries]
    random = np.random.default_rng([seed, epoch, 0xD1])
    others = random.integers(documents, size=(len(rows), options.random))
    numbers = np.concatenate([drawn.documents, others], axis=1)
    labels = teach(teachers, rows, numbers)
    # A passage need not answer the query made of it: only judgments earn the bonus.
    labels[:, 0] += options.bonus * (queries.epochs[rows] == EVERY_EPOCH)
    return Lists(rows, numbers, labels / np.float32(options.temperature))


def run(work: Work, stage: RecipeStage[DistilOptions], folder: Path) -> StageResult:
    """Train a ranker of one score to score as its teachers do."""
    options = stage.options
    ranker = load_one_score(work, options.head)
    folder.mkdir(parents=True, exist_ok=True)
    queries = gather_queries(work, options)
    store = work.data.collection.store
    teachers = load_teachers(store, options.teachers, queries.texts, options.teacher_length, work.device)
    candidates = stored_candidates(work, options, queries, teachers)
    documents = ranker_tokens(work, ranker)
    lists = partial(teacher_lists, candidates, queries, teachers, options, len(store), work.seed)
    stems = ranker.config.template.markers
    encoded = ranker.tokenizer.encode(list(queries.texts), stems=stems)
    loss = make_loss(options.loss, **options.loss_options)
    data = TrainingSet(encoded, None, documents)
    task = ranker.task(data, lists, loss)
    count = task.draw(0)
    if not count:
        raise RankwellError(f"{stage.path}: no query has a candidate beside its relevant documents")
    guard = CollapseGuard(loss.chance(torch.from_numpy(task.drawn(np.arange(min(count, 1024))).labels)))
    validate = ranking_validation(work, options, ranker)
    how = {**work.computing, "rule": ranker.config.attention, "validate": validate, "guard": guard}
    outcome = train(ranker.model, task, options, folder, save=ranker.save, description="distillation", **how)
    made = int((queries.epochs != EVERY_EPOCH).sum())
    figures = {"queries": len(queries.texts) - made, "synthetic queries": made}
    return StageResult(folder / "model", figures={**outcome.figures(), **figures})


def check(work: Work, stage: RecipeStage[DistilOptions]) -> None:
    """Check loss, measure, teachers, lists and splits."""
    options = stage.options
    make_loss(options.loss, **options.loss_options)
    if options.best != "last":
        parse_measures([options.best])
    if options.list_size - options.random < 2:
        problem = f"{options.list_size} documents, {options.random} of them at random"
        raise RankwellError(f"{stage.path}: a list has {problem}, which leaves no room for a candidate")
    teachers = [describe(find_model(name)) for name in options.teachers]
    if options.dense and all(teacher.scores_pairs for teacher in teachers):
        raise RankwellError(f"{stage.path}.dense: none of the teachers is a bi-encoder; set it to 0")
    if not options.dense and not options.depth:
        raise RankwellError(f"{stage.path}: without `dense` and `depth` there are no candidates")
    if not options.dense and (options.synthetic or options.queries):
        raise RankwellError(f"{stage.path}: only the given queries have candidates; set `dense`")
    for name in options.queries:
        work.data.collection.dataset.split(name)


STAGES.register("distil")(StageKind(DistilOptions, run, check, measure_ranker))
