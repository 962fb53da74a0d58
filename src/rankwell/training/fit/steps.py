"""The steps of a fit: systems of growing cost, each made by a tuner or by a recipe.

Settings are tuned by cross-validation: each judged query is ranked under the settings chosen without its fold. What is
trained sees the queries to fit, and is measured on the queries to choose. With few queries it is trained on folds: each
query is ranked by the model that did not see it, and what is measured so is trained once more, on all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rankwell.core.errors import Notice
from rankwell.core.files import atomic_folder, link_tree
from rankwell.core.manifest import write_json
from rankwell.corpus.records import Query, Run
from rankwell.evaluation.breakdowns import cut_candidates
from rankwell.evaluation.compare import compare
from rankwell.evaluation.cross_validation import Tuned
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import DEFAULT, find_model
from rankwell.models.devices import Computing, chosen_device
from rankwell.rank.defaults import UNFITTED
from rankwell.rank.dense import DEEP, search_both
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.fusion import Shares, before_rest, fuse
from rankwell.rank.ranker import open_ranker
from rankwell.rank.rankers import WORDS
from rankwell.rank.system import System
from rankwell.rank.tuning import share_grid, tune_fusion
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.bm25_tuning import built_with, choose_analyzer, tune_bm25
from rankwell.training.fit import plans
from rankwell.training.fit.plans import DEPTHS, encoder_of
from rankwell.training.fit.results import Plan, Result, Step
from rankwell.training.fit.split import LEAST_TO_FIT, Fold, Part, only
from rankwell.training.fit.task import LISTWISE, POINTWISE, FitTask, K, schedule
from rankwell.training.options import FIRST_STAGE_ENCODER
from rankwell.training.stage import FinishedStage

PULL = 2 / 3
"""How strongly a bi-encoder's share that is tuned on few queries is pulled to the default."""
ALL_EPOCHS: Mapping[str, Any] = {"best": "last", "tune_queries": 5}
"""With few queries, hardly any of them are set aside to select a checkpoint."""
GRID_K1, GRID_B = (0.3, 0.6, 0.9, 1.2, 1.6, 2.0, 3.0, 4.0), (0.1, 0.3, 0.5, 0.7, 0.9)
"""Values of k1 and b to choose from."""


def all_steps(task: FitTask) -> list[Step]:
    """The steps above BM25, the cheapest first; word vectors and joining once more for a bi-encoder that is trained."""
    shipped = FitTask.shipped
    tried = {name: describe(find_model(name)) for name in task.tries}
    encoders = [name for name, model in tried.items() if model.has_vectors and name != shipped]
    rankers = [name for name, model in tried.items() if model.scores_pairs and name != DEFAULT]
    on_list = [
        Step("words", "word vectors", _words, plans.comparing_words),
        Step("joined", "joined with your engine", _join, plans.joining, replaces=("best", "candidates")),
    ]
    trains: Any = {"beats": ("best", "tuned")}
    small = []
    if encoders and chosen_device(task.device).type != "cpu":  # where the larger one takes the whole time
        title, replaces = "a small bi-encoder, taught by it", ("best", "candidates", "small")
        small = [Step("taught", title, _taught, plans.teaching, replaces=replaces, **trains)]
    return [
        Step("analyser", "titles weighed", _analyse, plans.analysing, quick=True),
        _tried_encoder("hybrid", "a bi-encoder", shipped, plans.searching_first, quick=True, given=True),
        *(_tried_encoder(f"hybrid {name}", name, name, plans.searching) for name in encoders),
        Step(
            "tuned",
            "tuned settings",
            _tune,
            plans.tuning,
            replaces=("best", "search", "candidates", "tuned"),
            quick=True,
            cautious=not len(task.parts.fit),
        ),
        Step("adapter", "an adapter on its vectors", _adapt, plans.training_adapter, **trains),
        *on_list,
        Step(
            "encoder",
            "a fitted bi-encoder",
            _train_encoder,
            plans.training_encoder,
            replaces=("best", "search", "candidates", "trained"),
            **trains,
        ),
        *on_list,
        *small,
        _reader("texts", "words of the best documents", shipped, plans.reading_words, words=True),
        _reader("shipped", "the shipped re-ranker", DEFAULT, plans.reading),
        *(_reader(f"rerank {name}", f"re-ranked by {name}", name, plans.reading) for name in rankers),
        Step(
            "rerank",
            "a trained re-ranker",
            _rerank,
            plans.training_ranker,
            stands_on="candidates",
            replaces=("best",),
            **trains,
        ),
    ]


