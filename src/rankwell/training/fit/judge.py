"""Whether a result is better than another: the paired test by which a step is kept."""

from __future__ import annotations

from dataclasses import replace

from rankwell.corpus.records import Run
from rankwell.evaluation.compare import Contrast, compare
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.significance import Interval, mean_interval
from rankwell.training.fit.results import Bests, Result
from rankwell.training.fit.split import Part
from rankwell.training.fit.task import FitTask

LEVEL = 0.05


def judge(task: FitTask, result: Result, bests: Bests | None) -> Result:
    """Decide whether a result is kept, and which of the bests it becomes. Without others or judgments, it is kept.

    What has the settings of the best or of the unfitted system is that system, and has its figures.
    """
    step = result.step
    if bests is None or not result.count:
        return replace(result, becomes=step.replaces)
    if result.settings in (bests.best.settings, bests.base.settings):
        # Its run may differ: each query was ranked by the settings chosen without it.
        same = bests.best if result.settings == bests.best.settings else bests.base
        becomes = tuple(name for name in step.replaces if getattr(bests, name) is None)
        return replace(result, run=same.run, count=same.count, kept=False, becomes=becomes)
    others = {name: getattr(bests, name) for name in {*step.beats, *step.replaces}}
    verdicts = {name: compare_with(task, result, other) for name, other in others.items() if other is not None}
    passed = {name for name in others if name not in verdicts or verdicts[name][1]}
    failed = next((name for name in step.beats if name not in passed), "best")
    beaten = passed >= set(step.beats) - {"best"}
    becomes = tuple(name for name in step.replaces if name in passed and (beaten or others[name] is None))
    contrast, _ = verdicts[failed]
    kept = contrast.difference > 0 and passed >= set(step.beats)
    mean = evaluate(task.parts.judged.head(result.count).qrels, result.run, [task.measure]).mean[task.measure]
    return replace(result, contrast=contrast, mean=mean, kept=kept, becomes=becomes)


def compare_with(task: FitTask, result: Result, other: Result) -> tuple[Contrast, bool]:
    """Compare a result with another by a paired test on the queries that it is measured on, and say if it replaces it.

    To replace the other, it must be shown to be better. What is fitted with caution must be better; what is there
    without fitting must not be shown to be worse. Both have to be shown to be better than the user's engine.
    """
    part = task.parts.judged.head(result.count)
    runs = {"before": other.run, "with it": result.run}
    [contrast] = compare(part.qrels, runs, task.measure, baseline="before").contrasts
    better, shown = contrast.difference > 0, contrast.p < LEVEL
    if not other.engine and result.step.given:
        return contrast, better or not shown
    if not other.engine and result.step.cautious and result.system.first_stage.share:
        return contrast, better
    return contrast, better and shown


def interval_of(part: Part, run: Run, measure: str) -> tuple[float, Interval]:
    """The mean of a measure and its 95 % interval."""
    values = evaluate(part.qrels, run, [measure]).per_query[measure]
    return float(values.mean()), mean_interval(values)


def p_value(value: float) -> str:
    """A p-value for readers: ``= .012`` or ``< .001``."""
    return "< .001" if value < 0.001 else f"= {value:.3f}".replace("0.", ".")
