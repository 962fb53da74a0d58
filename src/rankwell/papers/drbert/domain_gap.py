"""The domain gap: how far a collection's words are from those a model was pre-trained on.

    gap = the share of the collection's 10,000 most frequent words that are not among the reference's 10,000

The reference is, best first: a list of words by falling frequency (of the text the model was trained on), another
collection, or the model's vocabulary. DR-BERT's authors found 44.3 % between MS MARCO and BERT's corpora. Beside it the
report says how many running words the tokenizer splits: STRM changes what happens to those and to no others.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import pack_strings
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import read_lines
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Document
from rankwell.corpus.store import document_batches
from rankwell.inputs.tokenizer import Tokenizer

TOP_WORDS = 10_000
SHOWN_WORDS = 30
_FIELDS = re.compile(r"[\t ,;]")


@dataclass(frozen=True, eq=False)
class WordCounts:
    """The distinct lower-cased words of a collection, the most frequent first, and how often each occurs."""

    words: Sequence[str]
    counts: NDArray[np.int64]

    def top(self, size: int) -> list[tuple[str, int]]:
        """The most frequent words that can be compared, with their counts."""
        comparable = ((word, int(n)) for word, n in zip(self.words, self.counts, strict=True) if is_comparable(word))
        return list(islice(comparable, size))


@dataclass(frozen=True, slots=True)
class Reference:
    """The most frequent words of other text, and where they come from."""

    name: str
    words: frozenset[str]


@dataclass(frozen=True, slots=True)
class MissingWord:
    """A frequent word of the collection that the reference lacks, and what the tokenizer makes of it."""

    word: str
    count: int
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DomainGap:
    """What :func:`measure_domain_gap` found. ``str`` is a few lines for a reader, :meth:`as_json` for a file."""

    reference: str
    compared: int
    """How many of the collection's words were compared: 10,000, or all where it has fewer."""
    gap: float
    missing: tuple[MissingWord, ...]
    """The most frequent of the words that are missing."""
    running_words: int
    distinct_words: int
    split_share: float
    """The share of running words that the tokenizer splits."""
    pieces_per_word: float

    def as_json(self) -> dict[str, Any]:
        """The report for ``json.dump``."""
        return asdict(self)

    def __str__(self) -> str:
        words = ", ".join(
            f"{m.word} ({' '.join(m.pieces)})" if len(m.pieces) > 1 else m.word for m in self.missing[:SHOWN_WORDS]
        )
        return (
            f"domain gap {self.gap:.1%}: of the {self.compared:,} most frequent words, not among those of "
            f"{self.reference}\n"
            f"most frequent of them: {words or 'none'}\n"
            f"{self.running_words:,} running words, {self.distinct_words:,} distinct; the tokenizer splits "
            f"{self.split_share:.1%} of the running ones, {self.pieces_per_word:.3f} pieces a word"
        )


def is_comparable(word: str) -> bool:
    """Whether a word is of letters alone. Numbers and *don't* are cut differently by every tokenizer."""
    return word.isalpha()


def fold(word: str) -> str:
    """The word in lower case without accents, as uncased BERT reads it: *café* is *cafe*."""
    if word.isascii():
        return word.lower()
    return "".join(c for c in unicodedata.normalize("NFD", word.lower()) if unicodedata.category(c) != "Mn")


def count_words(documents: Iterable[Document]) -> WordCounts:
    """Count the words of a collection; equally frequent ones in the order they were met in."""
    analyzer, lexicon = Analyzer.plain(), Lexicon(fold_case=True)
    counts = np.zeros(0, np.int64)
    for _, texts, _ in document_batches(documents):
        text, ends = pack_strings(texts)
        spans, _ = analyzer.spans(text, ends)
        batch_counts = np.bincount(lexicon.intern(text, spans), minlength=max(len(lexicon), 1))
        batch_counts[: len(counts)] += counts
        counts = batch_counts
    counts = counts[: len(lexicon)]
    order = np.argsort(-counts, kind="stable")
    return WordCounts(lexicon.strings(order), counts[order])


def vocabulary_reference(tokenizer: Tokenizer, size: int = TOP_WORDS) -> Reference:
    """The first ``size`` whole words of a vocabulary, and its single letters.

    BERT's English vocabularies list whole words by falling frequency in Wikipedia and BookCorpus, after a block of
    single characters; of a vocabulary in another order this is a sample of known words and no more.
    """
    names = tokenizer.token_names(range(len(tokenizer)))
    whole = [name for name in names if is_comparable(name)]
    first = islice((name for name in whole if len(name) > 1), size)
    words = frozenset(map(fold, first)) | frozenset(fold(name) for name in whole if len(name) == 1)
    if not words:
        raise RankwellError("the model's vocabulary has no whole words to compare with; give a word list")
    return Reference("the model's vocabulary", words)


def word_list_reference(path: str | Path, size: int = TOP_WORDS) -> Reference:
    """The first ``size`` words of a file: one per line, the most frequent first. A count after the word is ignored."""
    fields = (_FIELDS.split(line.strip(), maxsplit=1)[0] for _, line in read_lines(path))
    words = frozenset(map(fold, islice((word for word in fields if is_comparable(word)), size)))
    if not words:
        raise InputError(path, None, "no words; expected one per line, the most frequent first")
    return Reference(str(path), words)


def measure_domain_gap(
    counts: WordCounts, tokenizer: Tokenizer, reference: Reference | None = None, size: int = TOP_WORDS
) -> DomainGap:
    """Compare a collection's words with the reference's, by default :func:`vocabulary_reference`'s."""
    reference = reference or vocabulary_reference(tokenizer, size)
    top = counts.top(size)
    if not top:
        raise RankwellError("the collection has no words to compare")
    missing = [(word, count) for word, count in top if fold(word) not in reference.words]
    shown = missing[:SHOWN_WORDS]
    cut = tokenizer.encode([word for word, _ in shown])
    names = tokenizer.token_names(cut.ids)
    pieces = [tuple(names[begin:end]) for begin, end in zip(cut.begins, cut.ends, strict=True)]
    split_share, pieces_per_word = _splitting(counts, tokenizer)
    return DomainGap(
        reference.name,
        len(top),
        len(missing) / len(top),
        tuple(MissingWord(word, count, into) for (word, count), into in zip(shown, pieces, strict=True)),
        int(counts.counts.sum()),
        len(counts.words),
        split_share,
        pieces_per_word,
    )


def _splitting(counts: WordCounts, tokenizer: Tokenizer) -> tuple[float, float]:
    """The share of running words that are split, and pieces a word. Words are the tokenizer's: *don't* is three."""
    pieces = tokenizer.encode(counts.words)
    often = np.repeat(counts.counts, pieces.lengths())  # how often each piece's word occurs
    opens = ~pieces.continues
    split = opens & np.append(pieces.continues[1:], False)[: len(opens)]
    words = int(often[opens].sum())
    return (int(often[split].sum()) / words, int(often.sum()) / words) if words else (0.0, 0.0)
