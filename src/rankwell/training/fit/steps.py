"""The steps of a fit: systems of growing cost, each made by a tuner or by a recipe.

Settings are tuned by cross-validation: each judged query is ranked under the settings chosen without its fold. What is
trained sees the queries to fit, and is measured on the queries to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rankwell.core.files import atomic_folder, link_tree
from rankwell.core.manifest import write_json
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.records import Query, Run
from rankwell.evaluation.breakdowns import cut_candidates
from rankwell.evaluation.compare import Contrast, compare
from rankwell.evaluation.tuning import Tuned
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import DEFAULT, find_model
from rankwell.models.devices import Computing, chosen_device
from rankwell.rank.dense import DEEP, search_both
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.fusion import Shares, before_rest, fuse
from rankwell.rank.passage_vectors import PassageWords
from rankwell.rank.ranker import open_ranker
from rankwell.rank.rankers import WORDS
from rankwell.rank.system import System
from rankwell.rank.tuning import share_grid, tune_fusion
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.tune import built_with, choose_analyzer, other_analyzers, tune_bm25
from rankwell.training.fit.engine_runs import only
from rankwell.training.fit.schedule import LISTWISE, POINTWISE, schedule
from rankwell.training.fit.speed import ADAPTER_SECONDS, training_factor
from rankwell.training.fit.split import LEAST_TO_FIT, Part
from rankwell.training.fit.task import FitTask, K
from rankwell.training.options import FIRST_STAGE_ENCODER
from rankwell.training.stage import stage_kinds

DEFAULT_SHARE, PULL = 0.7, 2 / 3
"""The bi-encoder's share that is not tuned, and how strongly one that is tuned on few queries is pulled to it."""
GRID_K1, GRID_B = (0.3, 0.6, 0.9, 1.2, 1.6, 2.0, 3.0, 4.0), (0.1, 0.3, 0.5, 0.7, 0.9)
"""Values of k1 and b to choose from."""
TITLE_WEIGHTS, ANALYSER, INDEXED = (3.0,), "analyser", 10_000
"""Weights of titles to try, the step that does, and about how many documents are indexed in a second."""
DEPTHS = (10, 20, 50, 100)
"""Depths of re-ranking to choose from."""
READING_TIME = 0.7
"""The part of the time left that a re-ranker as it is may take."""
LEAST_READ, ENOUGH_READ = 200, 500
"""A re-ranker as it is is compared on at least so many queries, where there are as many, and on more than so many only
where its depth does not suffer."""
TEXTS = "texts"
"""The step that makes word vectors of the best documents alone."""
HALF = "adapter-half"
TAUGHT = "taught"
"""The step that teaches the shipped bi-encoder with a larger one that was fitted."""


@dataclass(frozen=True)
class Step:
    """How a step is made from the best system below it, and the seconds it may take."""

    name: str
    title: str
    make: Callable[[FitTask, Result], Result]
    seconds: Callable[[FitTask, Result], float] = lambda task, below: 0.0
    learns: Literal["nothing", "settings", "weights"] = "nothing"
    """Settings are tuned on judged queries, weights are trained on the queries to fit."""
    kind: Literal["search", "join", "rerank", "beside"] = "search"
    """Whether it searches by itself, joins this with the user's engine, re-ranks the best list, or is a smaller system
    that is saved beside the best one."""
    given: bool = False
    """Whether it is there without fitting: others have to be better than it, and it stays unless it is worse."""
    cautious: bool = False
    """Whether what it fits beside a bi-encoder moves so little that it stays unless it is worse."""
    model: str = ""
    """The model that it tries as it is."""


ENGINE = Step("engine", "your engine", lambda task, below: below, given=True)
BASE = Step("bm25", "BM25", lambda task, below: below, given=True)


