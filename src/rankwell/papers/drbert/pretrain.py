"""``pretrain``: BERT's two tasks on the user's collection. Leaves a checkpoint without a ranking head.

A pair of spans ``[CLS] A [SEP] B [SEP]`` is drawn from every passage in every epoch. *Masked language model*: 15 % of
the pieces are to be predicted. *Next sentence prediction*: in half of the pairs B continues A, in
the others it comes from another passage. The loss is the sum of the two mean cross entropies.

Pairs are drawn batch by batch, so memory does not grow with the collection. Word ids and last pieces are those of the
text before masking: what STRM lets see and hides is the same in pre-training as in ranking.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rankwell.core.arrays import Rows, pack_strings
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.manifest import write_json
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Document
from rankwell.corpus.store import document_batches
from rankwell.inputs.batching import Sequences, slice_sequences
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.templates import SpecialTokens, Template, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.batch import Placer
from rankwell.models.checkpoints.folders import encoder_settings, fill_if_present, write_folder
from rankwell.models.checkpoints.names import find_model
from rankwell.models.checkpoints.tensors import MLM_BIAS, MLM_PARTS, MLM_WEIGHT, encoder_tensors
from rankwell.models.devices import chosen_device
from rankwell.models.encoder import ACTIVATIONS, Encoder
from rankwell.models.layout import Layout, Packed
from rankwell.models.new_heads import seeded
from rankwell.papers.drbert.options import PretrainOptions
from rankwell.papers.drbert.pretrain_kernels import choose_others, choose_spans, make_keys, mask_pieces
from rankwell.papers.shared.bert import load_bert
from rankwell.training.loop.loop import train
from rankwell.training.loop.task import Step, Task, backward_chunks, chunk_by_tokens
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import STAGES, StageKind, StageResult, Work, process_number

TRIES = 4
"""Passages drawn for a random second span; the first with whole words of the length wanted is taken."""
HELD_OUT_SHARE, MOST_HELD_OUT = 0.01, 10_000
"""The share of the passages, and the most of them, that measure the model."""
EVALUATED_AT_ONCE = 256
HELD_OUT_TOKENS = 1 << 13

_SUMS = ("mlm_loss", "nsp_loss", "mlm_hits", "nsp_hits")
_MASK_NAMES = ("[MASK]", "<mask>")
_SPECIAL_NAME = re.compile(r"\[.+\]|<.+>")


# BERT with its two heads, and its folders


# Our names and those of transformers' BertForPreTraining.
_PRETRAINING_PARTS = {**MLM_PARTS, "pooler": "pooler.dense", "next": "cls.seq_relationship"}


class PretrainingModel(nn.Module):
    """BERT's two heads: which token was masked (MLM), and whether the second span follows the first (NSP).

    The MLM decoder is the table of token embeddings, with a bias for each token. Only the masked rows are computed.
    """

    def __init__(self, encoder: Encoder):
        super().__init__()
        config = encoder.config
        self.encoder = encoder
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.transform_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.next = nn.Linear(config.hidden_size, 2)
        for part in (self.transform, self.pooler, self.next):
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)

    def forward(
        self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The logits of the tokens at ``rows`` (R,) of the packed batch, (R, vocabulary), and of NSP, (B, 2): class 0
        is "follows", as in transformers.
        """
        states = self.encoder(tokens, segments, positions, layout, first_only=False)
        masked = self.transform_norm(self.activation(self.transform(states.index_select(0, rows))))
        logits = nn.functional.linear(masked, self.encoder.tokens.weight, self.output_bias)
        first = torch.tanh(self.pooler(states.index_select(0, layout.first)))
        following: Tensor = self.next(first)
        return logits, following


