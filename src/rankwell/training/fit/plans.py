"""What each step would do in the time that is left: estimates from the speed of this machine. They change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import find_model
from rankwell.models.devices import chosen_device
from rankwell.rank.passage_vectors import PassageWords
from rankwell.training.fit.results import Bests, Plan, Result, Skipped
from rankwell.training.fit.speed import ADAPTER_SECONDS, NotTimedError, training_factor
from rankwell.training.fit.split import Part
from rankwell.training.fit.task import LISTWISE, POINTWISE, FitTask, K, schedule
from rankwell.training.stage_options.first_stages import AdapterOptions

Planned = Plan | Skipped | None
Seconds = Callable[[str, Sequence[Part]], float]
"""How long trainings from a start take, on these parts."""

TRAINED_MORE = 1.2
"""A step that trains is given so many times its estimate: if it is stopped, all of its work is lost."""
FOLDS_TIME = 0.5
"""The part of the time left that training on folds may take, where the plain split is possible, too."""
OPENING = 5.0
"""The seconds in which each further training opens models, searches and saves: measured on an x86 core."""
LEAST_SAMPLE = 1000
"""Where the time is short, a step trains on at least so many queries; with 700, a bi-encoder is no better than
an adapter that saw them all."""
INDEXED = 10_000
"""About how many documents are indexed in a second."""
SLOW = {"cuda": 1000, "cpu": 20}
"""The texts that become vectors in a second on a slow machine."""
DEPTHS = (10, 20, 50, 100)
"""Depths of re-ranking to choose from."""
READING_TIME = 0.7
"""The part of the time left that a re-ranker as it is may take."""
LEAST_READ, ENOUGH_READ = 200, 500
"""A re-ranker as it is is compared on at least so many queries, where there are as many, and on more than so many only
where its depth does not suffer."""


def encoder_of(result: Result) -> str:
    """The bi-encoder of a result's first stage, or the shipped one."""
    return str(result.system.first_stage.encoder or FitTask.shipped)


def is_larger(result: Result) -> bool:
    """Whether the bi-encoder was fitted, and is larger than the shipped one."""
    start = result.stages.get("encoder", {}).get("encoder", FitTask.shipped)
    own, shipped = (describe(find_model(model)).dimensions() for model in (start, FitTask.shipped))
    return own.hidden_size * own.num_hidden_layers > shipped.hidden_size * shipped.num_hidden_layers


def searching_first(encoder: str, task: FitTask, bests: Bests, left: float) -> Planned:
    """Search with the first bi-encoder, whose speed is not measured where even a slow machine has time for it."""
    texts = len(task.index) + len(task.parts.judged) + task.reported
    seconds = texts / SLOW["cuda" if chosen_device(task.device).type == "cuda" else "cpu"]
    if seconds <= left / 2:
        return Plan(seconds)
    try:
        return searching(encoder, task, bests, left)
    except NotTimedError:
        return Plan(left)


def searching(encoder: str, task: FitTask, bests: Bests, left: float) -> Planned:
    """Search with a bi-encoder as it is, whose vectors of all documents are computed first."""
    return Plan(_encoding(task, bests, encoder))


def _encoding(task: FitTask, bests: Bests, encoder: str, others: Sequence[str] = ()) -> float:
    """The seconds in which the vectors that are missing, also of ``others`` like it, and the queries' are computed."""
    documents, queries = task.speed.vectors(encoder)
    missing = sum(task.unencoded(bests.search.system.index, own, PassageWords) for own in (encoder, *others))
    return missing / documents + (len(task.parts.judged) + task.reported) / queries


# Settings, which are tuned on judged queries


def tuning(task: FitTask, bests: Bests, left: float) -> Planned:
    """Tune settings: an instant."""
    return lacks_judged(task) or Plan()


def analysing(task: FitTask, bests: Bests, left: float) -> Planned:
    """Build indexes with other analysers: at most three to try, then the best."""
    return None if not task.analyzers else lacks_judged(task) or Plan(4 * len(task.index) / INDEXED)


def joining(task: FitTask, bests: Bests, left: float) -> Planned:
    """Join lists with those of the user's engine."""
    return None if task.engine is None else tuning(task, bests, left)


def comparing_words(task: FitTask, bests: Bests, left: float) -> Planned:
    """Compute the word vectors of all documents."""
    if bests.search.system.first_stage.words:
        return None
    return lacks_judged(task) or Plan(_encoding(task, bests, encoder_of(bests.search), bests.search.folds))


def reading_words(model: str, task: FitTask, bests: Bests, left: float) -> Planned:
    """Compute word vectors of the best documents alone, unless those of all documents could be computed."""
    return None if bests.means else reading(model, task, bests, left, words=True)