@dataclass(frozen=True, eq=False)
class Result:
    """A system that was tried, its run of judged queries it was not fitted to, and the stages that made it.

    ``engine``: it re-ranks what the user's engine returns. ``count`` says how many of the judged queries it is
    measured on: the first ones, 0 for all it can be. ``key`` names it in the work folder. ``contrast`` compares it with
    the step kept below it. ``report`` is its run of the queries to report, which only kept steps have. ``doubling`` is
    the gain from the last doubling of the queries that were trained on, and its interval.
    """

    system: System
    run: Run
    stages: Mapping[str, Any]
    count: int = 0
    engine: bool = False
    step: Step = BASE
    key: str = ""
    milliseconds: float = 0.0
    seconds: float = 0.0
    contrast: Contrast | None = None
    kept: bool = True
    report: Run | None = None
    doubling: tuple[float, float, float] | None = None

    def answer(self, task: FitTask, queries: Sequence[Query]) -> Run:
        """The best documents of each query."""
        if not self.engine:
            return self.system.search(queries, K, threads=task.threads)
        found = self.system.join(only(task.engine or Run(), queries), queries)
        return found if self.system.ranker is None else before_rest(self.system.rerank(found, queries), found)

    def describe(self) -> str:
        """What searches and what re-ranks, in one line."""
        if not self.engine or self.system.engine:
            return self.system.describe()
        if self.system.ranker is None:
            return "your engine"
        return f"your engine, its best {self.system.depth} re-ranked ({self.system.shares or 'alone'})"


def engine(task: FitTask) -> Result:
    """What the user has."""
    found = only(task.engine or Run(), task.parts.judged.queries)
    return Result(System(FirstStage(task.index, computing=Computing(task.device))), found, {}, engine=True)


def searched(task: FitTask, system: System) -> Result:
    """A system that nothing was fitted for, with its run of all judged queries."""
    return Result(system, system.search(task.parts.judged.queries, K, threads=task.threads), {})


def bm25(task: FitTask) -> Result:
    """The lowest step."""
    return searched(task, System(FirstStage(task.index, computing=Computing(task.device))))


def _analyse(analyzers: Sequence[Analyzer], task: FitTask, below: Result) -> Result:
    """Build the index with the analyser that cross-validation chooses."""
    part, lower = task.parts.judged, below.system.first_stage
    how = {**task.tuning(part), "k": K, "threads": task.threads}
    tuned, run = choose_analyzer(task.index, analyzers, part.queries, part.qrels, lower.bm25, **how)
    return Result(System(replace(lower, index=built_with(task.index, tuned.best, task.work / ANALYSER))), run, {})


def _analyse_seconds(task: FitTask, below: Result) -> float:
    return 5 * len(task.index) / INDEXED  # at most three to try, then the best twice


def _hybrid(encoder: str, task: FitTask, below: Result) -> Result:
    """BM25 and a bi-encoder as it is."""
    lower = below.system.first_stage
    first = FirstStage(task.index, lower.bm25, encoder, DEFAULT_SHARE, computing=Computing(task.device))
    for store in task.index.documents.stores:
        first.dense.words(store)  # in the same pass as the vectors, for a step above
    return searched(task, System(first))


def _hybrid_seconds(encoder: str, task: FitTask, below: Result) -> float:
    encoder = encoder or _encoder_of(below)
    rates = task.rates(encoder)
    return (
        task.unencoded(encoder, PassageWords) / rates.documents
        + (len(task.parts.judged) + task.reported) / rates.queries
    )


