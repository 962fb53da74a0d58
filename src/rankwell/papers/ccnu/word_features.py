"""Word features from a frozen encoder, and batches of them for the network.

A word's feature is the mean of its pieces' states in each of the encoder's last K layers: (words, K, H) in fp16. A
:class:`FeatureSource` has the features of texts, in memory or on disk.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwell.core.arrays import Rows, gather, positions
from rankwell.core.errors import InputError, RankwellError, excerpt
from rankwell.core.files import read_lines
from rankwell.core.manifest import digest, file_digest
from rankwell.core.progress import track
from rankwell.corpus.lexicon import Lexicon
from rankwell.inputs.batching import take_sequences
from rankwell.models.batch import Batch
from rankwell.models.checkpoints.names import encoder_digest, find_model
from rankwell.models.compute import CPU_BUDGET, GPU_BUDGET, Compute
from rankwell.models.encoder import Encoder
from rankwell.papers.ccnu.network import WordBatch
from rankwell.papers.ccnu.words import WordRows, WordVocabulary, lay_out_words, match_features
from rankwell.papers.shared.bert import load_bert

INDEX_SUFFIXES = (".txt", ".txt.gz", ".parquet")


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and their vectors; ``digest`` identifies the files."""

    words: Lexicon
    matrix: NDArray[np.floating]
    digest: str

    @property
    def size(self) -> int:
        """The length of a vector."""
        return int(self.matrix.shape[1])

    def at(self, forms: Sequence[str]) -> NDArray[np.float32]:
        """The vectors (n, size) of words: of the word as written, else of its lower-cased form, else zeros."""
        exact = self.words.find(list(forms))
        rows = np.where(exact >= 0, exact, self.words.find([form.lower() for form in forms]))
        vectors = np.zeros((len(rows), self.size), np.float32)
        vectors[rows >= 0] = self.matrix[rows[rows >= 0]]
        return vectors


def open_vectors(path: str | Path) -> WordVectors:
    """Open the vectors of a file or folder."""
    path = Path(path)
    if path.is_dir():
        return _from_array(_only(path, (".npy",)), _only(path, INDEX_SUFFIXES))
    if path.suffix != ".npy":
        return _from_text(path)
    index = next((path.with_suffix(s) for s in INDEX_SUFFIXES if path.with_suffix(s).is_file()), None)
    if index is None:
        raise InputError(path, None, f"its list of words is missing; expected {path.with_suffix('.txt').name}")
    return _from_array(path, index)


def _only(folder: Path, suffixes: tuple[str, ...]) -> Path:
    files = sorted(file for file in folder.iterdir() if file.name.endswith(suffixes) and file.is_file())
    if len(files) != 1:
        raise InputError(folder, None, f"{len(files)} files {' or '.join(f'*{s}' for s in suffixes)}, expected one")
    return files[0]


def _from_array(path: Path, index: Path) -> WordVectors:
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(path, None, f"not an array of numbers ({error})") from None
    words = Lexicon()
    names = _index_words(index)
    numbers = words.add(names)
    if matrix.ndim != 2 or matrix.dtype.kind != "f" or len(matrix) != len(names):
        shape = f"{matrix.dtype} of the shape {matrix.shape}"
        raise InputError(path, None, f"{shape}, but {index.name} has {len(names):,} words")
    if len(words) != len(names):
        twice = names[int((numbers != np.arange(len(names))).argmax())]
        raise InputError(index, None, f"the word {excerpt(twice)} occurs twice")
    return WordVectors(words, matrix, digest([file_digest(path), file_digest(index)]))


def _index_words(index: Path) -> list[str]:
    if index.suffix != ".parquet":
        return [line for _, line in read_lines(index)]
    try:
        from pyarrow import parquet
    except ImportError:
        raise RankwellError(
            f"{index}: reading it needs the package pyarrow; or write the words to a .txt file, one per line"
        ) from None
    return [str(word) for word in parquet.read_table(index).column(0).to_pylist()]


def _from_text(path: Path) -> WordVectors:
    words = Lexicon()
    rows: list[NDArray[np.float32]] = []
    size = 0
    for number, line in track(read_lines(path), "reading word vectors", unit="words"):
        line = line.rstrip()
        if number == 1 and re.fullmatch(r"\d+ \d+", line):  # a header
            continue
        size = size or len(line.split(" ")) - 1
        # From the right: some words in GloVe contain spaces.
        word, *values = line.rsplit(" ", size) if size else [""]
        try:
            vector = np.array(values, np.float32)
        except ValueError:
            vector = np.zeros(0, np.float32)
        if not word or not size or len(vector) != size or not np.isfinite(vector).all():
            raise InputError(path, number, f"found {excerpt(line)}, expected a word and {size or 'its'} numbers")
        if words.number(word) < 0:  # of repeated words the first counts: files are sorted by frequency
            words.add([word])
            rows.append(vector)
    if not rows:
        raise InputError(path, None, "has no word vectors")
    return WordVectors(words, np.stack(rows), file_digest(path))