def load_pretraining(folder: str | Path, *, seed: int = 0) -> tuple[PretrainingModel, Tokenizer]:
    """A BERT with both heads for pre-training: those of the folder if it has them, else new ones."""
    folder = find_model(folder)
    encoder, tensors, tokenizer = load_bert(folder, "pre-training")
    with seeded(seed):
        model = PretrainingModel(encoder)
    for ours, theirs in _PRETRAINING_PARTS.items():
        fill_if_present(getattr(model, ours), theirs, tensors, folder)
    output = tensors.get(MLM_WEIGHT)
    if output is not None and not torch.equal(output, encoder.tokens.weight):
        raise InputError(
            folder, None, "the output matrix of the MLM head differs from the token embeddings, which it must share"
        )
    if (bias := tensors.get(MLM_BIAS)) is not None:
        if bias.shape != model.output_bias.shape:
            raise InputError(folder, None, f"{MLM_BIAS} has {len(bias)} values for {len(model.output_bias)} tokens")
        model.output_bias.data.copy_(bias)
    return model.eval(), tokenizer


def save_pretraining(
    folder: str | Path, model: PretrainingModel, tokenizer: Tokenizer, max_length: int | None = None
) -> None:
    """Write a folder that transformers loads as BertForPreTraining; it must not exist yet."""
    tensors = encoder_tensors(model.encoder)
    for ours, theirs in _PRETRAINING_PARTS.items():
        prefix = "bert." if theirs == "pooler.dense" else ""
        tensors |= {f"{prefix}{theirs}.{kind}": value for kind, value in getattr(model, ours).state_dict().items()}
    tensors[MLM_BIAS] = model.output_bias
    write_folder(folder, tensors, encoder_settings(model.encoder, "BertForPreTraining"), tokenizer, max_length)


# Pairs of spans


@dataclass(frozen=True, eq=False)
class MaskingVocabulary:
    """What masking must know of a vocabulary: the id of ``[MASK]``, and which tokens (V,) are words or pieces."""

    special: SpecialTokens
    mask: int
    ordinary: NDArray[np.bool_]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> MaskingVocabulary:
        """Every token is ordinary whose name is not that of a special one: ``[…]`` or ``<…>``."""
        mask = max(tokenizer.token_id(name) for name in _MASK_NAMES)
        if mask < 0:
            raise RankwellError("the vocabulary has no [MASK]; this model cannot be pre-trained on masked text")
        names = tokenizer.token_names(range(len(tokenizer)))
        ordinary = np.array([_SPECIAL_NAME.fullmatch(name) is None for name in names], np.bool_)
        return cls(tokenizer.special, mask, ordinary)


@dataclass(frozen=True, eq=False)
class SpanPairs:
    """A batch as the model sees it, and what it should say.

    ``targets`` (T,) is the id to predict for each token, -1 for none; ``following`` (B,) is 0 where the second span
    continues the first, 1 where it comes from another passage, -1 where the passage has no two words to part.
    """

    sequences: Sequences
    targets: NDArray[np.int32]
    following: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sequences)

    def part(self, begin: int, end: int) -> SpanPairs:
        """The pairs from ``begin`` to ``end``, as views."""
        ends = self.sequences.ends
        first, last = (int(ends[begin - 1]) if begin else 0), (int(ends[end - 1]) if end else 0)
        sequences = slice_sequences(self.sequences, begin, end)
        return SpanPairs(sequences, self.targets[first:last], self.following[begin:end])


