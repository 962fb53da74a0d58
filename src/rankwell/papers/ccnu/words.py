"""Texts as whole words, with their pieces, lower-cased forms and stems.

A word is a run of letters and digits, or one other character. BERT's words are the same, except for a few symbols that
it leaves joined to letters. WordPiece splits each word by itself, so the pieces of a text are those of its words in
order, and each distinct word is split, lower-cased and stemmed only once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows, gather, positions
from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.lexicon import Lexicon
from rankwell.inputs.batching import Sequences
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.tokenizer import Tokenizer

# Accents may be separate characters. Chinese has no spaces: each character is a word, as in BERT.
_ACCENTS, _CHINESE = "\u0300-\u036f", "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CHINESE}]|(?:[^\W_{_CHINESE}][{_ACCENTS}]*)+|\S")
MAX_PIECES = 64
"""Maximum number of pieces of a word. WordPiece turns words of over 100 letters into one [UNK] anyway."""


@dataclass(frozen=True, eq=False)
class WordRows:
    """Texts as word numbers: ``numbers`` (T,) in a :class:`WordVocabulary`, ``ends`` (N,) of each text.

    ``tags`` (T, 2), if known, are each word's part of speech and entity, numbered from 1 as a :class:`Tagger` lists
    them; 0 if it has none, or one that is not listed.
    """

    numbers: NDArray[np.int32]
    ends: Rows
    tags: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.ends)

    def lengths(self) -> Rows:
        """The number of words of each text."""
        return np.diff(self.ends, prepend=0)

    def take(self, rows: Rows) -> WordRows:
        """The texts with these numbers, in this order."""
        lengths = self.lengths()[rows]
        index = gather(self.ends[rows] - lengths, lengths)
        return WordRows(self.numbers[index], np.cumsum(lengths), None if self.tags is None else self.tags[index])

    def cut(self, room: Rows) -> WordRows:
        """The first ``room[i]`` words of each text ``i``."""
        lengths = self.lengths()
        places = positions(lengths)
        fits = places < np.repeat(room, lengths)
        tags = None if self.tags is None else self.tags[fits]
        return WordRows(self.numbers[fits], np.cumsum(np.minimum(lengths, room)), tags)


class WordVocabulary:
    """Numbered distinct words with their lower-cased forms, stems and pieces. Reading a text adds its new words.

    ==============  ==================  ===============================================================
    ``lower``       (V,) int32          the number of the lower-cased form
    ``stems``       (V,) int32          the number of the stem
    ``pieces``      V rows              each word's pieces; a word without pieces is never in a text
    ==============  ==================  ===============================================================
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.lower = np.zeros(0, np.int32)
        self.stems = np.zeros(0, np.int32)
        self.pieces = Pieces.plain(np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0, np.int64))
        # Stop words count as words here and can match.
        self._analyzer = Analyzer(stop_words=frozenset())
        self._forms, self._lower, self._stems = Lexicon(), Lexicon(), Lexicon()

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def forms(self) -> Lexicon:
        """The words as written."""
        return self._forms

    def add(self, forms: Sequence[str]) -> NDArray[np.int32]:
        """The numbers of words; new words are added."""
        numbers = self._forms.add(list(forms))
        if len(self._forms) > len(self):
            self._add_forms(self._forms.strings(range(len(self), len(self._forms))))
        return numbers

    def read(self, texts: Sequence[str]) -> WordRows:
        """The words of texts. Words without pieces, such as control characters, are left out."""
        split = [_WORD.findall(text) for text in texts]
        numbers = self.add(list(chain.from_iterable(split)))
        has_pieces = self.pieces.lengths()[numbers] > 0
        rows = np.repeat(np.arange(len(texts)), [len(words) for words in split])
        return WordRows(numbers[has_pieces], np.cumsum(np.bincount(rows[has_pieces], minlength=len(texts))))

    def fit(self, words: WordRows, max_words: int, max_pieces: int) -> WordRows:
        """Truncate texts to ``max_words`` words with at most ``max_pieces`` pieces together."""
        words = words.cut(np.full(len(words), max_words))
        ends = np.cumsum(self.pieces.lengths()[words.numbers])
        before = np.concatenate([[0], ends])[np.concatenate([[0], words.ends])[:-1]]
        fits = ends - np.repeat(before, words.lengths()) <= max_pieces
        rows = np.repeat(np.arange(len(words)), words.lengths())
        return words.cut(np.bincount(rows[fits], minlength=len(words)))

    def _add_forms(self, fresh: list[str]) -> None:
        """Lower-case, stem and split new words."""
        lower = [form.lower() for form in fresh]
        self.lower = np.concatenate([self.lower, self._lower.add(lower)])
        stems = [stem or form for stem, form in zip(self._analyzer.stems(lower), lower, strict=True)]
        self.stems = np.concatenate([self.stems, self._stems.add(stems)])
        pieces = self.tokenizer.encode(fresh)
        pieces = pieces.cut(pieces.begins, np.minimum(pieces.lengths(), MAX_PIECES))
        self.pieces = Pieces.concat([self.pieces, pieces])