def _tried_encoder(name: str, title: str, model: str, plan: Any, **declared: Any) -> Step:
    """A step that searches with a bi-encoder as it is."""
    start = model if can_be_trained(model) else ""
    return Step(name, f"BM25 and {title}", partial(_hybrid, model), partial(plan, model), model=start, **declared)


def _reader(name: str, title: str, model: str, plan: Any, *, words: bool = False) -> Step:
    """A step that re-ranks the best list with a model as it is."""
    make = partial(_as_is, model, words)
    return Step(name, title, make, partial(plan, model), stands_on="candidates", replaces=("best",))


def can_be_trained(model: str) -> bool:
    """Whether training can start from a bi-encoder: not one that writes, nor one with layers on top of its vectors."""
    checkpoint = describe(find_model(model))
    return not checkpoint.generates and all(kind != "Dense" for kind, _ in checkpoint.modules)


# What is there without fitting


def _engine(task: FitTask, below: Result, plan: Plan) -> Result:
    """What the user has."""
    found = only(task.engine or Run(), task.parts.judged.queries)
    return Result(System(FirstStage(task.index, computing=Computing(task.device))), found, engine=True)


def _searched(task: FitTask, first: FirstStage) -> Result:
    """A first stage that nothing was fitted for, with its run of all judged queries."""
    system = System(first)
    return Result(system, system.search(task.parts.judged.queries, K, threads=task.threads))


def _bm25(task: FitTask, below: Result, plan: Plan) -> Result:
    """The lowest result."""
    return _searched(task, FirstStage(task.index, computing=Computing(task.device)))


ENGINE = Step("engine", "your engine", _engine, given=True)
BASE = Step("bm25", "BM25", _bm25, given=True)


def _hybrid(encoder: str, task: FitTask, below: Result, plan: Plan) -> Result:
    """BM25 and a bi-encoder as it is."""
    lower = below.system.first_stage
    first = FirstStage(lower.index, lower.bm25, encoder, UNFITTED.share, computing=Computing(task.device))
    for store in lower.index.documents.stores:
        first.dense.words(store)  # in the same pass as the vectors, for a step above
    return _searched(task, first)


# Settings


def _analyse(task: FitTask, below: Result, plan: Plan) -> Result:
    """Build the index with the analyser that cross-validation chooses, where recipes look for it."""
    part, lower = task.parts.judged, below.system.first_stage
    how = {**task.tuning(part), "k": K, "threads": task.threads}
    tuned, run = choose_analyzer(lower.index, task.analyzers, part.queries, part.qrels, lower.bm25, **how)
    index = lower.index
    if tuned.best != index.analyzer:
        index = built_with(index, tuned.best, task.work / "analysed" / "data" / index.folder.name)
    return Result(System(replace(lower, index=index)), run)


def _tune(task: FitTask, below: Result, plan: Plan) -> Result:
    """Tune k1 and b and, if there is a bi-encoder, its share: with them or with those below, whichever ranks better.

    What is best for BM25 alone is not always best beside a bi-encoder.
    """
    part, lower = task.parts.judged, below.system.first_stage
    if lower.share and not len(task.parts.fit):
        return _tune_few(task, lower)
    how = {**task.tuning(part), "threads": task.threads}
    tuned = tune_bm25(lower.index, part.queries, part.qrels, k1=GRID_K1, b=GRID_B, **how)
    by_setting: dict[BM25, list[Query]] = {}
    for query in part.queries:
        by_setting.setdefault(tuned.setting_for(query.qid), []).append(query)
    words = [lower.index.search(some, own, k=DEEP, threads=task.threads) for own, some in by_setting.items()]
    found = {tuned.best: Run({qid: ranking for run in words for qid, ranking in run.items()})}
    if not lower.share:
        return Result(System(replace(lower, bm25=tuned.best)), found[tuned.best].head(K))
    found[lower.bm25] = lower.index.search(part.queries, lower.bm25, k=DEEP, threads=task.threads)
    similarity = lower.dense.search(part.queries, lower.index, DEEP)
    runs = {bm25: {"first": run, "similarity": similarity} for bm25, run in found.items()}
    shares = {bm25: _tune_shares(task, own, part) for bm25, own in runs.items()}
    best = max(shares, key=lambda bm25: shares[bm25].cross_validated)
    system = System(replace(lower, bm25=best, share=shares[best].best.similarity))
    return Result(system, fuse(runs[best], shares[best].setting_for, depth=K))


