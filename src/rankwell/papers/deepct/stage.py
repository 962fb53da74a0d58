"""``deepct``: which words of a passage matter? Leaves an index of weighted terms, and BM25 tuned to it (DeepCT).

The weight of a term in a passage is the share of the passage's queries that contain it.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankwell.core.arrays import Rows, gather
from rankwell.core.errors import RankwellError
from rankwell.core.shards import Shards, do
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.records import Query
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import Reader
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows
from rankwell.papers.deepct.options import DeepctOptions
from rankwell.papers.deepct.weighing import (
    STEM_BITS,
    PassageWindows,
    TermWeigher,
    TokenWeightModel,
    WeighJob,
    WeightOptions,
    lay_out_passages,
    load_token_weights,
    read_shards,
    save_token_weights,
    weigh_texts,
)
from rankwell.papers.shared.built_index import INDEX, check_tuning, questions_of, tune_first_stage
from rankwell.papers.shared.examples import write_examples
from rankwell.plots.pictures import words_and_gaps
from rankwell.retrieve.index import Index
from rankwell.training.first_stage import hold_out, measure_first_stage
from rankwell.training.loop.loop import train
from rankwell.training.loop.task import Step, Task, backward_chunks
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import FINDING, STAGES, StageKind, StageResult, Work, process_number


@dataclass(frozen=True, eq=False)
class TermRecall:
    """The targets of passages that have queries.

    =============  ======  ==============================================================
    ``documents``  (N,)    the passages' document numbers, ascending
    ``keys``       (K,)    row of the passage and stem as one number, ascending
    ``shares``     (K,)    the share of the passage's queries that have the stem, above 0
    =============  ======  ==============================================================
    """

    documents: Rows
    keys: Rows
    shares: NDArray[np.float32]

    @classmethod
    def of(cls, queries: Pieces, rows: Rows, documents: Rows) -> TermRecall:
        """Targets from judgments: query ``rows[i]`` has the relevant document ``documents[i]``.

        ``queries`` are pieces with stems. A query that repeats a word has it once; one of stop words alone counts, too.
        """
        if len(queries.stems) != len(queries.ids):
            raise ValueError("term recall needs queries with stems")
        if not len(rows):
            raise RankwellError("no query has a relevant document, so there is nothing to learn from")
        judged = np.unique(np.stack([documents, rows], axis=1), axis=0)
        passages, passage_of = np.unique(judged[:, 0], return_inverse=True)
        # The distinct stems of each query, query after query.
        query_of = np.repeat(np.arange(len(queries)), queries.lengths())[queries.opens]
        query_stems = np.unique((query_of << STEM_BITS) | queries.stems[queries.opens])
        ends = np.searchsorted(query_stems, (np.arange(len(queries)) + 1) << STEM_BITS)
        counts = np.diff(ends, prepend=0)[judged[:, 1]]
        # Each judgment takes all stems of its query.
        stems = query_stems[gather(ends[judged[:, 1]] - counts, counts)] & ((1 << STEM_BITS) - 1)
        keys, times = np.unique((np.repeat(passage_of, counts) << STEM_BITS) | stems, return_counts=True)
        queries_of = np.bincount(passage_of)
        return cls(passages, keys, (times / queries_of[keys >> STEM_BITS]).astype(np.float32))

    def __len__(self) -> int:
        return len(self.documents)

    def targets(self, rows: Rows, stems: Rows) -> NDArray[np.float32]:
        """The target of each stem in the passage of its row; 0 for stems in none of the passage's queries."""
        wanted = (rows << STEM_BITS) | stems
        if not len(self.keys):
            return np.zeros(len(wanted), np.float32)
        places = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[places] == wanted, self.shares[places], np.float32(0.0))


class TermWeightTask(Task):
    """Mean squared error of the weights of words, each at its first piece; every passage once an epoch.

    Stop words and punctuation are left out. A passage longer than the reader's length is read in windows; what is
    in two of them counts in both.
    """

    items = "passages"

    def __init__(self, source: StoredTokens, recall: TermRecall, reader: Reader):
        self.recall = recall
        self._source = source
        self._reader = reader

    def draw(self, epoch: int) -> int:
        """See :class:`~rankwell.training.loop.task.Task`."""
        return len(self.recall)

    def lay_out(self, items: Rows) -> tuple[PassageWindows, NDArray[np.float32]]:
        """These passages, and the target of each of their words (F,)."""
        pieces = self._source.at(self.recall.documents[items])
        passages = lay_out_passages(self._reader, pieces)
        return passages, self.recall.targets(items[passages.rows], passages.stems)

    def backward(self, model: nn.Module, items: NDArray[np.int64], part: slice, step: Step) -> dict[str, Tensor]:
        """See :class:`~rankwell.training.loop.task.Task`; also logs ``zero_loss``, that of weighing every word 0.

        The mean is over the words of the whole batch, which is therefore laid out whole, whatever this part of it is.
        """
        assert isinstance(model, TokenWeightModel)
        passages, targets = self.lay_out(items)
        begin, end, _ = part.indices(len(items))
        first, last = np.searchsorted(passages.owners, [begin, end]).tolist()
        part_targets = targets[(passages.rows >= begin) & (passages.rows < end)]
        words = max(1, len(targets))
        wanted = torch.from_numpy(part_targets).to(step.device, non_blocking=True)
        windows = passages.part(first, last)

        def figures(chunk: slice) -> dict[str, Tensor]:
            here, before = windows.part(chunk.start, chunk.stop), len(windows.part(0, chunk.start).tokens)
            with step.computing():
                weights = model(*step.place(here.sequences))
            rows = torch.from_numpy(here.tokens).to(step.device, non_blocking=True)
            errors = weights.index_select(0, rows) - wanted[before : before + len(here.tokens)]
            return {"loss": errors.square().sum() / words}

        loss = backward_chunks(windows.sequences.lengths(), figures, step, ("loss",))
        return {**loss, "zero_loss": wanted.square().sum() / words}