MOST_LANES = 8
Features = NDArray[np.float16]


class FeatureSource(Protocol):
    """Numbered texts as words with features. All sources of a batch share one vocabulary."""

    @property
    def vocabulary(self) -> WordVocabulary:
        """The vocabulary that numbers the words."""
        ...

    def lengths(self, numbers: Rows) -> Rows:
        """The number of words of each text."""
        ...

    def at(self, numbers: Rows) -> tuple[WordRows, NDArray[np.floating]]:
        """The words of these texts and their features (T, K, H), or (T, H) if the layers are mixed already."""
        ...


@dataclass(frozen=True, eq=False)
class InMemoryFeatures:
    """Features in memory."""

    vocabulary: WordVocabulary
    words: WordRows
    features: NDArray[np.floating]

    def lengths(self, numbers: Rows) -> Rows:
        """See :class:`FeatureSource`."""
        return self.words.lengths()[numbers]

    def at(self, numbers: Rows) -> tuple[WordRows, NDArray[np.floating]]:
        """See :class:`FeatureSource`."""
        words = self.words.take(numbers)
        lengths = words.lengths()
        return words, self.features[gather(self.words.ends[numbers] - lengths, lengths)]


class FeatureEncoder:
    """A frozen BERT that computes word features in fp32.

    ``layers`` is the number of last layers to use; by default all, including the embeddings.
    """

    def __init__(
        self,
        encoder: Encoder,
        vocabulary: WordVocabulary,
        *,
        layers: int | None = None,
        device: str | None = None,
        budget: int | None = None,
        name: str = "",
    ):
        known = encoder.config.num_hidden_layers + 1
        if layers is not None and not 1 <= layers <= known:
            raise RankwellError(f"cannot use {layers} layers of an encoder that has {known}, embeddings included")
        self.layers = layers or known
        self.encoder = encoder.requires_grad_(False)
        # The states of all layers are held at once: on a GPU batches are smaller than a ranker's, on a CPU lanes fewer.
        self._compute = Compute(
            encoder,
            device=device,
            dtype="fp32",
            budget=budget,
            gpu_budget=GPU_BUDGET // 4,
            cpu_budget=2 * CPU_BUDGET,
            lanes=min(MOST_LANES, torch.get_num_threads()),
        )
        self.device = self._compute.device
        self.vocabulary = vocabulary
        self.digest = name
        """Identifies the encoder's weights and tokenizer."""

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, layers: int | None = None, device: str | None = None, budget: int | None = None
    ) -> FeatureEncoder:
        """Load the encoder of any BERT checkpoint; its head is ignored."""
        folder = find_model(folder)
        encoder, _, tokenizer = load_bert(folder, "SDNet")
        name = encoder_digest(folder)
        return cls(encoder, WordVocabulary(tokenizer), layers=layers, device=device, budget=budget, name=name)

    @property
    def width(self) -> int:
        """H, the width of a state."""
        return self.encoder.config.hidden_size

    @property
    def max_pieces(self) -> int:
        """Maximum number of pieces of a text: the encoder's positions, less [CLS] and [SEP]."""
        return self.encoder.config.max_position_embeddings - 2

    def compute(self, words: WordRows) -> Features:
        """The features (T, K, H) of the words of texts, which must fit the encoder."""
        sequences, counts = lay_out_words(self.vocabulary, words)
        features = np.empty((len(words.numbers), self.layers, self.width), np.float16)
        begins, lengths = words.ends - words.lengths(), words.lengths()

        def compute(rows: Rows) -> None:
            index = gather(begins[rows], lengths[rows])  # the words of these texts, in the order of the batch
            if len(index):
                states = self._states(self._compute.place(take_sequences(sequences, rows)))
                features[index] = pool_words(states, counts[index], lengths[rows]).to(torch.float16).cpu().numpy()

        self._compute.each_batch(sequences.lengths(), compute)
        return features

    def read(self, texts: Sequence[str], max_words: int) -> InMemoryFeatures:
        """Compute the features of texts, each truncated to ``max_words`` words."""
        words = self.vocabulary.fit(self.vocabulary.read(texts), max_words, self.max_pieces)
        return InMemoryFeatures(self.vocabulary, words, self.compute(words))

    def _states(self, batch: Batch) -> Tensor:
        """The last K layers' states of all tokens: (tokens, K, H)."""
        x = self.encoder.embed(batch.tokens, batch.segments, batch.positions)
        states = [x]
        for layer in self.encoder.layers:
            x = layer(x, batch.layout)
            states.append(x)
        return torch.stack(states[-self.layers :], dim=1)


