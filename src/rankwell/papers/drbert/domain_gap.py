"""The domain gap: how far a collection's words are from those a model was pre-trained on.

    gap = the share of the collection's 10,000 most frequent words that are not among the vocabulary's first 10,000

DR-BERT's authors found 44.3 % between MS MARCO and the text that BERT was pre-trained on.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from rankwell.core.arrays import pack_strings
from rankwell.core.errors import RankwellError
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Document
from rankwell.corpus.store import document_batches
from rankwell.inputs.tokenizer import Tokenizer

TOP_WORDS = 10_000
SHOWN_WORDS = 30


def measure_domain_gap(documents: Iterable[Document], tokenizer: Tokenizer, size: int = TOP_WORDS) -> dict[str, Any]:
    """The gap, how many words were compared, and the most frequent of the missing words with their counts.

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