def lay_out_words(vocabulary: WordVocabulary, words: WordRows) -> tuple[Sequences, Rows]:
    """``[CLS] text [SEP]`` for each text, and the number of pieces of each word (T,)."""
    pieces = vocabulary.pieces.take(words.numbers)
    counts, special = pieces.lengths(), vocabulary.tokenizer.special
    piece_ends = np.concatenate([[0], np.cumsum(counts)])[words.ends]
    lengths = np.diff(piece_ends, prepend=0) + 2
    ends = np.cumsum(lengths)
    begins = ends - lengths
    tokens = np.full(int(ends[-1]) if len(ends) else 0, -1, np.int32)
    tokens[begins], tokens[ends - 1] = special.cls, special.sep
    inner = np.flatnonzero(tokens == -1)
    tokens[inner] = pieces.ids
    positions = np.arange(len(tokens)) - np.repeat(begins, lengths)
    last = np.ones(len(tokens), np.bool_)
    last[inner] = False
    last[inner[pieces.ends - 1]] = True
    # A token begins a word where the token before it is the last of one.
    starts = np.concatenate([[True], last[:-1]])[: len(tokens)]
    number = np.cumsum(starts)
    word_ids = number - np.repeat(number[begins], lengths)
    segments = np.zeros(len(tokens), np.int8)
    return Sequences(tokens, segments, positions.astype(np.int32), word_ids.astype(np.int32), last, ends), counts


FEATURES = 4
"""Exact match, lower-cased match, stem match, term frequency."""


def match_features(vocabulary: WordVocabulary, queries: WordRows, documents: WordRows) -> NDArray[np.float32]:
    """How the words of document ``i`` match query ``i``: (T, 4) for all words of the documents.

    Whether the query has the same word, the same lower-cased word, or a word with the same stem; and the word's share
    of the document's words, ignoring case.
    """
    size = max(1, len(vocabulary))
    document_of = np.repeat(np.arange(len(documents)), documents.lengths())
    query_of = np.repeat(np.arange(len(queries)), queries.lengths())
    features = np.empty((len(documents.numbers), FEATURES), np.float32)
    everything = np.arange(len(vocabulary), dtype=np.int32)
    for column, kind in enumerate((everything, vocabulary.lower, vocabulary.stems)):
        in_query, in_document = kind[queries.numbers] + query_of * size, kind[documents.numbers] + document_of * size
        features[:, column] = np.isin(in_document, in_query)
    keys = vocabulary.lower[documents.numbers] + document_of * size
    _, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
    features[:, 3] = counts[which] / documents.lengths()[document_of]
    return features


# Parts of speech and named entities of words, which SDNet reads beside BERT's features


