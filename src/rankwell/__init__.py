"""Fit BERT rankers to your own documents, run them fast, and see whether they are better.

Everything a user needs is a name of this package. Each name is imported when it is first used, so ``import rankwell``
costs next to nothing and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankwell.core.errors import InputError, MissingExtraError, RankwellError
    from rankwell.corpus.analyser import Analyzer
    from rankwell.corpus.datasets import open_dataset
    from rankwell.corpus.formats import (
        read_documents,
        read_qrels,
        read_queries,
        read_run,
        read_types,
        write_qrels,
        write_run,
    )
    from rankwell.corpus.formats.fields import Columns
    from rankwell.corpus.query_types import rule_type
    from rankwell.corpus.records import Document, Qrels, Query, Ranking, Run
    from rankwell.corpus.store import DocumentStore
    from rankwell.evaluation.compare import compare
    from rankwell.evaluation.evaluate import evaluate
    from rankwell.evaluation.judged import JudgedRanking
    from rankwell.evaluation.measures import MEASURES
    from rankwell.evaluation.notation import DEPTH, measure, parse_measure
    from rankwell.evaluation.tables import report
    from rankwell.evaluation.validate import validate
    from rankwell.inputs.templates import Template
    from rankwell.inputs.windows import Windows
    from rankwell.models.bi_encoder import BiEncoder
    from rankwell.papers.drbert.query_types import Classifier
    from rankwell.rank.answers import Answer
    from rankwell.rank.cache import ScoreCache
    from rankwell.rank.dense import DenseRanker, search_hybrid, tune_hybrid
    from rankwell.rank.explain import explain
    from rankwell.rank.first_stage import FirstStage
    from rankwell.rank.fusion import RankFusion, Shares, fuse
    from rankwell.rank.ranker import Ranker, open_ranker
    from rankwell.rank.system import System
    from rankwell.rank.tuning import (
        fuse_windows,
        fusion_grid,
        share_grid,
        tune_fusion,
        tune_windows,
        weight_grid,
        window_grid,
    )
    from rankwell.rank.window_scores import WindowScores, score_windows
    from rankwell.retrieve.bm25 import BM25
    from rankwell.retrieve.index import Index
    from rankwell.training.fit.fit import fit
    from rankwell.training.loop.losses import LOSSES, TWO_LABELS, loss, make_loss
    from rankwell.training.options import Options
    from rankwell.training.run import train
    from rankwell.training.stage import STAGES, StageKind, StageResult

_MODULES = {
    "rankwell.core.errors": ("InputError", "MissingExtraError", "RankwellError"),
    "rankwell.corpus.analyser": ("Analyzer",),
    "rankwell.corpus.datasets": ("open_dataset",),
    "rankwell.corpus.formats": (
        "read_documents",
        "read_qrels",
        "read_queries",
        "read_run",
        "read_types",
        "write_qrels",
        "write_run",
    ),
    "rankwell.corpus.formats.fields": ("Columns",),
    "rankwell.corpus.query_types": ("rule_type",),
    "rankwell.corpus.records": ("Document", "Qrels", "Query", "Ranking", "Run"),
    "rankwell.corpus.store": ("DocumentStore",),
    "rankwell.evaluation.compare": ("compare",),
    "rankwell.evaluation.evaluate": ("evaluate",),
    "rankwell.evaluation.judged": ("JudgedRanking",),
    "rankwell.evaluation.measures": ("MEASURES",),
    "rankwell.evaluation.notation": ("DEPTH", "measure", "parse_measure"),
    "rankwell.evaluation.tables": ("report",),
    "rankwell.evaluation.validate": ("validate",),
    "rankwell.inputs.templates": ("Template",),
    "rankwell.inputs.windows": ("Windows",),
    "rankwell.models.bi_encoder": ("BiEncoder",),
    "rankwell.rank.answers": ("Answer",),
    "rankwell.rank.cache": ("ScoreCache",),
    "rankwell.papers.drbert.query_types": ("Classifier",),
    "rankwell.rank.dense": ("DenseRanker", "search_hybrid", "tune_hybrid"),
    "rankwell.rank.window_scores": ("WindowScores", "score_windows"),
    "rankwell.rank.explain": ("explain",),
    "rankwell.rank.first_stage": ("FirstStage",),
    "rankwell.rank.fusion": ("RankFusion", "Shares", "fuse"),
    "rankwell.rank.ranker": ("Ranker",),
    "rankwell.rank.system": ("System",),
    "rankwell.rank.tuning": (
        "fuse_windows",
        "fusion_grid",
        "share_grid",
        "tune_fusion",
        "tune_windows",
        "weight_grid",
        "window_grid",
    ),
    "rankwell.retrieve.bm25": ("BM25",),
    "rankwell.retrieve.index": ("Index",),
    "rankwell.training.fit.fit": ("fit",),
    "rankwell.training.loop.losses": ("LOSSES", "TWO_LABELS", "loss", "make_loss"),
    "rankwell.training.options": ("Options",),
    "rankwell.training.run": ("train",),
    "rankwell.training.stage": ("STAGES", "StageKind", "StageResult"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "BM25",
    "DEPTH",
    "LOSSES",
    "MEASURES",
    "STAGES",
    "TWO_LABELS",
    "Analyzer",
    "Answer",
    "BiEncoder",
    "Classifier",
    "Columns",
    "DenseRanker",
    "Document",
    "DocumentStore",
    "FirstStage",
    "Index",
    "InputError",
    "JudgedRanking",
    "MissingExtraError",
    "Options",
    "Qrels",
    "Query",
    "RankFusion",
    "Ranker",
    "Ranking",
    "RankwellError",
    "Run",
    "ScoreCache",
    "Shares",
    "StageKind",
    "StageResult",
    "System",
    "Template",
    "WindowScores",
    "Windows",
    "compare",
    "evaluate",
    "explain",
    "fit",
    "fuse",
    "fuse_windows",
    "fusion_grid",
    "loss",
    "make_loss",
    "measure",
    "open_dataset",
    "open_ranker",
    "parse_measure",
    "read_documents",
    "read_qrels",
    "read_queries",
    "read_run",
    "read_types",
    "report",
    "rule_type",
    "score_windows",
    "search_hybrid",
    "share_grid",
    "train",
    "tune_fusion",
    "tune_hybrid",
    "tune_windows",
    "validate",
    "weight_grid",
    "window_grid",
    "write_qrels",
    "write_run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rankwell' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
