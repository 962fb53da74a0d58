"""Fit BERT rankers to your own documents, run them fast, and see whether they are better.

The public names are few and are imported when they are first used, so ``import rankwell`` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankwell.evaluation.compare import compare
    from rankwell.evaluation.evaluate import evaluate
    from rankwell.rank.pipeline import Pipeline
    from rankwell.rank.ranker import Ranker
    from rankwell.retrieve.index import Index
    from rankwell.training.run import train

__all__ = ["Index", "Pipeline", "Ranker", "compare", "evaluate", "train"]

_HOMES = {
    "Index": "rankwell.retrieve.index",
    "Pipeline": "rankwell.rank.pipeline",
    "Ranker": "rankwell.rank.ranker",
    "compare": "rankwell.evaluation.compare",
    "evaluate": "rankwell.evaluation.evaluate",
    "train": "rankwell.training.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rankwell' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
