"""The options of every stage kind, as a recipe writes them: names, defaults, limits and what each one means.

The defaults are the papers' but for the learning rates: those of the papers are for BERT-large, and a small BERT learns
nothing in a few thousand steps at 1e-6. The papers' values stand in comments beside ours.
"""

from __future__ import annotations

from rankwell.training.options.common import DevOptions, ListOptions, Options, TrainingOptions, ValidatedOptions
from rankwell.training.options.documents import InterpolateOptions, SdnetOptions, WindowsOptions
from rankwell.training.options.first import DeepctOptions, Doc2queryOptions
from rankwell.training.options.ranking import (
    ClassifyOptions,
    DenoiseOptions,
    DuoOptions,
    ListwiseOptions,
    PointwiseOptions,
    PretrainOptions,
)
from rankwell.training.options.teaching import AverageOptions, BlendOptions, DistilOptions, FilterOptions

__all__ = [
    "LABELLED",
    "MODELS",
    "STAGE_OPTIONS",
    "START",
    "WITHOUT_EFFECT",
    "AverageOptions",
    "BlendOptions",
    "ClassifyOptions",
    "DeepctOptions",
    "DenoiseOptions",
    "DevOptions",
    "DistilOptions",
    "Doc2queryOptions",
    "DuoOptions",
    "FilterOptions",
    "InterpolateOptions",
    "ListOptions",
    "ListwiseOptions",
    "Options",
    "PointwiseOptions",
    "PretrainOptions",
    "SdnetOptions",
    "TrainingOptions",
    "ValidatedOptions",
    "WindowsOptions",
]

START = "start"
"""Names the recipe's start checkpoint where a stage or a model is to be named."""

MODELS = frozenset({"encoder", "teachers", "judge", "vectors"})
"""Options that name models or word vectors: folders, which may be relative to the recipe's, or names."""

LABELLED = frozenset({"train", "test"})
"""Options that name labelled texts: files of the data's folder."""

WITHOUT_EFFECT = frozenset({"budget", "max_pairs_in_memory", "save_every"})
"""Options that change what a stage needs, not what it makes: it goes on with others than it began with."""

STAGE_OPTIONS: dict[str, type[Options]] = {
    "pretrain": PretrainOptions,
    "pointwise": PointwiseOptions,
    "denoise": DenoiseOptions,
    "listwise": ListwiseOptions,
    "duo": DuoOptions,
    "distil": DistilOptions,
    "filter": FilterOptions,
    "average": AverageOptions,
    "classify": ClassifyOptions,
    "deepct": DeepctOptions,
    "doc2query": Doc2queryOptions,
    "sdnet": SdnetOptions,
    "windows": WindowsOptions,
    "interpolate": InterpolateOptions,
    "blend": BlendOptions,
}
"""The options of each stage kind."""
