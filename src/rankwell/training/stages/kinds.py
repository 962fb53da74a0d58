"""The kinds of stages a recipe is made of, and what each leaves.

pretrain    masked words and next spans of the collection         a checkpoint without a ranking head
pointwise   is this document relevant?                            a ranker of two logits
denoise     which negatives are none?                             candidates, and an audit
listwise    which of these documents is the relevant one?         a ranker of one score
duo         which of two documents is better?                     a second ranker, for the best of the first
distil      how would a teacher score these documents?            a ranker of one score
filter      which negatives would a teacher take for relevant?    candidates
average     what do several stages' models have in common?        a ranker with the mean of their weights
classify    what kind of answer does a question ask for?          a classifier of questions
deepct      which words of a passage matter?                      an index of weighted terms, and candidates from it
doc2query   which queries does a passage answer?                  a query writer, expansions, an index with them
sdnet       which passage's words answer, in a frozen BERT?       a small ranker, and BM25's share beside it
windows     which parts of a long document match?                 the same ranker, and the scores of windows
interpolate how much does the first stage still know?             the same ranker, and the best way to join the two
blend       what does a bi-encoder know that the ranker does not? the same ranker, and the best shares of all scores
"""

from __future__ import annotations

from rankwell.training.options import (
    AverageOptions,
    BlendOptions,
    ClassifyOptions,
    DeepctOptions,
    DenoiseOptions,
    DistilOptions,
    Doc2queryOptions,
    DuoOptions,
    FilterOptions,
    InterpolateOptions,
    ListwiseOptions,
    PointwiseOptions,
    PretrainOptions,
    SdnetOptions,
    WindowsOptions,
)
from rankwell.training.results import rerank_dev
from rankwell.training.stage import PARTS, TRAINING, StageKind
from rankwell.training.stages import averaging, blending, distillation, documents, ranking, sdnet, weights, writing
from rankwell.training.stages import text as texts
from rankwell.training.stages.first import check_tuning

STAGES: dict[str, StageKind] = {
    "pretrain": StageKind(
        PretrainOptions, texts.pretrain, reads=frozenset({"collection", "start", "attention", "seed"})
    ),
    "pointwise": StageKind(PointwiseOptions, ranking.pointwise, check=ranking.check_pointwise, measure=rerank_dev),
    "denoise": StageKind(DenoiseOptions, ranking.denoise_stage, check=ranking.check_denoise, reads=TRAINING - {"dev"}),
    "listwise": StageKind(ListwiseOptions, ranking.listwise, check=ranking.check_lists, measure=rerank_dev),
    "duo": StageKind(DuoOptions, ranking.duo, check=ranking.check_duo, measure=ranking.measure_duo),
    "distil": StageKind(DistilOptions, distillation.distil, check=distillation.check_distil, measure=rerank_dev),
    "filter": StageKind(
        FilterOptions, distillation.filter_stage, check=distillation.check_filter, reads=TRAINING - {"dev"}
    ),
    "average": StageKind(AverageOptions, averaging.average, check=averaging.check_average, measure=rerank_dev),
    "classify": StageKind(
        ClassifyOptions,
        texts.classify,
        check=texts.check_classify,
        reads=frozenset({"collection", "start", "seed"}),
        ranks=False,
    ),
    "deepct": StageKind(
        DeepctOptions,
        weights.deepct,
        check=check_tuning,
        measure=weights.measure_deepct,
        reads=frozenset({"collection", "train", "start", "seed"}),
        finds=True,
    ),
    "doc2query": StageKind(
        Doc2queryOptions,
        writing.doc2query,
        check=writing.check_doc2query,
        measure=writing.measure_doc2query,
        reads=frozenset({"collection", "train", "start", "seed"}),
        finds=True,
    ),
    "windows": StageKind(
        WindowsOptions,
        documents.windows_stage,
        check=documents.check_windows,
        measure=documents.measure_windows,
        reads=TRAINING - {"train", "seed"},
    ),
    "interpolate": StageKind(
        InterpolateOptions,
        documents.interpolate,
        check=documents.check_interpolate,
        measure=documents.measure_interpolate,
        reads=PARTS - {"train"},
    ),
    "blend": StageKind(
        BlendOptions,
        blending.blend,
        check=blending.check_blend,
        measure=blending.measure_blend,
        reads=PARTS - {"train"},
    ),
    "sdnet": StageKind(SdnetOptions, sdnet.sdnet, check=sdnet.check_sdnet, measure=sdnet.measure_sdnet, reads=PARTS),
}