def reading(model: str, task: FitTask, bests: Bests, left: float, *, words: bool = False) -> Planned:
    """Re-rank with a model as it is, as deep and as many queries as fit: fewer queries before less depth."""
    if lacking := lacks_judged(task):
        return lacking
    speed, most = task.speed.scores(model, words=words), bests.candidates.count
    pairs = READING_TIME * left * speed
    depths = (depth for depth in DEPTHS if depth * (min(most, ENOUGH_READ) + task.reported) <= pairs)
    depth = max(depths, default=DEPTHS[0])
    count = min(most, max(LEAST_READ, int(pairs / depth) - task.reported))
    return Plan(depth * (count + task.reported) / speed, depth=depth, count=count)


def lacks_judged(task: FitTask) -> Skipped | None:
    """Why settings cannot be tuned; None if they can."""
    return None if len(task.parts.judged) > 1 else Skipped("there are no judged queries to tune with")


def lacks_fit(task: FitTask) -> Skipped | None:
    """Why nothing can be trained; None if it can."""
    if len(task.parts.fit):
        return None
    return Skipped(f"training needs {task.parts.needed} judged queries, and there are {len(task.parts.choose)}")


# Weights, which are trained on the queries to fit


def training_adapter(task: FitTask, bests: Bests, left: float) -> Planned:
    """Train an adapter of the best bi-encoder, once more on half of the queries."""
    if lacking := lacks_fit(task):
        return lacking
    parts, encoder = task.parts, encoder_of(bests.search)
    documents, queries = task.speed.vectors(encoder)
    vectors = task.unencoded(bests.search.system.index, encoder) / documents

    def seconds(start: str, fits: Sequence[Part]) -> float:
        count, pairs = len(parts.judged) + len(parts.report), sum(fit.pairs for fit in fits)
        return vectors + count / queries + 1.5 * AdapterOptions().epochs * pairs * ADAPTER_SECONDS

    return _training(task, left, seconds, bests.starts[:1])


def training_encoder(task: FitTask, bests: Bests, left: float) -> Planned:
    """Train the best bi-encoder that fits into the time."""
    return _training(task, left, partial(_encoder_seconds, task), bests.starts)


def teaching(task: FitTask, bests: Bests, left: float) -> Planned:
    """Teach the shipped bi-encoder what a larger one was fitted to."""
    if not is_larger(bests.search):
        return None
    return _training(task, left, partial(_encoder_seconds, task), [FitTask.shipped], bests.search)


def training_ranker(task: FitTask, bests: Bests, left: float) -> Planned:
    """Train a re-ranker in two stages, each measured on the queries to choose."""
    found = bests.candidates

    def seconds(start: str, fits: Sequence[Part]) -> float:
        parts, stages, pairs = task.parts, (POINTWISE, LISTWISE), sum(fit.pairs for fit in fits)
        lists = sum(float(stage["epochs"]) * pairs * (1 + int(stage["negatives"])) for stage in stages)
        asked = sum(map(len, fits)) if found.system.first_stage.share else 0
        searching = asked / task.speed.vectors(encoder_of(found))[1] if asked else 0.0
        chosen = len(parts.choose) if len(fits) == 1 else len(parts.choose) + len(parts.fit)
        read = (2 * chosen + len(parts.report)) * K
        factor = training_factor(task.device)
        guess = (factor * lists + read) / task.speed.pairs(start)
        if not left / 4 < guess < 4 * left:  # otherwise, a guess will do
            return searching + guess
        try:
            return searching + (lists + read / factor) / task.trained_a_second(start)
        except NotTimedError:
            return searching + guess

    return _training(task, left, seconds, bests.starts, found)


def _encoder_seconds(task: FitTask, start: str, fits: Sequence[Part]) -> float:
    (documents, queries), count = task.speed.vectors(start), len(task.parts.choose) + len(task.parts.report)
    read = sum(float(schedule(fit, start, task.device)["epochs"]) * fit.pairs for fit in fits)
    training = training_factor(task.device) * read / task.speed.pairs(start)
    return training + len(fits) * (len(task.index) / documents + count / queries)


def _training(
    task: FitTask, left: float, seconds: Seconds, starts: Sequence[str], below: Result | None = None
) -> Plan | Skipped:
    """Train from the first start for which there is time, on as many folds as there is time for, or from the last on
    fewer and fewer of the queries. What stands on a trained result ``below`` has its folds.
    """
    if lacking := lacks_fit(task):
        return lacking
    parts, needed, start, folds = task.parts, 0.0, "", 1
    turns = parts.turns if below is None or not (below.folds or below.stages) else (len(below.folds) or 1,)
    for start in starts:
        for folds in turns:
            fits = parts.trainings(folds)
            needed = TRAINED_MORE * (seconds(start, fits) + OPENING * (len(fits) - 1))
            if needed <= left * (1 if folds == turns[-1] else FOLDS_TIME):
                return Plan(needed, start, folds=folds)
    sample, size = None, len(parts.fit) * 4 // 5
    while needed > left and size >= LEAST_SAMPLE:
        sample, size = size, size * 4 // 5
        needed = TRAINED_MORE * seconds(start, [parts.fit.head(sample)])
    return Plan(needed, start, sample, folds)
