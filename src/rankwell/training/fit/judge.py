"""Whether a result is better than another: the paired test by which a step is kept."""

from __future__ import annotations

from dataclasses import replace

from rankwell.corpus.records import Run
from rankwell.evaluation.compare import Contrast, compare_evaluations
from rankwell.evaluation.evaluate import Evaluation, evaluate
from rankwell.evaluation.significance import Interval, mean_interval
from rankwell.training.fit.results import Bests, Result
from rankwell.training.fit.split import Part
from rankwell.training.fit.task import FitTask

LEVEL = 0.05
"""The level of all tests of a fit together, two-sided: the chance that a step is kept that is worse is half of it."""
LEAST_FOR_INTERVAL = 20
"""With fewer queries an interval says too little to be shown."""


def judge(task: FitTask, result: Result, bests: Bests | None, level: float) -> Result:
    """Decide whether a result is kept, and which of the bests it becomes. Without others or judgments, it is kept.

    What has the settings of the best or of the unfitted system is that system, and has its figures. ``level`` is that
    of a step that is tested.
    """
    step = result.step
    if not result.count:
        return replace(result, becomes=step.replaces)
    part = task.parts.judged.head(result.count)
    ours = evaluate(part.qrels, result.run, [task.measure])
    result = replace(result, mean=ours.mean[task.measure])
    if bests is None:
        return replace(result, becomes=step.replaces)
    if result.settings in (bests.best.settings, bests.base.settings):
        # Its run may differ: each query was ranked by the settings chosen without it.
        same = bests.best if result.settings == bests.best.settings else bests.base
        becomes = tuple(name for name in step.replaces if getattr(bests, name) is None)
        return replace(result, run=same.run, count=same.count, mean=same.mean, kept=False, becomes=becomes)
    others = {name: getattr(bests, name) for name in {*step.beats, *step.replaces}}
    verdicts = {
        name: compare_with(part, result, ours, other, level) for name, other in others.items() if other is not None
    }
    passed = {name for name in others if name not in verdicts or verdicts[name][1]}
    failed = next((name for name in step.beats if name not in passed), "best")
    beaten = passed >= set(step.beats) - {"best"}
    becomes = tuple(name for name in step.replaces if name in passed and (beaten or others[name] is None))
    contrast, _ = verdicts[failed]
    kept = contrast.difference > 0 and passed >= set(step.beats)
    spent = level if step.tested else 0.0
    return replace(result, contrast=contrast, level=spent, kept=kept, becomes=becomes)


def compare_with(part: Part, result: Result, ours: Evaluation, other: Result, level: float) -> tuple[Contrast, bool]:
    """Compare a result, with its figures, with another on the queries of a part by a paired test; does it replace it?

    To replace the other, it must be shown to be better. What is fitted with caution must be better; what is there
    without fitting must not be shown to be worse. Both have to be shown to be better than the user's engine.
    """
    theirs = evaluate(part.qrels, other.run, ours.measures)
    [contrast] = compare_evaluations({"before": theirs, "with it": ours}, "before").contrasts
    better, shown = contrast.difference > 0, contrast.p < level
    if not other.engine and result.step.given:
        return contrast, better or contrast.p >= LEVEL
    if not other.engine and result.step.cautious and result.system.first_stage.share:
        return contrast, better
    return contrast, better and shown


def mean_of(part: Part, run: Run, measure: str) -> float:
    """The mean of a measure."""
    return evaluate(part.qrels, run, [measure]).mean[measure]


def interval_of(part: Part, run: Run, measure: str) -> Interval | None:
    """The 95 % interval of a mean; None where there are too few queries for one."""
    values = evaluate(part.qrels, run, [measure]).per_query[measure]
    return mean_interval(values) if len(values) >= LEAST_FOR_INTERVAL else None


def figure_of(part: Part, run: Run, measure: str) -> str:
    """The mean of a measure and its 95 % interval for readers."""
    mean, interval = mean_of(part, run, measure), interval_of(part, run, measure)
    return f"{mean:.3f}" if interval is None else f"{mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def p_value(value: float) -> str:
    """A p-value for readers: ``= .012`` or ``< .001``."""
    return "< .001" if value < 0.001 else f"= {value:.3f}".replace("0.", ".")