SENTENCE_ENDS = frozenset(".!?")
# The Penn Treebank's tags.
PARTS_OF_SPEECH = tuple(
    "CC CD DT EX FW IN JJ JJR JJS LS MD NN NNP NNPS NNS PDT POS PRP PRP$ RB RBR RBS RP SYM TO UH VB VBD VBG VBN VBP "
    "VBZ WDT WP WP$ WRB # $ . , : ( ) \" `` ''".split()
)


@dataclass(frozen=True, eq=False)
class Tagger:
    """Tags the words of texts."""

    parts_of_speech: tuple[str, ...]
    """The labels of parts of speech."""
    entities: tuple[str, ...]
    """The labels of entities."""
    version: str
    """Identifies the tagger: another version may tag a word differently."""
    tag: Callable[[Sequence[str]], Iterator[tuple[str, str]]]
    """The part of speech and the entity of each word of a text."""


def _textblob() -> Tagger:
    """TextBlob's part-of-speech tagger, which marks the names that it knows as persons, places or organisations."""
    try:
        from textblob.en import lexicon, parser
    except ImportError:
        raise MissingExtraError("textblob", "ccnu", "the tagger textblob") from None

    def tag(words: Sequence[str]) -> Iterator[tuple[str, str]]:
        begin = 0
        for place, word in enumerate(words):
            # The rules look at neighbouring words, and at capitals that do not begin a sentence.
            if word in SENTENCE_ENDS or place == len(words) - 1:
                # The parser looks words up; the rules for their context and the list of names have to be called.
                known = parser.find_tags(list(words[begin : place + 1]))
                for _, label in lexicon.entities.apply(lexicon.context.apply(known)):
                    part, _, entity = label.partition("-")
                    yield part, entity
                begin = place + 1

    return Tagger(PARTS_OF_SPEECH, ("PERS", "LOC", "ORG"), f"textblob {version('textblob')}", tag)


def _spacy(name: str) -> Tagger:
    """The tagger and the entity recogniser of an installed spaCy pipeline."""
    try:
        import spacy
    except ImportError:
        raise RankwellError(f"the tagger spacy:{name} needs the package spacy: pip install spacy") from None
    try:
        pipeline: Any = spacy.load(name)
    except OSError:
        raise RankwellError(f"spaCy has no pipeline {name}: python -m spacy download {name}") from None
    labels = pipeline.pipe_labels
    parts_of_speech, entities = tuple(labels.get("tagger", ())), tuple(labels.get("ner", ()))
    if not parts_of_speech or not entities:
        raise RankwellError(f"the spaCy pipeline {name} has no tagger or no entity recogniser")

    def tag(words: Sequence[str]) -> Iterator[tuple[str, str]]:
        for token in pipeline(spacy.tokens.Doc(pipeline.vocab, words=list(words))):
            yield token.tag_, token.ent_type_

    return Tagger(parts_of_speech, entities, f"spacy {name} {pipeline.meta['version']}", tag)


def open_tagger(name: str) -> Tagger:
    """The tagger ``textblob`` or ``spacy:PIPELINE``."""
    kind, _, pipeline = name.partition(":")
    if kind == "spacy" and pipeline:
        return _spacy(pipeline)
    if name != "textblob":
        raise RankwellError(f"no tagger is called {name!r} (known: textblob, spacy:PIPELINE)")
    return _textblob()


def tag_words(tagger: Tagger, vocabulary: WordVocabulary, words: WordRows) -> WordRows:
    """The same texts with the tags of their words."""
    numbers = [{label: k for k, label in enumerate(labels, 1)} for labels in (tagger.parts_of_speech, tagger.entities)]
    forms = vocabulary.forms.strings(words.numbers)
    begins = (words.ends - words.lengths()).tolist()
    texts = (forms[begin:end] for begin, end in zip(begins, words.ends.tolist(), strict=True))
    pairs = chain.from_iterable(map(tagger.tag, texts))
    tags = [(numbers[0].get(part, 0), numbers[1].get(entity, 0)) for part, entity in pairs]
    return replace(words, tags=np.array(tags, np.uint8).reshape(-1, 2))
