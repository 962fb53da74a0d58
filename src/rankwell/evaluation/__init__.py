"""Measures, significance, comparison tables and checks of runs. Everything here works without torch."""

from rankwell.evaluation.compare import Comparison, Contrast, compare
from rankwell.evaluation.evaluate import Evaluation, evaluate
from rankwell.evaluation.measures import MEASURES
from rankwell.evaluation.notation import Measure, parse_measure, parse_measures
from rankwell.evaluation.tables import report
from rankwell.evaluation.validate import Problem, validate

__all__ = [
    "MEASURES",
    "Comparison",
    "Contrast",
    "Evaluation",
    "Measure",
    "Problem",
    "compare",
    "evaluate",
    "parse_measure",
    "parse_measures",
    "report",
    "validate",
]
