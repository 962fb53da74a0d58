"""DeepCT: how much each word of a passage matters, as term frequencies for the index (Dai and Callan, 2019).

A model reads ``[CLS] passage [SEP]`` and gives each piece a weight; a word has the weight of its first piece. Passages
longer than the model's maximum length are read in windows that overlap by half. The weight of a term is the largest
that any word with its stem has in any window.

:class:`WeighJob` weighs a collection in shards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankwell.core.arrays import Rows, pack_strings
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.shards import Shards, ShardWork
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.formats import read_weights
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import TermWeights
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.batching import Sequences, slice_sequences
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import Reader
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.folders import (
    encoder_settings,
    fill_if_present,
    label_settings,
    write_folder,
)
from rankwell.models.checkpoints.names import find_model
from rankwell.models.checkpoints.tensors import encoder_tensors
from rankwell.models.compute import CPU_BUDGET, Compute
from rankwell.models.encoder import Encoder
from rankwell.models.layout import Layout, Packed
from rankwell.models.new_heads import seeded
from rankwell.papers.shared.bert import load_bert
from rankwell.papers.shared.passages import PassageJob

# BERT with a weight for each token, and its folders


class TokenWeightModel(nn.Module):
    """A weight for each token (DeepCT): one linear output, and no sigmoid."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(encoder.config.hidden_dropout_prob)
        self.head = nn.Linear(encoder.config.hidden_size, 1)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed) -> Tensor:
        """The weights of all tokens (T,). The head is always computed in 32 bits."""
        states: Tensor = self.encoder(tokens, segments, positions, layout, first_only=False)
        with torch.autocast(states.device.type, enabled=False):
            weight, bias = self.head.weight.float(), self.head.bias.float()
            return nn.functional.linear(self.dropout(states.float()), weight, bias)[:, 0]


def load_token_weights(folder: str | Path, *, seed: int = 0) -> tuple[TokenWeightModel, Tokenizer]:
    """A BERT that weighs tokens, with the folder's head if it has one, else a new one."""
    folder = find_model(folder)
    encoder, tensors, tokenizer = load_bert(folder, "token weights")
    with seeded(seed):
        model = TokenWeightModel(encoder)
    if "BertForTokenClassification" in describe(folder).architectures:
        outputs = len(tensors["classifier.weight"]) if "classifier.weight" in tensors else 0
        if outputs != 1:
            raise InputError(folder, None, f"{outputs} outputs per token, expected one")
        fill_if_present(model.head, "classifier", tensors, folder)
    return model.eval(), tokenizer


def save_token_weights(
    folder: str | Path, model: TokenWeightModel, tokenizer: Tokenizer, max_length: int | None = None
) -> None:
    """Write a folder that transformers loads as BertForTokenClassification; it must not exist yet."""
    tensors = encoder_tensors(model.encoder)
    tensors |= {f"classifier.{kind}": value for kind, value in model.head.state_dict().items()}
    description = {**encoder_settings(model.encoder, "BertForTokenClassification"), **label_settings(["weight"])}
    write_folder(folder, tensors, description, tokenizer, max_length)


# The weights of terms


STEM_BITS = 31
"""A stem's number has at most this many bits, so that row and stem fit in one integer."""


@dataclass(frozen=True, eq=False)
class TermFrequencies:
    """The terms of passages, sorted by passage and by their first occurrence in it: (P,) each."""

    rows: Rows
    stems: Rows
    frequencies: Rows


@dataclass(frozen=True, eq=False)
class WordsOfTexts:
    """The stems of texts, each with the first word that it occurs in."""

    keys: Rows
    """Text and stem as one number, ascending."""
    forms: Rows
    """The word's number."""

    def of(self, terms: TermFrequencies) -> Rows:
        """The word's number for each term."""
        wanted = (terms.rows << STEM_BITS) | terms.stems
        places = np.minimum(np.searchsorted(self.keys, wanted), max(0, len(self.keys) - 1))
        if len(wanted) and not (len(self.keys) and (self.keys[places] == wanted).all()):
            raise RankwellError("the stored tokens do not belong to the texts; remove them to have them made again")
        return self.forms[places] if len(wanted) else np.empty(0, np.int64)


