"""Options of the stages that train a ranker on judged data: pointwise, listwise, duo, pretrain, denoise, classify."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rankwell.training.options.common import ListOptions, Options, TrainingOptions, ValidatedOptions


class PointwiseOptions(ListOptions):
    """`pointwise`: two logits and cross entropy (monoBERT, MarkedBERT, DR-BERT's second stage)."""

    # monoBERT and MarkedBERT: 3e-6 (BERT-large, BERT-base) with 32 to 128 pairs a step.
    learning_rate: float = Field(default=5e-5, gt=0, description="The highest learning rate. In the papers: 3e-6.")


class ListwiseOptions(ListOptions):
    """`listwise`: one score and a softmax over each list (DR-BERT's fourth stage)."""

    epochs: float = Field(default=5, gt=0, description="Passes over the training data; may be a fraction.")
    negatives: int = Field(default=5, ge=1, description="Non-relevant documents of a list, drawn afresh each epoch.")
    loss: str = Field(default="listwise", description="The loss; docs/losses.md lists them.")
    learning_rate: float = Field(default=3e-5, gt=0, description="The highest learning rate. In the paper: 1e-6.")
    head: Literal["new", "pointwise"] = Field(
        default="new", description="Where the head of one score starts: new, or as the difference of the two logits."
    )


class DuoOptions(ListOptions):
    """`duo`: which of two documents is better (duoBERT), for the best documents of the model before it."""

    learning_rate: float = Field(default=3e-5, gt=0, description="The highest learning rate. In the paper: 3e-6.")
    compare: int = Field(default=30, ge=2, description="The best documents of a query that are compared two by two.")
    max_length: int = Field(default=320, ge=16, description="Most tokens of a sequence, which holds two documents.")
    aggregate: Literal["sum", "binary", "min", "max", "sample"] = Field(
        default="sum", description="A document's score from its comparisons."
    )


class PretrainOptions(TrainingOptions):
    """`pretrain`: masked words and next spans of the collection itself."""

    # The paper: 5 epochs, 128 a step, 1e-6 for BERT-large.
    batch: int = Field(default=128, ge=1, description="Span pairs of one optimiser step, over all devices.")
    learning_rate: float = Field(default=1e-4, gt=0, description="The highest learning rate. In the paper: 1e-6.")
    masked: float = Field(default=0.15, gt=0, lt=1, description="Share of the pieces (or words) that are masked.")
    whole_word: bool = Field(default=False, description="Mask all pieces of a word together.")
    other: float = Field(
        default=0.5, ge=0, le=1, description="Share of pairs whose second span comes from another passage."
    )
    short: float = Field(default=0.1, ge=0, le=1, description="Share of pairs cut to a random shorter length.")
    max_length: int = Field(default=180, ge=8, description="Most tokens of a span pair.")


class DenoiseOptions(Options):
    """`denoise`: drops candidates that are probably relevant though nobody judged them."""

    threshold: float = Field(
        default=0.9, ge=0, le=1, description="Unjudged candidates with p(relevant) above it are dropped."
    )
    most: float = Field(
        default=0.02,
        ge=0,
        le=1,
        description="Where a larger share of the unjudged candidates is above it, none is dropped; 1: no limit.",
    )
    keep_below: float | None = Field(
        default=None, ge=0, le=1, description="Keep negatives only below this p(relevant), as RocketQA does with 0.1."
    )
    hardest: int | None = Field(
        default=None, ge=1, description="Keep only so many negatives a query, the likeliest ones."
    )
    cross_fit: int = Field(
        default=0,
        ge=0,
        description="Score each of so many folds with a model trained on the others; 0: with the one model.",
    )
    keep_one: bool = Field(
        default=True, description="A query keeps its least likely negative when all would be dropped."
    )


class ClassifyOptions(ValidatedOptions):
    """`classify`: trains a classifier of questions by their kind of answer, from labelled texts."""

    epochs: float = Field(default=3, gt=0, description="Passes over the training data; may be a fraction.")
    batch: int = Field(default=32, ge=1, description="Texts of one optimiser step, over all devices.")
    learning_rate: float = Field(
        default=1e-4, gt=0, description="The highest learning rate, reached at the end of `warm_up`."
    )
    best: Literal["accuracy", "last"] = Field(
        default="last", description="Keep the checkpoint that is best on `test`, or `last`."
    )
    train: str = Field(default="train.tsv", description="The labelled texts to train on, a file of `data.folder`.")
    test: str | None = Field(
        default="test.tsv", description="The labelled texts to measure on, a file of `data.folder`."
    )
    max_length: int = Field(default=64, ge=8, description="Most tokens of a text.")
