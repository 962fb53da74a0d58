# The public names, once, for type checkers and for Python, which imports each when it is first used.

# Rank, search, fit, evaluate
# Options, errors, and parts of your own
from .core.errors import InputError as InputError
from .core.errors import RankwellError as RankwellError

# Data
from .corpus.analyser import Analyzer as Analyzer
from .corpus.datasets import open_dataset as open_dataset
from .corpus.formats import read_documents as read_documents
from .corpus.formats import read_qrels as read_qrels
from .corpus.formats import read_queries as read_queries
from .corpus.formats import read_run as read_run
from .corpus.formats import read_types as read_types
from .corpus.formats import write_qrels as write_qrels
from .corpus.formats import write_run as write_run
from .corpus.formats.fields import Columns as Columns
from .corpus.query_types import rule_type as rule_type
from .corpus.records import Document as Document
from .corpus.records import Qrels as Qrels
from .corpus.records import Query as Query
from .corpus.records import Ranking as Ranking
from .corpus.records import Run as Run
from .corpus.store import DocumentStore as DocumentStore
from .evaluation.compare import compare as compare
from .evaluation.evaluate import evaluate as evaluate
from .evaluation.notation import measure as measure
from .evaluation.tables import report as report
from .evaluation.validate import validate as validate
from .inputs.templates import Template as Template
from .inputs.windows import Windows as Windows
from .models.bi_encoder import BiEncoder as BiEncoder
from .rank.cache import ScoreCache as ScoreCache
from .rank.explain import explain as explain
from .rank.first_stage import FirstStage as FirstStage
from .rank.fusion import Shares as Shares
from .rank.fusion import fuse as fuse
from .rank.ranker import Ranker as Ranker
from .rank.ranker import open_ranker as open_ranker
from .rank.system import System as System
from .rank.tuning import fuse_windows as fuse_windows
from .rank.tuning import tune_fusion as tune_fusion
from .rank.tuning import tune_windows as tune_windows
from .rank.window_scores import score_windows as score_windows
from .retrieve.bm25 import BM25 as BM25
from .retrieve.index import Index as Index
from .training.fit.fit import fit as fit
from .training.loop.losses import loss as loss
from .training.options import Options as Options
from .training.run import train as train
from .training.stage import STAGES as STAGES
from .training.stage import StageKind as StageKind
from .training.stage import StageResult as StageResult