def _tune_few(task: FitTask, lower: FirstStage) -> Result:
    """With few queries, the bi-encoder's share alone: the mean of the folds' choices, pulled towards the usual one."""
    part = task.parts.judged
    runs = search_both(lower.index, lower.dense, part.queries, lower.bm25, threads=task.threads)
    tuned = _tune_shares(task, runs, part)

    def pulled(choices: Sequence[Shares]) -> Shares:
        mean = fmean(shares.similarity for shares in choices)
        return Shares.hybrid(round(PULL * UNFITTED.share + (1 - PULL) * mean, 1))

    run = fuse(runs, lambda qid: pulled([tuned.setting_for(qid)]), depth=K)
    return Result(System(replace(lower, share=pulled(tuned.fold_settings).similarity)), run)


def _tune_shares(task: FitTask, runs: Mapping[str, Run], part: Part, *, alone: bool = True) -> Tuned[Shares]:
    """The shares that rank a part best. ``first`` alone would be the list below; others ``alone`` may be a step.

    Where titles or headings are the queries, words of the documents always count: they say little about questions.
    """
    least = 0.0 if task.queries_from is None else 1 - UNFITTED.share
    grid = [shares for shares in share_grid(list(runs)) if least - 1e-9 <= shares.first < 1 and (alone or shares.first)]
    return tune_fusion(runs, part.qrels, grid, **task.tuning(part))


def _words(task: FitTask, below: Result, plan: Plan) -> Result:
    """The best documents re-ranked by their words' vectors, with the weight that is tuned."""
    first, part = replace(below.system.first_stage, encoder=encoder_of(below)), task.parts.judged.head(below.count)
    top = only(below.run, part.queries).head(K)
    compared = _by_fold(task, below, part, lambda own, some: own.dense.compare_words(only(top, some), some, own.index))
    runs = {"model": compared, "first": top}
    tuned = _tune_shares(task, runs, part)
    system = System(replace(first, words=tuned.best.model))
    return Result(system, fuse(runs, tuned.setting_for), below.stages, below.count, folds=below.folds)


def _by_fold(task: FitTask, below: Result, part: Part, rank: Callable[[FirstStage, Sequence[Query]], Run]) -> Run:
    """The run of a part by the first stage below; where it was trained on folds, each query by the one of its fold."""
    first, runs = replace(below.system.first_stage, encoder=encoder_of(below)), list[Run]()
    if not below.folds:
        return rank(first, part.queries)
    for (*_, choose), encoder in zip(task.parts.folds(len(below.folds)), below.folds, strict=True):
        queries = [query for query in part.queries if query.qid in choose.qrels]
        runs += [rank(replace(first, encoder=encoder), queries)] if queries else []
    return _joined(runs)


def _joined(runs: Sequence[Run]) -> Run:
    """The runs of different queries as one."""
    return Run({qid: ranking for run in runs for qid, ranking in run.items()}) if len(runs) > 1 else runs[0]


def _join(task: FitTask, below: Result, plan: Plan) -> Result:
    """The lists of the user's engine and of the best first stage in one, by a share that is tuned."""
    part = task.parts.judged.head(below.count)
    runs = {"similarity": only(below.run, part.queries), "first": only(task.engine or Run(), part.queries)}
    tuned = _tune_shares(task, runs, part, alone=False)
    system = System(below.system.first_stage, engine=tuned.best.first)
    run = fuse(runs, tuned.setting_for, depth=K)
    return Result(system, run, below.stages, below.count, engine=True, folds=below.folds)


# First stages that are trained


