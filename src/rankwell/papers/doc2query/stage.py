"""``doc2query``: which queries does a passage answer? Leaves a query writer, expansions, and an index with them.

After a stage that left term weights (``weights/shard-*``), the queries are added to these.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rankwell.core.errors import RankwellError
from rankwell.core.shards import Shards, do
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.formats import read_weights
from rankwell.corpus.formats.texts import read_expansions
from rankwell.corpus.records import Qrels, Query
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import Reader
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.batch import Batch, Placer
from rankwell.models.checkpoints.describe import describe
from rankwell.papers.doc2query.checkpoints import load_writer, save_writer
from rankwell.papers.doc2query.decoding import WritingOptions
from rankwell.papers.doc2query.expansion import ExpandJob, count_expansions
from rankwell.papers.doc2query.options import Doc2queryOptions
from rankwell.papers.doc2query.writer import passage_grid, query_grid
from rankwell.papers.shared.built_index import INDEX, check_tuning, questions_of, tune_first_stage
from rankwell.papers.shared.examples import write_examples
from rankwell.plots.pictures import words_and_gaps
from rankwell.retrieve.builder import combine_weights
from rankwell.retrieve.index import Index
from rankwell.training.first_stage import hold_out, measure_first_stage
from rankwell.training.loop.gradients import CPU_BUDGET
from rankwell.training.loop.loop import train
from rankwell.training.loop.task import Step, Task, backward_chunks, chunk_by_tokens
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import FINDING, STAGES, FinishedStage, StageKind, StageResult, Work, process_number
from rankwell.training.stage_options.first_stages import TuningOptions

EXPANSIONS = "expansions.jsonl.gz"
TARGET_COST = 5
"""Memory of a piece that is written, in pieces that are read: it has a logit for every token of the vocabulary."""


@dataclass(frozen=True, eq=False)
class QueryPairs:
    """Queries with a passage that answers each: row ``i`` of ``queries`` and the document number ``documents[i]``."""

    queries: Pieces
    documents: NDArray[np.int64]
    tokens: StoredTokens

    @classmethod
    def of(
        cls, queries: Sequence[Query], qrels: Qrels, tokens: StoredTokens, tokenizer: Tokenizer, *, level: int = 1
    ) -> QueryPairs:
        """Every judged query with each document that is relevant to it, of a grade of ``level`` or more."""
        texts: list[str] = []
        docids: list[str] = []
        for query in queries:
            relevant = [docid for docid, grade in qrels.get(query.qid, {}).items() if grade >= level]
            texts += [query.text] * len(relevant)
            docids += relevant
        if not docids:
            raise RankwellError("no query has a relevant document, so there is nothing to learn to write")
        return cls(tokenizer.encode(texts), tokens.numbers(docids), tokens)

    def __len__(self) -> int:
        return len(self.documents)


class QueryWritingTask(Task):
    """Cross entropy of a query's pieces, given the passage and the pieces before each; every pair once an epoch.

    The loss is the mean over the pieces of a batch, ``smoothing`` of it spread evenly over the vocabulary.
    """

    items = "pairs"

    def __init__(
        self, pairs: QueryPairs, tokenizer: Tokenizer, *, max_length: int, max_query: int, smoothing: float = 0.0
    ):
        self.pairs = pairs
        self.max_length, self.max_query = max_length, max_query
        self.smoothing = smoothing
        self._reader = Reader.of_texts(tokenizer, max_length)
        self._special, self._pad = tokenizer.special, tokenizer.pad
        self._targets = np.minimum(pairs.queries.lengths() + 1, max_query)

    @property
    def passages_cut(self) -> int:
        """How many pairs' passages are longer than what is read of them."""
        return int((self.pairs.tokens.lengths(self.pairs.documents) > self.max_length - 2).sum())

    def draw(self, epoch: int) -> int:
        """See :class:`~rankwell.training.loop.task.Task`."""
        return len(self.pairs)

    def backward(self, model: nn.Module, items: NDArray[np.int64], part: slice, step: Step) -> dict[str, Tensor]:
        """See :class:`~rankwell.training.loop.task.Task`; also logs ``accuracy``, the share of likeliest pieces."""
        whole = int(self._targets[items].sum())
        pairs, costs = self.by_length(items[part])

        def figures(chunk: slice) -> dict[str, Tensor]:
            logits, targets = self.logits(model, pairs[chunk], step)
            # The mean is over the whole batch's pieces, so a chunk adds the sum of its own over the number of all.
            summed = functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=self.smoothing)
            right = (logits.detach().argmax(dim=1) == targets).sum()
            return {"loss": summed / whole, "accuracy": right / whole}

        return backward_chunks(costs, figures, step, ("loss", "accuracy"))

    def by_length(self, items: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The pairs, those with the longest passages first, and what each costs of a budget."""
        read = np.minimum(self.pairs.tokens.lengths(self.pairs.documents[items]) + 2, self.max_length)
        order = np.argsort(-read, kind="stable")
        return items[order], (read + TARGET_COST * self._targets[items])[order]

    def logits(self, model: nn.Module, chunk: NDArray[np.int64], step: Step) -> tuple[Tensor, Tensor]:
        """The logits (K, vocabulary) of all pieces these pairs' queries have, and the pieces (K,)."""
        passages = self._reader.lay_out({"query": self.pairs.tokens.at(self.pairs.documents[chunk])}).sequences
        grid = query_grid(self.pairs.queries.take(chunk), self._special, self.max_query, self._pad)
        arrays = (*passage_grid(passages.ends), *grid)
        slots, real, inputs, rows, targets = (torch.from_numpy(a).to(step.device, non_blocking=True) for a in arrays)
        batch: Batch = step.place(passages)
        with step.computing():
            logits = model(*batch, slots, real, inputs, rows)
        return logits.float(), targets


@torch.inference_mode()
def perplexity_on(task: QueryWritingTask, model: nn.Module, *, budget: int = 8192) -> dict[str, float]:
    """A task's ``log_likelihood``, the mean over pieces (higher is better), and ``perplexity``, e to minus it."""
    device = next(model.parameters()).device
    model.eval()
    exact = partial(torch.autocast, device.type, enabled=False)
    step = Step(Placer(device, "full"), budget, 0, exact, lambda loss: loss)
    total, count = 0.0, 0
    pairs, costs = task.by_length(np.arange(len(task.pairs)))
    for chunk in chunk_by_tokens(costs, budget):
        logits, targets = task.logits(model, pairs[chunk], step)
        total += float(functional.cross_entropy(logits, targets, reduction="sum"))
        count += len(targets)
    return {"log_likelihood": -total / count, "perplexity": math.exp(min(total / count, 50.0))}


def check(work: Work, stage: RecipeStage[Doc2queryOptions]) -> None:
    """Check tuning and lengths."""
    options = stage.options
    check_tuning(work, stage)
    limit = describe(work.model).encoder_config().max_position_embeddings
    for name in ("max_length", "max_query"):
        if getattr(options, name) > limit:
            raise RankwellError(
                f"{stage.path}.{name} is {getattr(options, name)}, but {work.model} has {limit} positions"
            )


def run(work: Work, stage: RecipeStage[Doc2queryOptions], folder: Path) -> StageResult:
    """Train, write queries for every passage, index them and tune BM25."""
    options = stage.options
    train_queries, tune_queries = hold_out(work.data.train.queries, options.tune_queries, work.seed)
    trained, device = _train_writer(work, options, folder, train_queries, tune_queries)
    shards = _expand(work, options, folder, device)
    if process_number() > 0:
        return StageResult()
    shards.join(folder / EXPANSIONS)
    figures = trained | count_expansions(iter(work.data.collection.store), folder / EXPANSIONS)
    weighing = next((done for done in reversed(work.done) if (done.folder / "weights").is_dir()), None)
    grid: TuningOptions = weighing.stage.options if weighing else options  # weighted terms need another k1
    figures |= tune_first_stage(work, _index(work, folder, weighing), tune_queries, grid, folder)
    _show(work, tune_queries, folder)
    return StageResult(first_stage=folder, figures=figures)


def _train_writer(
    work: Work, options: Doc2queryOptions, folder: Path, queries: Sequence[Query], others: Sequence[Query]
) -> tuple[dict[str, Any], str]:
    """Leaves ``folder/model``; returns figures, and the device this process trained on."""
    model, tokenizer, config = load_writer(work.model, seed=work.seed)
    config = config.model_copy(
        update={"max_length": options.max_length, "max_query": options.max_query, "history": work.history}
    )
    tokens, level = work.data.tokens(tokenizer), work.recipe.data.relevance

    def task(queries: Sequence[Query], smoothing: float) -> QueryWritingTask:
        pairs = QueryPairs.of(queries, work.data.train.qrels, tokens, tokenizer, level=level)
        lengths = {"max_length": options.max_length, "max_query": options.max_query}
        return QueryWritingTask(pairs, tokenizer, **lengths, smoothing=smoothing)

    learned = task(queries, options.smoothing)
    save = partial(save_writer, model=model, tokenizer=tokenizer, config=config)
    validate = None if options.best == "last" else partial(perplexity_on, task(others, 0.0), budget=4 * CPU_BUDGET)
    how = {**work.computing, "validate": validate}
    outcome = train(model, learned, options, folder, save=save, description="query writer", **how)
    figures = {
        **outcome.figures(),
        "pairs": len(learned.pairs),
        "passages cut in training": learned.passages_cut,
    }
    if outcome.best is not None:
        figures["perplexity"] = math.exp(-outcome.best)
    return figures, str(next(model.parameters()).device)


def _expand(work: Work, options: Doc2queryOptions, folder: Path, device: str) -> Shards:
    """Write the queries of all passages; several processes share the work."""
    writing = WritingOptions(options.n, options.top_k, options.temperature, options.max_query, work.seed)
    store, shards = work.data.collection.store.folder, folder / "shards"
    return do(ExpandJob(folder / "model", writing, device, options.shard, store, shards))


def _index(work: Work, folder: Path, weighing: FinishedStage | None) -> Index:
    """The collection with its expansions, and with the term weights of an earlier stage."""
    target = folder / INDEX
    if (target / "index.json").exists():
        return Index.open(target)
    # Without texts: the collection's index has them, and a re-ranker reads those.
    documents, expansions = iter(work.data.collection.store), read_expansions(folder / EXPANSIONS)
    if weighing is None:
        return Index.build(documents, target, expansions=expansions, store=False)
    weights = chain.from_iterable(read_weights(path) for path in sorted((weighing.folder / "weights").glob("shard-*")))
    scale, root = weighing.stage.options.scale, weighing.stage.options.scaling == "root"
    both = combine_weights(weights, expansions, scale=scale, root=root)
    return Index.build(documents, target, weights=both, store=False)


# Examples as a page


def mark_new_words(query: str, passage: str, analyzer: Analyzer | None = None) -> str:
    """The query as HTML; words whose stem the passage does not have are marked.

    >>> mark_new_words("do bees sleep", "Bees rest at night.")
    '<span class=n>do</span> bees <span class=n>sleep</span>'
    """
    analyzer = analyzer or Analyzer.english()
    known = {None, *analyzer.terms(passage)}
    parts = [(html.escape(text), word) for text, word in words_and_gaps(query, analyzer)]
    return "".join(t if word is None or word.term in known else f"<span class=n>{t}</span>" for t, word in parts)


def beside_queries(text: str, queries: Sequence[str]) -> str:
    """A passage as HTML, beside the queries written for it."""
    analyzer = Analyzer.english()
    items = "".join(f"<li>{mark_new_words(query, text, analyzer)}</li>" for query in queries)
    return f"<div class=row><p>{html.escape(text)}</p><ul>{items}</ul></div>"


def _show(work: Work, queries: Sequence[Query], folder: Path) -> None:
    """Write a page of passages that answer the held-out queries, with the queries written for them."""
    questions = questions_of(work, queries)
    expansions = (each for each in read_expansions(folder / EXPANSIONS) if each.docid in questions)
    written = {expansion.docid: expansion.queries for expansion in expansions}
    texts = work.data.collection.store.texts(list(questions))
    about = "Marked words are not in the passage: an index without them could not find it by them."
    shown = map(beside_queries, texts, (written[docid] for docid in questions))
    write_examples(folder / "expansions.html", "Expansions", about, questions, shown)


STAGES.register("doc2query")(
    StageKind(Doc2queryOptions, run, check, measure_first_stage, reads=FINDING, finds=True, builds_index=True)
)
