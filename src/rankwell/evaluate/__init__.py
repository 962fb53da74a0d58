"""Measures, significance, comparison tables and checks of runs. Everything here works without torch."""

from rankwell.evaluate.compare import Comparison, Contrast, compare
from rankwell.evaluate.evaluation import Evaluation, evaluate
from rankwell.evaluate.measures import MEASURES
from rankwell.evaluate.notation import Measure, parse_measure, parse_measures
from rankwell.evaluate.tables import report
from rankwell.evaluate.validate import Problem, Severity, validate

__all__ = [
    "MEASURES",
    "Comparison",
    "Contrast",
    "Evaluation",
    "Measure",
    "Problem",
    "Severity",
    "compare",
    "evaluate",
    "parse_measure",
    "parse_measures",
    "report",
    "validate",
]