def _tune(task: FitTask, below: Result) -> Result:
    """Tune k1 and b and, if there is a bi-encoder, its share: with them or with those below, whichever ranks better.

    What is best for BM25 alone is not always best beside a bi-encoder.
    """
    part, lower = task.parts.judged, below.system.first_stage
    if lower.share and not len(task.parts.fit):
        return _tune_few(task, lower)
    how = {**task.tuning(part), "threads": task.threads}
    tuned = tune_bm25(task.index, part.queries, part.qrels, k1=GRID_K1, b=GRID_B, **how)
    by_setting: dict[BM25, list[Query]] = {}
    for query in part.queries:
        by_setting.setdefault(tuned.setting_for(query.qid), []).append(query)
    words = [task.index.search(some, own, k=DEEP, threads=task.threads) for own, some in by_setting.items()]
    found = {tuned.best: Run({qid: ranking for run in words for qid, ranking in run.items()})}
    if not lower.share:
        return Result(System(replace(lower, bm25=tuned.best)), found[tuned.best].head(K), {})
    found[lower.bm25] = task.index.search(part.queries, lower.bm25, k=DEEP, threads=task.threads)
    similarity = lower.dense.search(part.queries, task.index, DEEP)
    runs = {bm25: {"first": run, "similarity": similarity} for bm25, run in found.items()}
    shares = {bm25: _tune_shares(task, own, part) for bm25, own in runs.items()}
    best = max(shares, key=lambda bm25: shares[bm25].cross_validated)
    system = System(replace(lower, bm25=best, share=shares[best].best.similarity))
    return Result(system, fuse(runs[best], shares[best].setting_for, depth=K), {})


def _tune_few(task: FitTask, lower: FirstStage) -> Result:
    """With few queries, the bi-encoder's share alone: the mean of the folds' choices, pulled towards the usual one."""
    part = task.parts.judged
    runs = search_both(task.index, lower.dense, part.queries, lower.bm25, threads=task.threads)
    tuned = _tune_shares(task, runs, part)

    def pulled(choices: Sequence[Shares]) -> Shares:
        mean = fmean(shares.similarity for shares in choices)
        return Shares.hybrid(round(PULL * DEFAULT_SHARE + (1 - PULL) * mean, 1))

    run = fuse(runs, lambda qid: pulled([tuned.setting_for(qid)]), depth=K)
    return Result(System(replace(lower, share=pulled(tuned.fold_settings).similarity)), run, {})


def _tune_shares(task: FitTask, runs: Mapping[str, Run], part: Part, *, alone: bool = True) -> Tuned[Shares]:
    """The shares that rank a part best. ``first`` alone would be a step below, and others ``alone`` may be one."""
    grid = [shares for shares in share_grid(list(runs)) if shares.first < 1 and (alone or shares.first)]
    return tune_fusion(runs, part.qrels, grid, **task.tuning(part))


def _learned(kind: str, task: FitTask, below: Result) -> Result:
    """A first stage that a recipe's stage learns. Its share is cross-validated on the queries to choose.

    The cheap one is learned from half of the queries, too: that tells what more of them are worth.
    """
    result, count = _learn(task, below, kind, kind), len(task.fit_part(kind))
    if kind != "adapter" or count < 2 * LEAST_TO_FIT:
        return result
    task.samples[HALF] = count // 2
    half = _learn(task, below, kind, HALF)
    runs = {"half": half.run, "whole": result.run}
    [gain] = compare(task.parts.choose.qrels, runs, task.measure, baseline="half").contrasts
    return replace(result, doubling=(gain.difference, *gain.interval))


def _learn(task: FitTask, below: Result, kind: str, name: str) -> Result:
    lower = below.system.first_stage
    encoder = {"encoder": task.start, TAUGHT: FitTask.shipped}.get(name, _encoder_of(below))
    options: dict[str, Any] = {"encoder": str(find_model(encoder)), "measure": task.measure, "best": task.measure}
    if kind == "encoder":
        options |= schedule(task.fit_part(name), encoder, task.device)
    if name == TAUGHT:
        options["teacher"] = _encoder_of(below)
    options |= {"k1": f"{lower.bm25.k1:g}", "b": f"{lower.bm25.b:g}"}  # tuned before
    trained = task.train(name, FirstStage(task.index, lower.bm25), {kind: options})
    learned = trained.work.done[-1].result.first_stage
    assert learned is not None  # such stages leave one
    # The stage tuned its share, too, but on fewer queries.
    computing = Computing(task.device)
    first = FirstStage(task.index, lower.bm25, FirstStage.open(learned).encoder, 1.0, computing=computing)
    runs = search_both(task.index, first.dense, task.parts.choose.queries, lower.bm25, threads=task.threads)
    tuned = _tune_shares(task, runs, task.parts.choose)
    system = System(replace(first, share=tuned.best.similarity))
    return Result(system, fuse(runs, tuned.setting_for, depth=K), {kind: options})


