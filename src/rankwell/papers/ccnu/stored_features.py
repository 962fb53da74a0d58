"""Word features on disk: each passage goes through the frozen encoder once.

A folder of features contains ``words`` (the words of each text and the distinct word forms) and memory-mapped shards of
fp16 numbers. A text takes words × layers × width × 2 bytes: about 530 KB for 100 words in all seven layers of MiniLM, a
seventh of that for the last layer alone. Any number of processes can compute the shards (:mod:`rankwell.core.shards`).
Tags are stored in ``tags-HASH``, a folder for each tagger, so all taggers share the features.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import ArrayWriter, RaggedWriter, Rows, gather
from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder
from rankwell.core.manifest import digest, write_json
from rankwell.core.mapped import ArrayFolder, MappedArray, Ragged
from rankwell.core.progress import track
from rankwell.core.shards import Shards, map_shards
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.store import DocumentStore
from rankwell.papers.ccnu.word_features import FeatureEncoder
from rankwell.papers.ccnu.words import Tagger, WordRows, WordVocabulary, tag_words

SHARD_SIZE = 256
ALL_ABOVE = 0.75
"""Above this share of a collection, features of all documents are computed, so that other recipes can reuse them."""
TEXTS_AT_A_TIME = 4096
WORDS = "words"

TextsAt = Callable[[Rows], Sequence[str]]
"""The texts with these numbers."""


StoredWords = tuple[Ragged, Lexicon, int]
"""The words of each text, the distinct word forms, and the number of truncated texts."""


class StoredFeatures:
    """Texts' features on disk, as a :class:`~rankwell.papers.ccnu.word_features.FeatureSource`.

    ``vocabulary`` is shared with other sources: word numbers on disk are translated to its numbers.
    """

    def __init__(
        self,
        shards: Shards,
        words: StoredWords,
        vocabulary: WordVocabulary,
        shape: tuple[int, int],
        tags: NDArray[np.uint8] | None = None,
    ):
        shards.check()
        self.vocabulary = vocabulary
        self._words, forms, self.truncated = words
        """The number of texts that are longer than ``max_words`` words."""
        self._shards, self._shape, self._tags = shards, shape, tags
        self._renumber = vocabulary.add(forms.strings(range(len(forms))))
        self._arrays: dict[int, MappedArray] = {}

    def __len__(self) -> int:
        return len(self._words)

    @property
    def bytes_per_text(self) -> float:
        """The mean size of a text's features on disk."""
        return sum(path.stat().st_size for path in self._shards.paths()) / max(1, len(self))

    def lengths(self, numbers: Rows) -> Rows:
        """See :class:`~rankwell.papers.ccnu.word_features.FeatureSource`."""
        begins, ends = self._words.spans(numbers)
        return ends - begins

    def at(self, numbers: Rows) -> tuple[WordRows, NDArray[np.floating]]:
        """See :class:`~rankwell.papers.ccnu.word_features.FeatureSource`."""
        begins, ends = self._words.spans(numbers)
        out_ends = np.cumsum(ends - begins)
        words = np.empty(int(out_ends[-1]) if len(out_ends) else 0, np.int32)
        features = np.empty((len(words), *self._shape), np.float16)
        rows = zip(numbers.tolist(), begins.tolist(), ends.tolist(), out_ends.tolist(), strict=True)
        for number, begin, end, out_end in rows:
            out = slice(out_end - (end - begin), out_end)
            words[out] = self._words.values[begin:end]
            shard, first = self._shard(number // self._shards.size)
            shard.check_row(begin - first, end - first)
            features[out] = shard.values[begin - first : end - first]
        tags = None if self._tags is None else self._tags[gather(begins, ends - begins)]
        return WordRows(self._renumber[words], out_ends, tags), features

    def _shard(self, number: int) -> tuple[MappedArray, int]:
        """A shard's features (words, K, H), and the number of its first word."""
        items = self._shards.items(number)
        first, last = self._words.span(items.start)[0], self._words.span(items.stop - 1)[1]
        if number not in self._arrays:
            self._arrays[number] = self._shards.map(number, np.float16, (last - first, *self._shape))
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
    tagger: Tagger | None = None,
) -> StoredFeatures:
    """The features of ``count`` texts in ``folder``; missing ones are computed. ``name`` identifies the texts."""
    vocabulary = WordVocabulary(encoder.vocabulary.tokenizer)
    stored = _store_words(encoder, vocabulary, texts_at, count, folder, max_words)
    config: dict[str, Any] = {"encoder": encoder.digest, "layers": encoder.layers, "texts": name}
    config |= {"max_words": max_words, "tokens": vocabulary.tokenizer.digest}
    shards = Shards(folder, count, shard_size, config, suffix=".f16")
    words, forms, _ = stored
    renumber = encoder.vocabulary.add(forms.strings(range(len(forms))))

    def work(items: range, file: IO[bytes]) -> None:
        begins, ends = words.spans(np.arange(items.start, items.stop))
        first = int(begins[0])
        some = WordRows(renumber[words.values[first : int(ends[-1])]], ends - first)
        file.write(encoder.compute(some).data)

    map_shards(shards, work, description="computing features")
    tags = None if tagger is None else _store_tags(tagger, stored, encoder.vocabulary, renumber, folder)
    return StoredFeatures(shards, stored, encoder.vocabulary, (encoder.layers, encoder.width), tags)