def pool_words(states: Tensor, pieces: Rows, words: Rows) -> Tensor:
    """The mean of each word's pieces: (tokens, K, H) → (T, K, H).

    ``pieces`` (T,) is the number of pieces of each word, ``words`` (B,) the number of words of each text.
    """
    text_of = np.repeat(np.arange(len(words)), words)
    # A word follows its text's [CLS] and both special tokens of every earlier text.
    begins = np.cumsum(pieces) - pieces + 1 + 2 * text_of
    of_words = states.index_select(0, torch.from_numpy(gather(begins, pieces)).to(states.device))
    lengths = torch.from_numpy(pieces).to(states.device)
    means: Tensor = torch.segment_reduce(of_words.flatten(1), "mean", lengths=lengths)
    return means.view(len(pieces), *states.shape[1:])


class WordTable:
    """The word vectors of a vocabulary on a device: from a file, or the encoder's input embeddings."""

    def __init__(self, vocabulary: WordVocabulary, source: WordVectors | Encoder, device: torch.device):
        self._vocabulary = vocabulary
        self._source = source
        self._embeddings: Tensor | None = None
        if isinstance(source, Encoder):
            embeddings = source.tokens.weight.detach().float()
            # Scaled, because BERT's embeddings are some twenty times smaller than its states.
            self._embeddings = (embeddings / embeddings.square().mean().sqrt()).cpu()
        self.size = source.size if isinstance(source, WordVectors) else source.config.hidden_size
        self._table = torch.zeros(0, self.size, device=device)

    def at(self, words: NDArray[np.int32]) -> Tensor:
        """The vectors (T, E) of words by number."""
        if len(self._table) < len(self._vocabulary):
            fresh = self._describe(range(len(self._table), len(self._vocabulary)))
            self._table = torch.cat([self._table, fresh.to(self._table.device)])
        return self._table.index_select(0, torch.from_numpy(words.astype(np.int64)).to(self._table.device))

    def _describe(self, numbers: range) -> Tensor:
        if isinstance(self._source, WordVectors):
            return torch.from_numpy(self._source.at(self._vocabulary.forms.strings(numbers)))
        assert self._embeddings is not None
        pieces = self._vocabulary.pieces.take(np.arange(numbers.start, numbers.stop))
        vectors = self._embeddings.index_select(0, torch.from_numpy(pieces.ids.astype(np.int64)))
        return torch.segment_reduce(vectors, "mean", lengths=torch.from_numpy(pieces.lengths())).nan_to_num()


class PairBatch(NamedTuple):
    """The network's input: ``model(*batch)``."""

    queries: WordBatch
    passages: WordBatch
    query_of: Tensor
    matches: Tensor


@dataclass(frozen=True, eq=False)
class PairMaker:
    """Makes batches of pairs on a device."""

    queries: FeatureSource
    passages: FeatureSource
    table: WordTable
    device: torch.device

    def __call__(self, queries: Rows, passages: Rows) -> PairBatch:
        """Pair ``i`` is query ``queries[i]`` with passage ``passages[i]``. Each query is laid out once."""
        distinct, query_of = np.unique(queries, return_inverse=True)
        query_words, query_features = self.queries.at(distinct)
        words, features = self.passages.at(passages)
        matches = match_features(self.passages.vocabulary, query_words.take(query_of), words)
        return PairBatch(
            self.place(query_words, query_features),
            self.place(words, features),
            torch.from_numpy(query_of.astype(np.int64)).to(self.device, non_blocking=True),
            torch.from_numpy(matches).to(self.device, non_blocking=True),
        )

    def place(self, words: WordRows, features: NDArray[np.floating]) -> WordBatch:
        """Move texts to the device."""
        lengths = words.lengths()
        longest = max(1, int(lengths.max(initial=0)))
        rows = np.repeat(np.arange(len(words)), lengths)
        places = positions(lengths) + rows * longest
        return WordBatch(
            torch.from_numpy(features).to(self.device, non_blocking=True),
            self.table.at(words.numbers),
            torch.from_numpy(places).to(self.device, non_blocking=True),
            torch.from_numpy(lengths),
            longest,
            None if words.tags is None else torch.from_numpy(words.tags.astype(np.int64)).to(self.device),
        )