def _words(task: FitTask, below: Result) -> Result:
    """The best documents re-ranked by their words' vectors, with the weight that is tuned."""
    first, part = replace(below.system.first_stage, encoder=_encoder_of(below)), task.parts.judged.head(below.count)
    top = only(below.run, part.queries).head(K)
    runs = {"model": first.dense.compare_words(top, part.queries, task.index), "first": top}
    tuned = _tune_shares(task, runs, part)
    system = System(replace(first, words=tuned.best.model))
    return Result(system, fuse(runs, tuned.setting_for), below.stages, below.count)


def _encoder_of(below: Result) -> str:
    """The bi-encoder of the best first stage, or the shipped one."""
    return str(below.system.first_stage.encoder or FitTask.shipped)


def _adapter_seconds(task: FitTask, below: Result) -> float:
    parts, rates = task.parts, task.rates(_encoder_of(below))
    vectors = task.unencoded(_encoder_of(below)) / rates.documents
    fit = task.fit_part("adapter")
    epochs = float(stage_kinds()["adapter"].options().epochs)
    training = 1.5 * epochs * fit.pairs * ADAPTER_SECONDS  # once on half of the queries
    return vectors + (len(fit) + len(parts.choose) + len(parts.report)) / rates.queries + training


def _taught(task: FitTask, below: Result) -> Result:
    """The shipped bi-encoder, taught by the fitted one below; it compares words if that one does."""
    result = replace(_learn(task, below, "encoder", TAUGHT), count=len(task.parts.choose))
    return _words(task, result) if below.system.first_stage.words else result


def is_larger(below: Result) -> bool:
    """Whether the bi-encoder was fitted, and is larger than the shipped one."""
    start = below.stages.get("encoder", {}).get("encoder", FitTask.shipped)
    own, shipped = (describe(find_model(model)).dimensions() for model in (start, FitTask.shipped))
    return own.hidden_size * own.num_hidden_layers > shipped.hidden_size * shipped.num_hidden_layers


def _encoder_seconds(name: str, task: FitTask, below: Result) -> float:
    parts, start = task.parts, FitTask.shipped if name == TAUGHT else task.start
    rates, fit, queries = task.rates(start), task.fit_part(name), len(parts.choose) + len(parts.report)
    epochs = float(schedule(fit, start, task.device)["epochs"])
    training = epochs * training_factor(task.device) * fit.pairs / task.pairs_a_second(start)
    return training + len(task.index) / rates.documents + queries / rates.queries


def _join(task: FitTask, below: Result) -> Result:
    """The lists of the user's engine and of the best first stage in one, by a share that is tuned."""
    part = task.parts.judged.head(below.count)
    runs = {"similarity": only(below.run, part.queries), "first": only(task.engine or Run(), part.queries)}
    tuned = _tune_shares(task, runs, part, alone=False)
    system = System(below.system.first_stage, engine=tuned.best.first)
    return Result(system, fuse(runs, tuned.setting_for, depth=K), below.stages, below.count, engine=True)