def term_recall(work: Work, queries: tuple[Query, ...], tokenizer: Tokenizer) -> TermRecall:
    """The targets that these training queries give the passages relevant to them."""
    split, level = work.data.train, work.recipe.data.relevance
    pairs = [
        (row, docid)
        for row, query in enumerate(queries)
        for docid, grade in split.qrels.get(query.qid, {}).items()
        if grade >= level
    ]
    rows = np.array([row for row, _ in pairs], np.int64)
    documents = work.data.collection.store.numbers([docid for _, docid in pairs])
    return TermRecall.of(tokenizer.encode([query.text for query in queries], stems=True), rows, documents)


def run(work: Work, stage: RecipeStage[DeepctOptions], folder: Path) -> StageResult:
    """Train, weigh every passage, index the weights and tune BM25."""
    options = stage.options
    model, tokenizer = load_token_weights(work.model, seed=work.seed)
    train_queries, tune_queries = hold_out(work.data.train.queries, options.tune_queries, work.seed)
    recall = term_recall(work, train_queries, tokenizer)
    segments = model.encoder.config.type_vocab_size
    reader = Reader.of_texts(tokenizer, options.max_length, windows=Windows(), segments=segments)
    task = TermWeightTask(work.data.tokens(tokenizer, stems=True), recall, reader)
    save = partial(save_token_weights, model=model, tokenizer=tokenizer, max_length=options.max_length)
    outcome = train(model, task, options, folder, save=save, description="term weights", **work.computing)
    device = str(next(model.parameters()).device)
    scaling = WeightOptions(options.scaling, options.scale)
    store = work.data.collection.store
    shards = do(WeighJob(folder / "model", scaling, device, options.shard, store.folder, folder / "weights"))
    if process_number() > 0:
        return StageResult()
    figures = {**outcome.figures(), "passages with queries": len(recall), "max_length": options.max_length}
    terms = total = 0.0
    for document in read_shards(shards):
        terms, total = terms + len(document.weights), total + sum(document.weights.values())
    figures |= tune_first_stage(work, _index(work, folder, shards), tune_queries, options, folder)
    figures["terms of a passage"] = round(terms / len(store), 2)
    figures["mean term frequency"] = round(total / max(1, terms), 2)
    weigher = TermWeigher.from_pretrained(folder / "model", device=device)
    _show(work, tune_queries, weigher, scaling, folder)
    return StageResult(first_stage=folder, figures=figures)


def _index(work: Work, folder: Path, shards: Shards) -> Index:
    if (folder / INDEX / "index.json").exists():
        return Index.open(folder / INDEX)
    # Without texts: the collection's index has them.
    return Index.build(iter(work.data.collection.store), folder / INDEX, weights=read_shards(shards), store=False)


# Examples as a page


SHADE = (31, 119, 180)


def fragments(text: str, weights: Mapping[str, float]) -> list[tuple[str, float | None]]:
    """The text in order: words with the weight of their stem (0 if it has none), other characters with ``None``.

    >>> fragments("Bees make honey.", {"honey": 93, "bee": 40})
    [('Bees', 40.0), (' ', None), ('make', 0.0), (' ', None), ('honey', 93.0), ('.', None)]
    """
    analyzer = Analyzer.english()
    by_term: dict[str, float] = {}
    terms = analyzer.stems([form.lower() for form in weights])
    for term, weight in zip(terms, weights.values(), strict=True):
        if term is not None:
            by_term[term] = max(by_term.get(term, 0.0), float(weight))
    parts = words_and_gaps(text, analyzer)
    return [(part, None if word is None else by_term.get(word.term or "", 0.0)) for part, word in parts]


def shade_words(text: str, weights: Mapping[str, float]) -> str:
    """The text as HTML, heavier words shaded darker."""
    highest = max([*map(float, weights.values()), 1.0])
    return f"<p>{''.join(_span(part, weight, highest) for part, weight in fragments(text, weights))}</p>"


def _span(text: str, weight: float | None, highest: float) -> str:
    if not weight or weight <= 0:
        return html.escape(text)
    depth = min(1.0, weight / highest)
    ink = "; color: #fff" if depth > 0.6 else ""
    red, green, blue = SHADE
    style = f"background: rgba({red}, {green}, {blue}, {depth:.2f}){ink}"
    return f'<span class=w style="{style}" title="{weight:g}">{html.escape(text)}</span>'


def _show(work: Work, queries: tuple[Query, ...], weigher: TermWeigher, options: WeightOptions, folder: Path) -> None:
    """Write a page of passages that answer the held-out queries."""
    questions = questions_of(work, queries)
    texts = work.data.collection.store.texts(list(questions))
    about = "The darker a word, the higher its term frequency in the index; point at it to read the number."
    shown = map(shade_words, texts, weigh_texts(weigher, texts, options))
    write_examples(folder / "terms.html", "Term weights", about, questions, shown)


STAGES.register("deepct")(
    StageKind(DeepctOptions, run, check_tuning, measure_first_stage, reads=FINDING, finds=True, builds_index=True)
)