@dataclass(frozen=True, eq=False)
class PassageFeatures:
    """The features of a store's documents, numbered as in the store: of all, or of those in ``rows`` (ascending)."""

    store: DocumentStore
    features: StoredFeatures
    rows: Rows | None = None

    @property
    def vocabulary(self) -> WordVocabulary:
        """See :class:`~rankwell.papers.ccnu.word_features.FeatureSource`."""
        return self.features.vocabulary

    def numbers(self, docids: Sequence[str]) -> Rows:
        """The documents' numbers. Raises for the first unknown id."""
        return self.store.numbers(docids)

    def lengths(self, numbers: Rows) -> Rows:
        """See :class:`~rankwell.papers.ccnu.word_features.FeatureSource`."""
        return self.features.lengths(self._stored(numbers))

    def at(self, numbers: Rows) -> tuple[WordRows, NDArray[np.floating]]:
        """See :class:`~rankwell.papers.ccnu.word_features.FeatureSource`."""
        return self.features.at(self._stored(numbers))

    def _stored(self, numbers: Rows) -> Rows:
        """The documents' numbers among the stored features."""
        if self.rows is None:
            return numbers
        stored = np.searchsorted(self.rows, numbers)
        if len(numbers) and (self.rows.take(stored, mode="clip") != numbers).any():
            raise RankwellError(f"{self.store.folder}: no features were computed for a passage outside the candidates")
        return stored


def open_features(
    store: DocumentStore,
    encoder: FeatureEncoder,
    rows: Rows | None = None,
    *,
    max_words: int = 256,
    shard_size: int = SHARD_SIZE,
    tagger: Tagger | None = None,
) -> PassageFeatures:
    """The features of a store's documents, or of those numbered ``rows``; missing ones are computed and stored."""
    config: list[Any] = [encoder.digest, encoder.layers, max_words, shard_size]
    rows = None if rows is None else np.unique(rows).astype(np.int64)
    if rows is None or len(rows) > ALL_ABOVE * len(store):
        rows, some, name = None, np.arange(len(store)), "documents"
    else:
        some, name = rows, blake2b(rows.tobytes(), digest_size=16).hexdigest()
        config.append(name)
    features = store_features(
        encoder,
        lambda numbers: store.texts_at(some[numbers]),
        len(some),
        store.folder / f"features-{digest(config)}",
        name=name,
        max_words=max_words,
        shard_size=shard_size,
        tagger=tagger,
    )
    return PassageFeatures(store, features, rows)


def _store_words(
    encoder: FeatureEncoder, vocabulary: WordVocabulary, texts_at: TextsAt, count: int, folder: Path, max_words: int
) -> StoredWords:
    """The words of all texts. Each folder numbers words by itself, so every process writes the same files."""
    target = folder / WORDS
    with _written_once(target) as temporary:
        if temporary is not None:
            truncated = 0
            with RaggedWriter(temporary, "rows", np.int32) as writer:
                for begin in track(range(0, count, TEXTS_AT_A_TIME), "reading words", unit="batches"):
                    whole = vocabulary.read(texts_at(np.arange(begin, min(begin + TEXTS_AT_A_TIME, count))))
                    words = vocabulary.fit(whole, max_words, encoder.max_pieces)
                    truncated += int((words.lengths() < whole.lengths()).sum())
                    writer.append(words.numbers, words.ends)
            vocabulary.forms.save(temporary, "forms")
            write_json(temporary / "words.json", {"texts": count, "cut": truncated})
    arrays = ArrayFolder(target)
    truncated = int(json.loads(arrays.read_bytes("words.json"))["cut"])
    rows = Ragged.open(arrays, "rows", np.int32)
    if len(rows) != count:
        raise RankwellError(f"{target} has the words of {len(rows):,} texts, not of {count:,}; delete {folder}")
    return rows, Lexicon.open(arrays, "forms"), truncated


def _store_tags(
    tagger: Tagger, stored: StoredWords, vocabulary: WordVocabulary, renumber: NDArray[np.int32], folder: Path
) -> NDArray[np.uint8]:
    """The tags (T, 2) of the words of all texts."""
    rows, target = stored[0], folder / f"tags-{digest([tagger.version])}"
    with _written_once(target) as temporary:
        if temporary is not None:
            with ArrayWriter(temporary / "tags.npy", np.uint8) as writer:
                for begin in track(range(0, len(rows), 256), "tagging words", unit="groups of passages"):
                    begins, ends = rows.spans(np.arange(begin, min(begin + 256, len(rows))))
                    first = int(begins[0])
                    some = WordRows(renumber[rows.values[first : int(ends[-1])]], ends - first)
                    tags = tag_words(tagger, vocabulary, some).tags
                    assert tags is not None
                    writer.append(tags.reshape(-1))
    tags = ArrayFolder(target).map("tags", np.uint8).whole().reshape(-1, 2)
    if len(tags) != len(rows.values):
        raise RankwellError(f"{target} has the tags of {len(tags):,} words, not of {len(rows.values):,}; delete it")
    return tags


@contextmanager
def _written_once(target: Path) -> Iterator[Path | None]:
    """A temporary folder that becomes ``target``; None if it exists. Processes may write the same files at once."""
    if target.is_dir():
        yield None
        return
    try:
        with atomic_folder(target) as temporary:
            yield temporary
    except RankwellError:
        if not target.is_dir():  # otherwise another process has just written the same files
            raise