def _rerank(task: FitTask, below: Result) -> Result:
    """Train a re-ranker on the candidates of the first stage, tune its share, and find the depth that pays."""
    first_stage, part = below.system.first_stage, task.parts.choose
    lower = only(below.run, part.queries)
    candidates = {"dev_run": lower}
    if below.engine:
        candidates["train_run"] = below.answer(task, task.fit_part("rerank").queries)
    # A fitted bi-encoder knows these texts; an unfitted one would be no better a start than the checkpoint.
    start = FIRST_STAGE_ENCODER if "encoder" in below.stages else "previous"
    stages = {"pointwise": {**POINTWISE, "start": start}, "listwise": LISTWISE}
    # The candidates to choose on are those of the step below, each searched with the share chosen without it.
    trained = task.train("rerank", first_stage, stages, candidates)
    model = trained.work.done[-1]
    assert model.run is not None  # a listwise stage is measured
    runs = {"model": model.run, "first": lower.head(K)}
    result = _reranked(task, below, model.folder / "model", runs, len(part))
    return replace(result, stages={**below.stages, **stages})


def _reranked(task: FitTask, below: Result, ranker: Path, runs: Mapping[str, Run], count: int) -> Result:
    """A re-ranker on the list below, with the shares of the runs and the depth that pay on the first queries."""
    part, top = task.parts.judged.head(count), runs["first"]
    lower = only(below.run, part.queries)
    tuned = _tune_shares(task, runs, part)
    depth = depth_that_pays(part, top, fuse(runs, tuned.setting_for), task.measure, DEPTHS, task.device)
    head = {name: cut_candidates(run, top, depth) for name, run in runs.items()}
    lower_system = below.system
    system = System(
        lower_system.first_stage,
        ranker=ranker,
        depth=depth,
        shares=tuned.best if tuned.best.model < 1 else None,
        engine=lower_system.engine,
    )
    return Result(system, before_rest(fuse(head, tuned.setting_for), lower), below.stages, count, below.engine)


def _as_is(model: str, task: FitTask, below: Result) -> Result:
    """A re-ranker as it is on the best documents, with the shares of its scores, the bi-encoder's and the list's."""
    depth, count = _reading(task, below, model)
    part, first = task.parts.judged.head(count), below.system.first_stage
    top = only(below.run, part.queries).head(depth)
    ranker = open_ranker(model, device=task.device)
    runs = {"model": ranker.rerank(top, part.queries, task.index, depth=depth)}
    if below.step is ENGINE and first.share:  # its vectors are there, and the engine's scores do not have them yet
        runs["similarity"] = first.dense.rerank(top, part.queries, task.index, depth=depth)
    return _reranked(task, below, find_model(model), {**runs, "first": top}, count)


def _reading(task: FitTask, below: Result, model: str) -> tuple[int, int]:
    """The depth and the number of queries that fit into a part of the time left: fewer queries before less depth."""
    pairs, enough = READING_TIME * task.left * task.scored_a_second(model), min(below.count, ENOUGH_READ)
    depth = max((depth for depth in DEPTHS if depth * (enough + task.reported) <= pairs), default=DEPTHS[0])
    return depth, min(below.count, max(LEAST_READ, int(pairs / depth) - task.reported))


def _as_is_seconds(model: str, task: FitTask, below: Result) -> float:
    depth, count = _reading(task, below, model)
    return depth * (count + task.reported) / task.scored_a_second(model)


def _rerank_seconds(task: FitTask, below: Result) -> float:
    parts, fit = task.parts, task.fit_part("rerank")
    lists = sum(float(stage["epochs"]) * fit.pairs * (1 + int(stage["negatives"])) for stage in (POINTWISE, LISTWISE))
    searching = len(fit) / task.rates(_encoder_of(below)).queries if below.system.first_stage.share else 0.0
    # Each of the two stages is measured on the queries to choose.
    read = (2 * len(parts.choose) + len(parts.report)) * K
    guess = (training_factor(task.device) * lists + read) / task.pairs_a_second(task.start)
    if not task.left / 4 < guess < 4 * task.left:  # otherwise, a guess will do
        return searching + guess
    return searching + (lists + read / training_factor(task.device)) / task.trained_a_second(task.start)