class StemWords:
    """Finds the words of texts by stem. Each distinct word is stemmed once, however many texts contain it."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._analyzer = Analyzer.english()
        self._forms = Lexicon(fold_case=True)
        self._stems = np.empty(0, np.int64)

    def read(self, texts: Sequence[str]) -> WordsOfTexts:
        """The lower-cased words of texts."""
        packed, ends = pack_strings(list(texts))
        spans, counts = self._analyzer.spans(packed, ends)
        forms = self._forms.intern(packed, spans).astype(np.int64)
        self._stem_new_forms()
        rows = np.repeat(np.arange(len(texts)), np.diff(counts, prepend=0))
        stems = self._stems[forms]
        known = stems >= 0
        keys, first = np.unique((rows[known] << STEM_BITS) | stems[known], return_index=True)
        return WordsOfTexts(keys, forms[known][first])

    def strings(self, words: WordsOfTexts, terms: TermFrequencies) -> list[str]:
        """The word of each term."""
        used, inverse = np.unique(words.of(terms), return_inverse=True)
        return [] if not len(used) else list(np.array(self._forms.strings(used), object)[inverse])

    def lines(self, docids: Sequence[str], words: WordsOfTexts, terms: TermFrequencies) -> Iterator[str]:
        """The documents' terms as lines of a file of weights (:mod:`rankwell.corpus.formats.texts`)."""
        used, inverse = np.unique(words.of(terms), return_inverse=True)
        names = [f"{json.dumps(word, ensure_ascii=False)}: " for word in self._forms.strings(used)]
        numbers, tf_of = np.unique(terms.frequencies, return_inverse=True)
        # Only distinct words and numbers are formatted; each term is then a concatenation of two strings.
        members = np.array([*names, ""], object)[inverse] + np.array([*map(str, numbers.tolist()), ""], object)[tf_of]
        members = members.tolist()
        ends = np.searchsorted(terms.rows, np.arange(len(docids)), side="right").tolist()
        begin = 0
        for docid, end in zip(docids, ends, strict=True):
            yield f'{{"id": {json.dumps(docid, ensure_ascii=False)}, "vector": {{{", ".join(members[begin:end])}}}}}\n'
            begin = end

    def _stem_new_forms(self) -> None:
        known = len(self._stems)
        if known == len(self._forms):
            return
        pieces = self._tokenizer.encode(self._forms.strings(range(known, len(self._forms))), stems=True)
        stems = np.full(len(pieces), -1, np.int64)
        rows = np.repeat(np.arange(len(pieces)), pieces.lengths())
        stems[rows[pieces.opens][::-1]] = pieces.stems[pieces.opens][::-1]  # if there are several, the first one counts
        self._stems = np.concatenate([self._stems, stems])


MAX_LENGTH = 256
SHARD_SIZE = 4096


@dataclass(frozen=True, eq=False)
class PassageWindows:
    """Passages as a model reads them: one sequence per window.

    ==============  =========  ====================================================================
    ``sequences``   (W)        ``[CLS] window [SEP]``
    ``owners``      (W,)       the passage of each window, ascending
    ``tokens``      (F,)       the tokens, among the sequences', that are the first piece of a word
    ``rows``        (F,)       the passage of each of them
    ``stems``       (F,)       the number of each word's stem
    ==============  =========  ====================================================================
    """

    sequences: Sequences
    owners: Rows
    tokens: Rows
    rows: Rows
    stems: Rows

    def part(self, begin: int, end: int) -> PassageWindows:
        """The windows from ``begin`` to ``end``, as views."""
        ends = self.sequences.ends
        first, last = (int(ends[begin - 1]) if begin else 0), (int(ends[end - 1]) if end else 0)
        a, b = np.searchsorted(self.tokens, [first, last]).tolist()
        sequences, owners = slice_sequences(self.sequences, begin, end), self.owners[begin:end]
        return PassageWindows(sequences, owners, self.tokens[a:b] - first, self.rows[a:b], self.stems[a:b])


def lay_out_passages(reader: Reader, pieces: Pieces) -> PassageWindows:
    """Passages in the reader's windows. Punctuation and stop words have no weights."""
    if len(pieces.stems) != len(pieces.ids):
        raise ValueError("term weights need pieces with stems")
    laid = reader.lay_out({"query": pieces})
    windows, owners = laid.fields["query"], laid.owners
    window_of = np.repeat(np.arange(len(windows)), windows.lengths())
    firsts = np.flatnonzero(windows.opens)
    # A window's pieces come after its [CLS] and both special tokens of every window before it.
    tokens = firsts + 1 + 2 * window_of[firsts]
    rows, stems = owners[window_of[firsts]], windows.stems[firsts].astype(np.int64)
    return PassageWindows(laid.sequences, owners, tokens, rows, stems)


@dataclass(frozen=True)
class WeightOptions:
    """How weights become term frequencies: round(scale·y), or round(scale·√y) with ``root``. Zeros are dropped."""

    scaling: str = "linear"
    scale: float = 100.0

    def __post_init__(self) -> None:
        if self.scaling not in ("linear", "root"):
            raise RankwellError(f"no scaling of term weights is called {self.scaling!r} (known: linear, root)")
        if not self.scale > 0:
            raise RankwellError(f"term weights cannot be scaled by {self.scale:g}")

    def frequencies(self, weights: NDArray[np.float32]) -> Rows:
        """Weights as whole numbers; terms with 0 are dropped."""
        positive = np.maximum(weights.astype(np.float64), 0.0)
        return np.rint(self.scale * (np.sqrt(positive) if self.scaling == "root" else positive)).astype(np.int64)