class PretrainingTask(Task):
    """Pairs of spans from the documents with these numbers, one of each document in each epoch.

    Item ``i`` is document ``documents[i]``. A pair depends on ``seed``, the epoch and the item alone. A document longer
    than ``max_length`` gives another window each time; one that is a single word, or empty, has no next span and is
    left out of next sentence prediction.
    """

    items = "span pairs"

    def __init__(
        self,
        source: StoredTokens,
        documents: NDArray[np.int64],
        vocabulary: MaskingVocabulary,
        options: PretrainOptions,
        seed: int,
        *,
        segments: int = 2,
    ):
        least = 2 if options.other > 0 else 1
        if len(documents) < least:
            raise RankwellError(f"pre-training needs {least} documents or more, found {len(documents)}")
        self._source = source
        self._documents = documents
        self._vocabulary = vocabulary
        self._ordinary_ids = np.flatnonzero(vocabulary.ordinary).astype(np.int32)
        self._options = options
        # A is at most all but the three special tokens and a piece of B.
        self._template = Template("mono", max_length=options.max_length, max_query=options.max_length - 4)
        self._seed = seed
        self._segments = segments
        self._epoch = 0

    def draw(self, epoch: int) -> int:
        """See :class:`~rankwell.training.loop.task.Task`. Costs nothing: pairs are made when their batch comes."""
        self._epoch = epoch
        return len(self._documents)

    def pairs(self, items: NDArray[np.int64], epoch: int | None = None) -> SpanPairs:
        """The pairs of these items, in the epoch that was drawn last or another."""
        items = np.ascontiguousarray(items, np.int64)
        keys = np.empty(len(items), np.uint64)
        make_keys(self._seed, self._epoch if epoch is None else epoch, items, keys)
        pieces, other_rows = self._read(items, keys)
        spans, following = np.empty((len(items), 4), np.int64), np.empty(len(items), np.int64)
        room, options = self._options.max_length - 3, self._options
        begins = pieces.begins
        choose_spans(pieces.continues, begins, pieces.ends, keys, other_rows, room, options.short, spans, following)
        fields = {
            "query": pieces.cut(spans[:, 0], spans[:, 1] - spans[:, 0]),
            "document": pieces.cut(spans[:, 2], spans[:, 3] - spans[:, 2]),
        }
        sequences = lay_out_pairs(self._template, self._vocabulary.special, fields, segments=self._segments)
        targets = np.empty(len(sequences.tokens), np.int32)
        mask_pieces(
            sequences.tokens,
            sequences.ends,
            keys,
            self._vocabulary.ordinary,
            self._ordinary_ids,
            self._vocabulary.mask,
            options.masked,
            targets,
        )
        return SpanPairs(sequences, targets, following)

    def _read(self, items: NDArray[np.int64], keys: NDArray[np.uint64]) -> tuple[Pieces, NDArray[np.int64]]:
        """The pieces of the items and, after them, of what random second spans may come from; and those rows."""
        is_other, others = np.zeros(len(items), np.bool_), np.empty((len(items), TRIES), np.int64)
        choose_others(keys, items, len(self._documents), self._options.other, is_other, others)
        rows = np.full(others.shape, -1, np.int64)
        rows[is_other] = len(items) + np.arange(int(is_other.sum()) * TRIES).reshape(-1, TRIES)
        wanted = np.concatenate([items, others[is_other].ravel()])
        return self._source.at(self._documents[wanted]), rows

    def backward(self, model: nn.Module, items: NDArray[np.int64], part: slice, step: Step) -> dict[str, Tensor]:
        """See :class:`~rankwell.training.loop.task.Task`; logs both losses and accuracies.

        Both means are over the whole batch, which is therefore drawn whole, whatever this process's part of it is.
        """
        pairs = self.pairs(items)
        masked, labelled = (max(1, count) for count in _counts(pairs))
        begin, end, _ = part.indices(len(items))
        own = pairs.part(begin, end)

        def figures(chunk: slice) -> dict[str, Tensor]:
            mlm_loss, nsp_loss, hits = _judge(model, own.part(chunk.start, chunk.stop), step)
            loss = mlm_loss / masked + nsp_loss / labelled
            return {"loss": loss, **dict(zip(_SUMS, (mlm_loss, nsp_loss, *hits), strict=True))}

        sums = backward_chunks(own.sequences.lengths(), figures, step, ("loss", *_SUMS))
        return _means(torch.stack([sums[name] for name in _SUMS]), masked, labelled)