def all_steps(task: FitTask) -> list[Step]:
    """The steps above BM25, the cheapest first.

    A list that a fitted bi-encoder changes is joined and re-ranked again.
    """
    encoders, rankers = [FitTask.shipped], [DEFAULT]
    for name in task.tries:
        model = describe(find_model(name))
        encoders += [name] * (model.has_vectors and name not in encoders)
        rankers += [name] * (model.scores_pairs and name not in rankers)
    searching = [
        Step(
            "hybrid" if name == FitTask.shipped else f"hybrid {name}",
            f"BM25 and {'a bi-encoder' if name == FitTask.shipped else name}",
            partial(_hybrid, name),
            partial(_hybrid_seconds, name),
            given=name == FitTask.shipped,
            model=name,
        )
        for name in encoders
    ]
    readers = {
        str(as_word_ranker(find_model(FitTask.shipped), task.work / WORDS)): (TEXTS, "words of the best documents")
    }
    readers |= {name: (f"rerank {name}", f"re-ranked by {name}") for name in rankers}
    readers |= {DEFAULT: ("shipped", "the shipped re-ranker")}
    reading = [
        Step(name, title, partial(_as_is, model), partial(_as_is_seconds, model), learns="settings", kind="rerank")
        for model, (name, title) in readers.items()
    ]
    on_list = [
        Step("words", "word vectors", _words, partial(_hybrid_seconds, ""), learns="settings"),
        Step("joined", "joined with your engine", _join, learns="settings", kind="join"),
    ]
    if task.engine is None:
        del on_list[1]
    if others := other_analyzers(task.index, TITLE_WEIGHTS):
        analysed = Step(
            ANALYSER, "titles, names in code", partial(_analyse, others), _analyse_seconds, learns="settings"
        )
        searching.insert(0, analysed)
    small = list[Step]()
    if len(encoders) > 1 and chosen_device(task.device).type != "cpu":  # where the larger one takes the whole time
        seconds = partial(_encoder_seconds, TAUGHT)
        small = [Step(TAUGHT, "a small bi-encoder, taught by it", _taught, seconds, learns="weights", kind="beside")]
    return [
        *searching,
        Step("tuned", "tuned settings", _tune, learns="settings", cautious=not len(task.parts.fit)),
        Step("adapter", "an adapter on its vectors", partial(_learned, "adapter"), _adapter_seconds, learns="weights"),
        *on_list,
        Step(
            "encoder",
            "a fitted bi-encoder",
            partial(_learned, "encoder"),
            partial(_encoder_seconds, "encoder"),
            learns="weights",
        ),
        *on_list,
        *small,
        *reading,
        Step("rerank", "a trained re-ranker", _rerank, _rerank_seconds, learns="weights", kind="rerank"),
    ]


def as_word_ranker(encoder: Path, folder: Path) -> Path:
    """A bi-encoder as a re-ranker, which makes word vectors of the texts it is given."""
    if not folder.exists():
        with atomic_folder(folder) as temporary:
            link_tree(encoder, temporary)
            write_json(temporary / f"{WORDS}.json", {})
    return folder


def depth_that_pays(part: Part, first: Run, fused: Run, measure: str, depths: Sequence[int], device: str | None) -> int:
    """The best depth on a GPU; on a CPU, where depth is dear, the smallest that is not significantly worse."""
    longest = max(map(len, fused.values()), default=1)
    if chosen_device(device).type == "cuda":
        return longest
    possible = sorted({min(depth, longest) for depth in depths})
    runs = {f"{depth:,}": cut_candidates(fused, first, depth) for depth in possible}
    compared = compare(part.qrels, runs, measure, baseline=f"{possible[-1]:,}")
    return next(depth for depth in possible if depth == possible[-1] or not compared.significant(f"{depth:,}", measure))


def can_be_trained(model: str) -> bool:
    """Whether training can start from a bi-encoder: not one that writes, nor one with layers on top of its vectors."""
    checkpoint = describe(find_model(model))
    return not checkpoint.generates and all(kind != "Dense" for kind, _ in checkpoint.modules)