def term_frequencies(passages: PassageWindows, weights: NDArray[np.float32], options: WeightOptions) -> TermFrequencies:
    """The terms with a frequency of at least 1, given the weight of each word (F,)."""
    keys = (passages.rows << STEM_BITS) | passages.stems
    order = np.argsort(keys, kind="stable")
    groups = np.flatnonzero(np.diff(keys[order], prepend=-1))
    largest = np.maximum.reduceat(weights[order], groups) if len(groups) else weights
    frequencies, first = options.frequencies(largest), order[groups]
    terms = np.flatnonzero(frequencies >= 1)
    terms = terms[np.argsort(first[terms])]
    return TermFrequencies(passages.rows[first[terms]], passages.stems[first[terms]], frequencies[terms])


def find_weigher(model: str | Path) -> Path:
    """The folder of a model that weighs tokens; raises if the model is of another kind."""
    folder = find_model(model)
    if "BertForTokenClassification" not in describe(folder).architectures:
        raise InputError(folder, None, "not a model that weighs tokens; `rankwell train deepct` trains one")
    return folder


class TermWeigher:
    """A trained model that weighs the words of passages, on one device.

    ``max_length`` is the maximum length of a window; other options are those of
    :class:`~rankwell.models.compute.Compute`.
    """

    def __init__(self, model: TokenWeightModel, tokenizer: Tokenizer, *, max_length: int | None = None, **options: Any):
        config = model.encoder.config
        limit = config.max_position_embeddings
        self.max_length = max_length or min(limit, tokenizer.max_length or MAX_LENGTH)
        if not 8 <= self.max_length <= limit:
            raise RankwellError(f"max_length is {self.max_length} tokens; this model takes 8 to {limit}")
        self.model, self.tokenizer = model, tokenizer
        self._compute = Compute(model, model.encoder, cpu_budget=2 * CPU_BUDGET, **options)
        self.device = self._compute.device
        segments = config.type_vocab_size
        self._reader = Reader.of_texts(tokenizer, self.max_length, windows=Windows(), segments=segments)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> TermWeigher:
        """Load a checkpoint that weighs tokens."""
        model, tokenizer = load_token_weights(find_weigher(folder))
        return cls(model, tokenizer, **options)

    def lay_out(self, pieces: Pieces) -> PassageWindows:
        """Passages as this model reads them."""
        return lay_out_passages(self._reader, pieces)

    def weigh(self, passages: PassageWindows) -> NDArray[np.float32]:
        """The weight of each word (F,)."""
        return self.submit(passages)()

    def submit(self, passages: PassageWindows) -> Callable[[], NDArray[np.float32]]:
        """Start weighing and return a function that waits for the weights; a GPU computes in the background."""
        token_weights = self._compute.run(passages.sequences, self._forward)
        word_weights = token_weights[torch.from_numpy(passages.tokens).to(self.device)]
        return lambda: word_weights.cpu().numpy()

    def _forward(self, batch: Sequences) -> Tensor:
        weights: Tensor = self.model(*self._compute.place(batch))
        return weights

    def frequencies(self, pieces: Pieces, options: WeightOptions) -> TermFrequencies:
        """The terms of passages."""
        passages = self.lay_out(pieces)
        return term_frequencies(passages, self.weigh(passages), options)


def weigh_texts(weigher: TermWeigher, texts: Sequence[str], options: WeightOptions) -> list[dict[str, int]]:
    """The words of a few texts with their term frequencies."""
    terms = weigher.frequencies(weigher.tokenizer.encode(texts, stems=True), options)
    stem_words = StemWords(weigher.tokenizer)
    words = stem_words.strings(stem_words.read(texts), terms)
    vectors: list[dict[str, int]] = [{} for _ in texts]
    for row, word, frequency in zip(terms.rows.tolist(), words, terms.frequencies.tolist(), strict=True):
        vectors[row][word] = frequency
    return vectors


@dataclass(frozen=True)
class WeighJob(PassageJob):
    """Weighs the terms of documents."""

    options: WeightOptions = field(default_factory=WeightOptions)
    shard_size: int = SHARD_SIZE

    shards = "weights"
    description = "weighing terms"
    stems = True

    def open(self, store: DocumentStore) -> ShardWork:
        """Load the model; returns what writes the weights of documents."""
        weigher = TermWeigher.from_pretrained(self.model, device=self.device)
        tokens = StoredTokens.open(store.documents, weigher.tokenizer, stems=True)
        stem_words = StemWords(weigher.tokenizer)

        def weigh(items: range, file: IO[bytes]) -> None:
            numbers = np.asarray(items, np.int64)
            passages = weigher.lay_out(tokens.at(numbers))
            weights = weigher.submit(passages)
            # Read while a GPU computes.
            docids, words = store.docids.strings(items), stem_words.read(store.texts_at(numbers))
            terms = term_frequencies(passages, weights(), self.options)
            file.writelines(line.encode("utf-8", "surrogatepass") for line in stem_words.lines(docids, words, terms))

        return weigh


def read_shards(shards: Shards) -> Iterator[TermWeights]:
    """The weights of all documents, in order."""
    for path in shards.paths():
        yield from read_weights(path)