def _adapt(task: FitTask, below: Result, plan: Plan) -> Result:
    """Train an adapter, from half of the queries, too: that tells what more of them are worth."""
    whole = _learn(task, below, plan, "adapter")
    count = min(len(fit) for _, fit, _ in task.parts.folds(plan.folds)) if plan.sample is None else plan.sample
    if count < 2 * LEAST_TO_FIT:
        return whole
    # Those of a fold that it is not trained on are enough to measure it.
    folds, plan = task.parts.folds(min(plan.folds, 2))[:1], replace(plan, sample=count // 2)
    half = _learn(task, below, plan, "adapter", "adapter-half", folds=folds)
    runs, [(*_, part)] = {"half": half.run, "whole": whole.run}, folds
    [gain] = compare(part.qrels, runs, task.measure, baseline="half").contrasts
    return replace(whole, doubling=(gain.difference, *gain.interval))


def _train_encoder(task: FitTask, below: Result, plan: Plan) -> Result:
    """Train a bi-encoder."""
    return _learn(task, below, plan, "encoder")


def _taught(task: FitTask, below: Result, plan: Plan) -> Result:
    """The shipped bi-encoder, taught by the fitted one below; it compares words if that one does."""
    result = _learn(task, below, plan, "encoder", "taught", taught=True)
    return _words(task, result, plan) if below.system.first_stage.words else result


def _learn(
    task: FitTask,
    below: Result,
    plan: Plan,
    kind: str,
    name: str = "",
    taught: bool = False,
    folds: Sequence[Fold] = (),
) -> Result:
    """A first stage that a recipe's stage learns. Its share is cross-validated on queries it was not trained on."""
    lower, folds = below.system.first_stage, folds or task.parts.folds(plan.folds)
    encoder = plan.start if kind == "encoder" else encoder_of(below)
    options: dict[str, Any] = {"encoder": str(find_model(encoder)), "measure": task.measure, "best": task.measure}
    options |= {"k1": f"{lower.bm25.k1:g}", "b": f"{lower.bm25.b:g}"}  # tuned before

    def learn(fold: Fold, teacher: str, measured: int | None = None) -> FirstStage:
        end, fit, _ = fold
        own = schedule(fit.head(plan.sample), encoder, task.device) if kind == "encoder" else {}
        own |= ALL_EPOCHS if plan.folds > 1 else {}
        own |= {"teacher": teacher} if taught else {}
        start, stages = FirstStage(lower.index, lower.bm25), {kind: {**options, **own}}
        how: Any = {"fold": end, "measured": measured}
        trained = task.train(name or kind, start, stages, plan.start, plan.sample, **how)
        learned = trained.work.done[-1].result.first_stage
        assert learned is not None  # such stages leave one
        # The stage tuned its share, too, but on fewer queries.
        return replace(start, encoder=FirstStage.open(learned).encoder, share=1.0, computing=Computing(task.device))

    teachers = (taught and below.folds) or [encoder_of(below)] * len(folds)
    with warnings.catch_warnings():
        if plan.folds > 1:  # each of which would say how precise its model is
            warnings.simplefilter("ignore", Notice)
        firsts = [learn(fold, teacher) for fold, teacher in zip(folds, teachers, strict=True)]
        found = [
            search_both(lower.index, first.dense, choose.queries, lower.bm25, threads=task.threads)
            for first, (*_, choose) in zip(firsts, folds, strict=True)
        ]
    runs = {side: _joined([run[side] for run in found]) for side in ("first", "similarity")}
    judged, chosen = task.parts.judged, {qid for *_, choose in folds for qid in choose.qrels}
    part = Part.of([query for query in judged.queries if query.qid in chosen], judged.qrels)
    tuned = _tune_shares(task, runs, part)
    first = learn(task.parts.whole, encoder_of(below), 1) if len(folds) > 1 else firsts[0]
    system, encoders = System(replace(first, share=tuned.best.similarity)), [str(first.encoder) for first in firsts]
    run = fuse(runs, tuned.setting_for, depth=K)
    return Result(system, run, {kind: options}, len(part), folds=encoders if len(folds) > 1 else ())


# Re-rankers


def _as_is(model: str, words: bool, task: FitTask, below: Result, plan: Plan) -> Result:
    """A re-ranker as it is on the best documents, with the shares of its scores, the bi-encoder's and the list's."""
    part, first, place = task.parts.judged.head(plan.count), below.system.first_stage, find_model(model)
    if words:
        place = as_word_ranker(place, task.work / WORDS)
    top = only(below.run, part.queries).head(plan.depth)
    ranker = open_ranker(place, device=task.device)
    runs = {"model": ranker.rerank(top, part.queries, first.index, depth=plan.depth)}
    if below.is_engine and first.share:  # its vectors are there, and the engine's scores do not have them yet
        runs["similarity"] = _by_fold(
            task, below, part, lambda own, some: own.dense.rerank(only(top, some), some, own.index, depth=plan.depth)
        )
    return _reranked(task, below, place, {**runs, "first": top}, plan.count)


def _rerank(task: FitTask, below: Result, plan: Plan) -> Result:
    """Train a re-ranker on the candidates of the first stage, tune its share, and find the depth that pays."""
    folds, lower = task.parts.folds(plan.folds), below.system.first_stage
    # A fitted bi-encoder knows these texts; an unfitted one would be no better a start than the checkpoint.
    start = FIRST_STAGE_ENCODER if "encoder" in below.stages else "previous"
    stages = {"pointwise": {**POINTWISE, "start": start}, "listwise": LISTWISE}

    def train(fold: Fold, encoder: Any, measured: int | None = None) -> FinishedStage:
        """With the first stage that saw the same queries."""
        (end, fit, choose), first = fold, replace(lower, encoder=encoder)
        # The candidates to choose on are those of the list below, each searched with the share chosen without it.
        candidates = {"dev_run": only(below.run, choose.queries)}
        if below.engine:
            engine = replace(below, system=replace(below.system, finder=first))
            candidates["train_run"] = engine.answer(task, fit.head(plan.sample).queries)
        how: Any = {"fold": end, "measured": measured, "candidates": candidates}
        return task.train("rerank", first, stages, plan.start, plan.sample, **how).work.done[-1]

    encoders: Sequence[Any] = below.folds or [lower.encoder] * len(folds)
    models = [train(fold, encoder) for fold, encoder in zip(folds, encoders, strict=True)]
    whole = train(task.parts.whole, lower.encoder, 1) if len(folds) > 1 else models[0]
    read = [model.run for model in models if model.run is not None]  # a listwise stage is measured
    part = task.parts.judged.head(sum(len(choose) for *_, choose in folds))
    runs = {"model": _joined(read), "first": only(below.run, part.queries).head(K)}
    result = _reranked(task, below, whole.folder / "model", runs, len(part))
    return replace(result, stages={**below.stages, **stages})


def _reranked(task: FitTask, below: Result, ranker: Path, runs: Mapping[str, Run], count: int) -> Result:
    """A re-ranker on the list below, with the shares of the runs and the depth that pay on the first queries."""
    part, top, lower = task.parts.judged.head(count), runs["first"], below.system
    rest = only(below.run, part.queries)
    tuned = _tune_shares(task, runs, part)
    depth = depth_that_pays(part, top, fuse(runs, tuned.setting_for), task.measure, DEPTHS, task.device)
    head = {name: cut_candidates(run, top, depth) for name, run in runs.items()}
    shares = tuned.best if tuned.best.model < 1 else None
    system = System(lower.first_stage, ranker=ranker, depth=depth, shares=shares, engine=lower.engine)
    return Result(system, before_rest(fuse(head, tuned.setting_for), rest), below.stages, count, below.engine)


def depth_that_pays(part: Part, first: Run, fused: Run, measure: str, depths: Sequence[int], device: str | None) -> int:
    """The best depth on a GPU; on a CPU, where depth is dear, the smallest that is not significantly worse."""
    longest = max(map(len, fused.values()), default=1)
    if chosen_device(device).type == "cuda":
        return longest
    possible = sorted({min(depth, longest) for depth in depths})
    runs = {f"{depth:,}": cut_candidates(fused, first, depth) for depth in possible}
    compared = compare(part.qrels, runs, measure, baseline=f"{possible[-1]:,}")
    return next(depth for depth in possible if depth == possible[-1] or not compared.significant(f"{depth:,}", measure))


def as_word_ranker(encoder: Path, folder: Path) -> Path:
    """A bi-encoder as a re-ranker, which makes word vectors of the texts it is given."""
    if not folder.exists():
        with atomic_folder(folder) as temporary:
            link_tree(encoder, temporary)
            write_json(temporary / f"{WORDS}.json", {})
    return folder
