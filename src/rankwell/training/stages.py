"""The kinds of stages a recipe is made of, and what each leaves.

pretrain    masked words and next spans of the collection         a checkpoint without a ranking head
pointwise   is this document relevant?                            a ranker of two logits
denoise     which negatives are none?                             candidates, and an audit
listwise    which of these documents is the relevant one?         a ranker of one score
duo         which of two documents is better?                     a second ranker, for the best of the first
classify    what kind of answer does a question ask for?          a classifier of questions
deepct      which words of a passage matter?                      an index of weighted terms, and candidates from it
doc2query   which queries does a passage answer?                  a query writer, expansions, an index with them
"""

from __future__ import annotations

from rankwell.training import ranking_stages as ranking
from rankwell.training import text_stages as texts
from rankwell.training import weight_stages as weights
from rankwell.training import writing_stages as writing
from rankwell.training.first_stages import check_tuning
from rankwell.training.options import (
    ClassifyOptions,
    DeepctOptions,
    DenoiseOptions,
    Doc2queryOptions,
    DuoOptions,
    ListwiseOptions,
    PointwiseOptions,
    PretrainOptions,
)
from rankwell.training.results import rerank_dev
from rankwell.training.stage import PARTS, StageKind

STAGES: dict[str, StageKind] = {
    "pretrain": StageKind(
        PretrainOptions, texts.pretrain, reads=frozenset({"collection", "start", "attention", "seed"})
    ),
    "pointwise": StageKind(PointwiseOptions, ranking.pointwise, check=ranking.check_lists, measure=rerank_dev),
    "denoise": StageKind(DenoiseOptions, ranking.denoise_stage, check=ranking.check_denoise, reads=PARTS - {"dev"}),
    "listwise": StageKind(ListwiseOptions, ranking.listwise, check=ranking.check_lists, measure=rerank_dev),
    "duo": StageKind(DuoOptions, ranking.duo, check=ranking.check_lists, measure=ranking.measure_duo),
    "classify": StageKind(
        ClassifyOptions, texts.classify, reads=frozenset({"collection", "start", "seed"}), ranks=False
    ),
    "deepct": StageKind(
        DeepctOptions,
        weights.deepct,
        check=check_tuning,
        measure=weights.measure_deepct,
        reads=frozenset({"collection", "train", "start", "seed"}),
    ),
    "doc2query": StageKind(
        Doc2queryOptions,
        writing.doc2query,
        check=writing.check_doc2query,
        measure=writing.measure_doc2query,
        reads=frozenset({"collection", "train", "start", "seed"}),
    ),
}
