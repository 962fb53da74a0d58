"""Weighing a whole collection, shard by shard, into files of term weights.

The files hold words, not stems: an index stems what it is given, and a stem stemmed again may be another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import pack_strings
from rankwell.core.errors import RankwellError
from rankwell.core.shards import Shards, map_shards
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.formats import read_weights
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import TermWeights
from rankwell.corpus.store import DocumentStore
from rankwell.enrich.term_weights import STEM_BITS, TermFrequencies, TermWeigher, WeightOptions, term_frequencies
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer

SHARD_SIZE = 4096


@dataclass(frozen=True, eq=False)
class WordsOfTexts:
    """The stems of texts, each with the first word that has it: text and stem as one number, ascending, and forms."""

    keys: NDArray[np.int64]
    forms: NDArray[np.int64]

    def of(self, terms: TermFrequencies) -> NDArray[np.int64]:
        """The form of each term."""
        wanted = (terms.rows << STEM_BITS) | terms.stems
        places = np.minimum(np.searchsorted(self.keys, wanted), max(0, len(self.keys) - 1))
        if len(wanted) and not (len(self.keys) and (self.keys[places] == wanted).all()):
            raise RankwellError("the stored tokens are not those of the texts; remove them to have them made anew")
        return self.forms[places] if len(wanted) else np.empty(0, np.int64)


class StemWords:
    """Finds the words of texts by stem. A word's stem is looked up once, however many texts have it."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._analyzer = Analyzer.english()
        self._forms = Lexicon(fold_case=True)
        self._stems = np.empty(0, np.int64)

    def read(self, texts: Sequence[str]) -> WordsOfTexts:
        """The words of texts, lower-cased."""
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
        """The documents' terms as lines of a file of weights (:mod:`rankwell.corpus.formats.weights`)."""
        used, inverse = np.unique(words.of(terms), return_inverse=True)
        names = [f"{json.dumps(word, ensure_ascii=False)}: " for word in self._forms.strings(used)]
        numbers, tf_of = np.unique(terms.frequencies, return_inverse=True)
        # Strings are made for what is distinct alone; for each term there is one addition of two of them.
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
        stems[rows[pieces.opens][::-1]] = pieces.stems[pieces.opens][::-1]  # of several, the first stays
        self._stems = np.concatenate([self._stems, stems])


def weigh_texts(weigher: TermWeigher, texts: Sequence[str], options: WeightOptions) -> list[dict[str, int]]:
    """The words of a few texts with their term frequencies."""
    terms = weigher.frequencies(weigher.tokenizer.encode(texts, stems=True), options)
    found = StemWords(weigher.tokenizer)
    words = found.strings(found.read(texts), terms)
    vectors: list[dict[str, int]] = [{} for _ in texts]
    for row, word, frequency in zip(terms.rows.tolist(), words, terms.frequencies.tolist(), strict=True):
        vectors[row][word] = frequency
    return vectors


def weigh_collection(
    store: DocumentStore,
    weigher: TermWeigher,
    options: WeightOptions,
    folder: Path,
    *,
    model: str,
    shard_size: int = SHARD_SIZE,
) -> Shards:
    """The term weights of all documents, as shards in ``folder``; what is there already is not made again.

    ``model`` names the weights (``models.checkpoints.identity``). Several processes may weigh into one folder at once.
    """
    tokens = StoredTokens.open(store, weigher.tokenizer, stems=True)
    found = StemWords(weigher.tokenizer)
    config: dict[str, Any] = {"model": model, "tokens": weigher.tokenizer.digest, "max_length": weigher.max_length}
    config |= {"scaling": options.scaling, "scale": options.scale}
    shards = Shards(folder, len(store), shard_size, config)

    def work(items: range, file: IO[bytes]) -> None:
        numbers = np.asarray(items, np.int64)
        passages = weigher.lay_out(tokens.at(numbers))
        weights = weigher.submit(passages)
        docids, words = store.docids.strings(items), found.read(store.texts_at(numbers))  # while a GPU computes
        terms = term_frequencies(passages, weights(), options)
        file.writelines(line.encode("utf-8", "surrogatepass") for line in found.lines(docids, words, terms))

    map_shards(shards, work, description="weighing terms")
    return shards


def read_shards(shards: Shards) -> Iterator[TermWeights]:
    """The weights of all documents, in order."""
    for path in shards.paths():
        yield from read_weights(path)


def tf_counts(shards: Shards) -> NDArray[np.int64]:
    """How many terms have each term frequency, from 0 on."""
    counts = np.zeros(1, np.int64)
    for path in shards.paths():
        found = np.fromiter((tf for document in read_weights(path) for tf in document.weights.values()), np.int64)
        here = np.bincount(found, minlength=len(counts))
        here[: len(counts)] += counts
        counts = here
    return counts
