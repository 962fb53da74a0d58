"""Features of whole collections on disk: every passage passes the frozen encoder once.

A folder of features has ``words`` (which words each text has, and the distinct ones) and shards of fp16 numbers,
memory-mapped when they are read. A text takes (words × layers × width × 2) bytes: some 530 KB for 100 words in all
seven layers of a MiniLM, a seventh of it in the last layer alone. Shards are made once, by any number of processes
(:mod:`rankwell.core.shards`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Ragged, RaggedWriter
from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder
from rankwell.core.manifest import digest
from rankwell.core.progress import track
from rankwell.core.shards import Shards, map_shards
from rankwell.core.types import Rows
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.words import Vocabulary, WordRows
from rankwell.models.sdnet.word_features import FeatureEncoder

SHARD_SIZE = 256
TEXTS_AT_A_TIME = 4096
WORDS = "words"

TextsAt = Callable[[Rows], Sequence[str]]
"""The texts with these numbers."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What the encoder was given of texts: their words, the distinct forms, and how many texts were cut."""

    words: Ragged
    forms: Lexicon
    cut: int


class StoredFeatures:
    """Texts' features on disk, as a :class:`~rankwell.models.sdnet.word_features.FeatureSource`.

    ``vocabulary`` is shared with other sources: the texts' own numbers of words are turned into its.
    """

    def __init__(self, shards: Shards, reading: Reading, vocabulary: Vocabulary, shape: tuple[int, int]):
        shards.check()
        self.vocabulary = vocabulary
        self.cut = reading.cut
        """Texts of which only the first words are known."""
        self._shards, self._words, self._shape = shards, reading.words, shape
        self._renumber = vocabulary.add(reading.forms.strings(range(len(reading.forms))))
        self._arrays: dict[int, NDArray[np.float16]] = {}

    def __len__(self) -> int:
        return len(self._words)

    @property
    def bytes_per_text(self) -> float:
        """The mean size of a text's features on disk."""
        return sum(path.stat().st_size for path in self._shards.paths()) / max(1, len(self))

    def lengths(self, numbers: Rows) -> Rows:
        """See :class:`~rankwell.models.sdnet.word_features.FeatureSource`."""
        return self._words.ends[numbers] - self._begins(numbers)

    def at(self, numbers: Rows) -> tuple[WordRows, NDArray[np.floating]]:
        """See :class:`~rankwell.models.sdnet.word_features.FeatureSource`."""
        begins, ends = self._begins(numbers), self._words.ends[numbers]
        own_ends = np.cumsum(ends - begins)
        words = np.empty(int(own_ends[-1]) if len(own_ends) else 0, np.int32)
        features = np.empty((len(words), *self._shape), np.float16)
        rows = zip(numbers.tolist(), begins.tolist(), ends.tolist(), own_ends.tolist(), strict=True)
        for number, begin, end, own_end in rows:
            own = slice(own_end - (end - begin), own_end)
            words[own] = self._words.values[begin:end]
            shard, first = self._shard(number // self._shards.size)
            features[own] = shard[begin - first : end - first]
        return WordRows(self._renumber[words], own_ends), features

    def _begins(self, numbers: Rows) -> Rows:
        return np.where(numbers > 0, self._words.ends[numbers - 1], 0) if len(numbers) else numbers

    def _shard(self, number: int) -> tuple[NDArray[np.float16], int]:
        """A shard's features (words, K, H), and which of all words is its first."""
        items = self._shards.items(number)
        first = int(self._words.ends[items.start - 1]) if items.start else 0
        if number not in self._arrays:
            shape = (int(self._words.ends[items.stop - 1]) - first, *self._shape)
            path = self._shards.path(number)
            if path.stat().st_size != 2 * int(np.prod(shape)):
                raise RankwellError(f"{path} is cut short or too long; remove it to have it made anew")
            mapped = np.memmap(path, np.float16, "r", shape=shape) if shape[0] else np.empty(shape, np.float16)
            self._arrays[number] = np.asarray(mapped)
        return self._arrays[number], first


def store_features(
    encoder: FeatureEncoder,
    texts_at: TextsAt,
    count: int,
    folder: Path,
    *,
    name: str,
    max_words: int = 256,
    shard_size: int = SHARD_SIZE,
) -> StoredFeatures:
    """The features of ``count`` texts in ``folder``, made where they are not there yet; ``name`` names the texts."""
    own = Vocabulary(encoder.vocabulary.tokenizer)
    reading = _read_words(encoder, own, texts_at, count, folder, max_words)
    config: dict[str, Any] = {"encoder": encoder.digest, "layers": encoder.layers, "texts": name}
    config |= {"max_words": max_words, "tokens": own.tokenizer.digest}
    shards = Shards(folder, count, shard_size, config, suffix=".f16")
    renumber = encoder.vocabulary.add(reading.forms.strings(range(len(reading.forms))))

    def work(items: range, file: IO[bytes]) -> None:
        words = reading.words
        first = int(words.ends[items.start - 1]) if items.start else 0
        ends = words.ends[items.start : items.stop]
        some = WordRows(renumber[words.values[first : int(ends[-1])]], ends - first)
        file.write(encoder.compute(some).data)

    map_shards(shards, work, description="computing features")
    return StoredFeatures(shards, reading, encoder.vocabulary, (encoder.layers, encoder.width))


@dataclass(frozen=True, eq=False)
class PassageFeatures:
    """The features of all documents of a store, which are numbered as the store numbers them."""

    store: DocumentStore
    features: StoredFeatures

    @classmethod
    def open(
        cls, store: DocumentStore, encoder: FeatureEncoder, *, max_words: int = 256, shard_size: int = SHARD_SIZE
    ) -> PassageFeatures:
        """Those that are kept beside the store's texts, or else made now and kept there."""
        name = digest([encoder.digest, encoder.layers, max_words, shard_size])
        folder = store.folder / f"features-{name}"
        found = store_features(
            encoder, store.texts_at, len(store), folder, name="documents", max_words=max_words, shard_size=shard_size
        )
        return cls(store, found)

    @property
    def vocabulary(self) -> Vocabulary:
        """See :class:`~rankwell.models.sdnet.word_features.FeatureSource`."""
        return self.features.vocabulary

    def numbers(self, docids: Sequence[str]) -> Rows:
        """The documents' numbers; an unknown id is an error that names it."""
        return self.store.numbers(docids).astype(np.int64)

    def lengths(self, numbers: Rows) -> Rows:
        """See :class:`~rankwell.models.sdnet.word_features.FeatureSource`."""
        return self.features.lengths(numbers)

    def at(self, numbers: Rows) -> tuple[WordRows, NDArray[np.floating]]:
        """See :class:`~rankwell.models.sdnet.word_features.FeatureSource`."""
        return self.features.at(numbers)


def _read_words(
    encoder: FeatureEncoder, own: Vocabulary, texts_at: TextsAt, count: int, folder: Path, max_words: int
) -> Reading:
    """The words of all texts, in a numbering of their own that does not depend on who does the work."""
    target = folder / WORDS
    if not target.is_dir():
        try:
            with atomic_folder(target) as temporary:
                cut = 0
                with RaggedWriter(temporary, "rows", np.int32) as writer:
                    for numbers in track(list(_ranges(count)), "reading words", unit="batches"):
                        whole = own.read(texts_at(numbers))
                        words = own.fit(whole, max_words, encoder.max_pieces)
                        cut += int((words.lengths() < whole.lengths()).sum())
                        writer.append(words.numbers, words.ends)
                own.forms.save(temporary, "forms")
                (temporary / "words.json").write_text(json.dumps({"texts": count, "cut": cut}) + "\n", encoding="utf-8")
        except RankwellError:
            if not target.is_dir():  # else another process was faster, and what it made is the same
                raise
    about = json.loads((target / "words.json").read_text(encoding="utf-8"))
    rows = Ragged.open(target, "rows", np.int32)
    if len(rows) != count:
        raise RankwellError(f"{target} has the words of {len(rows):,} texts, not of {count:,}; remove {folder}")
    return Reading(rows, Lexicon.open(target, "forms"), int(about["cut"]))


def _ranges(count: int) -> Iterator[Rows]:
    return (np.arange(b, min(b + TEXTS_AT_A_TIME, count)) for b in range(0, count, TEXTS_AT_A_TIME))