def hold_out(documents: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """The documents to train on, and those held out: a random ``share``, at most 10,000."""
    count = min(MOST_HELD_OUT, round(len(documents) * share))
    if count < 2:  # next sentence prediction needs another passage
        count = 0
    order = np.random.default_rng([seed, len(documents)]).permutation(len(documents))
    return np.sort(documents[order[count:]]), np.sort(documents[order[:count]])


def evaluate_pretraining(model: nn.Module, task: PretrainingTask, step: Step) -> dict[str, float]:
    """The losses and accuracies over all documents of a task, always with the same pairs and masks."""
    model.eval()
    total, masked, labelled = torch.zeros(4, device=step.device), 0, 0
    count = task.draw(0)
    with torch.no_grad():
        for begin in range(0, count, EVALUATED_AT_ONCE):
            pairs = task.pairs(np.arange(begin, min(begin + EVALUATED_AT_ONCE, count)), epoch=0)
            counts = _counts(pairs)
            masked, labelled = masked + counts[0], labelled + counts[1]
            for chunk in chunk_by_tokens(pairs.sequences.lengths(), step.budget):
                mlm_loss, nsp_loss, hits = _judge(model, pairs.part(chunk.start, chunk.stop), step)
                total += torch.stack([mlm_loss, nsp_loss, *hits])
    return {name: float(value) for name, value in _means(total, max(1, masked), max(1, labelled)).items()}


def _counts(pairs: SpanPairs) -> tuple[int, int]:
    """How many masked pieces and labelled pairs there are."""
    return int((pairs.targets >= 0).sum()), int((pairs.following >= 0).sum())


def _means(total: Tensor, masked: int, labelled: int) -> dict[str, Tensor]:
    """What is logged, from sums over tokens and pairs: losses, then hits."""
    mlm_loss, mlm_accuracy = total[0] / masked, total[2] / masked
    nsp_loss, nsp_accuracy = total[1] / labelled, total[3] / labelled
    return {
        "loss": mlm_loss + nsp_loss,
        "mlm_loss": mlm_loss,
        "nsp_loss": nsp_loss,
        "mlm_accuracy": mlm_accuracy,
        "nsp_accuracy": nsp_accuracy,
    }


def _judge(model: nn.Module, pairs: SpanPairs, step: Step) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """The two losses, summed over masked pieces and over labelled pairs, and how many of each are right."""
    rows = np.flatnonzero(pairs.targets >= 0)
    targets = _move(pairs.targets[rows].astype(np.int64), step)
    following = _move(pairs.following, step)
    with step.computing():
        words, next_spans = model(*step.place(pairs.sequences), _move(rows, step))
    words, next_spans = words.float(), next_spans.float()
    mlm_loss = functional.cross_entropy(words, targets, reduction="sum")
    nsp_loss = functional.cross_entropy(next_spans, following, ignore_index=-1, reduction="sum")
    with torch.no_grad():
        hits = (words.argmax(1) == targets).sum().float(), (next_spans.argmax(1) == following).sum().float()
    return mlm_loss, nsp_loss, hits


def _move(values: NDArray[np.int64], step: Step) -> Tensor:
    return torch.from_numpy(values).to(step.device, non_blocking=True)


def run(work: Work, stage: RecipeStage[PretrainOptions], folder: Path) -> StageResult:
    """Train on masked words and next spans of the collection; also writes ``domain-gap.json``."""
    options = stage.options
    model, tokenizer = load_pretraining(work.model, seed=work.seed)
    documents = work.data.tokens(tokenizer)
    model.encoder.ruled = work.recipe.model.attention_layers
    store = work.data.collection.store
    gap = measure_domain_gap(store, tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "domain-gap.json", gap)
    segments = model.encoder.config.type_vocab_size
    task, held_out = (
        PretrainingTask(documents, rows, MaskingVocabulary.of(tokenizer), options, work.seed, segments=segments)
        if len(rows)
        else None
        for rows in hold_out(np.arange(len(store)), HELD_OUT_SHARE, work.seed)
    )
    assert task is not None
    save = partial(save_pretraining, model=model, tokenizer=tokenizer, max_length=options.max_length)
    how = {**work.computing, "rule": work.recipe.model.attention}
    outcome = train(model, task, options, folder, save=save, description="pre-training", **how)
    figures = {**outcome.figures(), "domain gap": gap["gap"]}
    if held_out is not None and process_number() == 0:
        figures |= _held_out_figures(work, folder / "model", held_out)
    return StageResult(folder / "model", figures=figures)


def check(work: Work, stage: RecipeStage[PretrainOptions]) -> None:
    """Raise if the vocabulary has no ``[MASK]``."""
    MaskingVocabulary.of(Tokenizer.open(find_model(work.recipe.model.start)))


def _held_out_figures(work: Work, folder: Path, task: PretrainingTask) -> dict[str, float]:
    """Measure the saved model, which may be the mean of several, on the passages it was not trained on."""
    model, _ = load_pretraining(folder)
    model.encoder.ruled = work.recipe.model.attention_layers
    place = Placer(chosen_device(work.device), work.recipe.model.attention)
    step = Step(place, HELD_OUT_TOKENS, work.seed, nullcontext, lambda loss: loss)
    figures = evaluate_pretraining(model.to(place.device), task, step)
    names = {"mlm_loss": "MLM loss", "mlm_accuracy": "MLM accuracy", "nsp_accuracy": "NSP accuracy"}
    return {f"held-out {shown}": round(figures[name], 4) for name, shown in names.items()}


# The domain gap: how far a collection's words are from those a model was pre-trained on. DR-BERT's authors found 44.3 %
# between MS MARCO and the text that BERT was pre-trained on.


TOP_WORDS = 10_000
SHOWN_WORDS = 30


def measure_domain_gap(documents: Iterable[Document], tokenizer: Tokenizer, size: int = TOP_WORDS) -> dict[str, Any]:
    """The gap, how many words were compared, and the most frequent of the missing words with their counts.

    The gap is the share of the collection's most frequent words that are not among the vocabulary's first ones.
    Only words of letters are compared: numbers and *don't* are cut differently by every tokenizer. BERT's English
    vocabularies list whole words by falling frequency in Wikipedia and BookCorpus, after a block of single characters;
    of a vocabulary in another order this is a sample of known words and no more.
    """
    counted = ((word, count) for word, count in count_words(documents).items() if word.isalpha())
    top = list(islice(counted, size))
    if not top:
        raise RankwellError("the collection has no words to compare")
    whole = [name for name in tokenizer.token_names(range(len(tokenizer))) if name.isalpha()]
    first = islice((name for name in whole if len(name) > 1), size)
    known = {fold(name) for name in (*first, *(name for name in whole if len(name) == 1))}
    missing = [(word, count) for word, count in top if fold(word) not in known]
    return {"compared": len(top), "gap": len(missing) / len(top), "missing": dict(missing[:SHOWN_WORDS])}


def fold(word: str) -> str:
    """The word in lower case without accents, as uncased BERT reads it: *café* is *cafe*."""
    if word.isascii():
        return word.lower()
    return "".join(c for c in unicodedata.normalize("NFD", word.lower()) if unicodedata.category(c) != "Mn")


def count_words(documents: Iterable[Document]) -> dict[str, int]:
    """How often each lower-cased word occurs, the most frequent first, equally frequent ones as they were met."""
    analyzer, lexicon = Analyzer.plain(), Lexicon(fold_case=True)
    counts = np.zeros(0, np.int64)
    for _, texts, *_ in document_batches(documents):
        text, ends = pack_strings(texts)
        spans, _ = analyzer.spans(text, ends)
        batch_counts = np.bincount(lexicon.intern(text, spans), minlength=max(len(lexicon), 1))
        batch_counts[: len(counts)] += counts
        counts = batch_counts
    order = np.argsort(-counts[: len(lexicon)], kind="stable")
    return dict(zip(lexicon.strings(order), counts[order].tolist(), strict=True))


READS = frozenset({"collection", "start", "attention", "seed"})
STAGES.register("pretrain")(StageKind(PretrainOptions, run, check, reads=READS))
