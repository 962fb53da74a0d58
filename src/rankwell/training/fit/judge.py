"""Whether a result is better than another: the paired test by which a step is kept."""

from __future__ import annotations

from dataclasses import replace

from rankwell.corpus.records import Run
from rankwell.evaluation.compare import compare
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.significance import Interval, mean_interval
from rankwell.training.fit.results import Bests, Result
from rankwell.training.fit.split import Part
from rankwell.training.fit.task import FitTask

LEVEL = 0.05


def judge(task: FitTask, result: Result, bests: Bests | None) -> Result:
    """Decide whether a result is kept, and which of the bests it becomes. Without others or judgments, it is kept."""
    step = result.step
    if bests is None:
        return replace(result, becomes=step.replaces)
    others = {name: getattr(bests, name) for name in {*step.beats, *step.replaces}}
    verdicts = {name: compared(task, result, other) for name, other in others.items() if other is not None}
    passed = {name for name in others if name not in verdicts or verdicts[name].kept}
    failed = next((name for name in step.beats if name not in passed), "best")
    trained_well = passed >= set(step.beats) - {"best"}
    becomes = tuple(name for name in step.replaces if name in passed and (trained_well or others[name] is None))
    return replace(verdicts[failed], kept=passed >= set(step.beats), becomes=becomes)


def compared(task: FitTask, result: Result, other: Result) -> Result:
    """Decide whether a result is kept beside another: it must be better by a paired test.

    One that is there without fitting, or fitted with caution, is kept unless it is worse, but it has to be better than
    the user's engine.
    """
    if not result.count:
        return replace(result, kept=True)
    part = task.parts.judged.head(result.count)
    runs = {"before": other.run, "with it": result.run}
    comparison = compare(part.qrels, runs, task.measure, baseline="before")
    [contrast] = comparison.contrasts
    cautious = result.step.cautious and result.system.first_stage.share
    given = (result.step.given or cautious) and not other.engine
    shown, better = contrast.p < LEVEL, contrast.difference > 0
    mean = comparison.evaluations["with it"].mean[task.measure]
    return replace(result, contrast=contrast, kept=better or not shown if given else better and shown, mean=mean)


def interval_of(part: Part, run: Run, measure: str) -> tuple[float, Interval]:
    """The mean of a measure and its 95 % interval."""
    values = evaluate(part.qrels, run, [measure]).per_query[measure]
    return float(values.mean()), mean_interval(values)


def p_value(value: float) -> str:
    """A p-value for readers: ``= .012`` or ``< .001``."""
    return "< .001" if value < 0.001 else f"= {value:.3f}".replace("0.", ".")
