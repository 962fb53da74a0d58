"""Parts of speech and named entities of words, which SDNet reads beside BERT's features.

==================  ===================================================================================================
``textblob``        TextBlob's tagger (Brill's rules), whose word lists are part of the package; it knows some 550 names
``spacy:PIPELINE``  a spaCy pipeline with a tagger and an entity recogniser, such as ``spacy:en_core_web_sm``
==================  ===================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.models.sdnet.words import WordRows, WordVocabulary

Tags = NDArray[np.uint8]
"""(T, 2): each word's part of speech and entity, numbered from 1; 0 if it has none, or one without a number."""
SENTENCE_ENDS = frozenset(".!?")
# The Penn Treebank's tags.
PARTS_OF_SPEECH = tuple(
    "CC CD DT EX FW IN JJ JJR JJS LS MD NN NNP NNPS NNS PDT POS PRP PRP$ RB RBR RBS RP SYM TO UH VB VBD VBG VBN VBP "
    "VBZ WDT WP WP$ WRB # $ . , : ( ) \" `` ''".split()
)


class Tagger(Protocol):
    """Tags the words of texts."""

    @property
    def parts_of_speech(self) -> tuple[str, ...]:
        """The labels of parts of speech."""
        ...

    @property
    def entities(self) -> tuple[str, ...]:
        """The labels of entities."""
        ...

    @property
    def version(self) -> str:
        """Identifies the tagger: another version may tag a word differently."""
        ...

    def tag(self, words: Sequence[str]) -> Iterator[tuple[str, str]]:
        """The part of speech and the entity of each word of a text."""
        ...


class TextBlobTagger:
    """TextBlob's part-of-speech tagger, which marks the names that it knows as persons, places or organisations."""

    parts_of_speech = PARTS_OF_SPEECH
    entities = ("PERS", "LOC", "ORG")

    def __init__(self) -> None:
        try:
            from textblob.en import lexicon, parser
        except ImportError:
            raise MissingExtraError("textblob", "ccnu", "the tagger textblob") from None
        self.version = f"textblob {version('textblob')}"
        self._parser, self._lexicon = parser, lexicon

    def tag(self, words: Sequence[str]) -> Iterator[tuple[str, str]]:
        """See :class:`Tagger`."""
        begin = 0
        for place, word in enumerate(words):
            # The rules look at neighbouring words, and at capitals that do not begin a sentence.
            if word in SENTENCE_ENDS or place == len(words) - 1:
                # The parser looks words up; the rules for their context and the list of names have to be called.
                known = self._parser.find_tags(list(words[begin : place + 1]))
                for _, label in self._lexicon.entities.apply(self._lexicon.context.apply(known)):
                    part, _, entity = label.partition("-")
                    yield part, entity
                begin = place + 1


class SpacyTagger:
    """The tagger and the entity recogniser of an installed spaCy pipeline."""

    def __init__(self, name: str):
        try:
            import spacy
        except ImportError:
            raise RankwellError(f"the tagger spacy:{name} needs the package spacy: pip install spacy") from None
        try:
            self._pipeline: Any = spacy.load(name)
        except OSError:
            raise RankwellError(f"spaCy has no pipeline {name}: python -m spacy download {name}") from None
        labels = self._pipeline.pipe_labels
        self.parts_of_speech: tuple[str, ...] = tuple(labels.get("tagger", ()))
        self.entities: tuple[str, ...] = tuple(labels.get("ner", ()))
        if not self.parts_of_speech or not self.entities:
            raise RankwellError(f"the spaCy pipeline {name} has no tagger or no entity recogniser")
        self.version = f"spacy {name} {self._pipeline.meta['version']}"

    def tag(self, words: Sequence[str]) -> Iterator[tuple[str, str]]:
        """See :class:`Tagger`."""
        from spacy.tokens import Doc

        for token in self._pipeline(Doc(self._pipeline.vocab, words=list(words))):
            yield token.tag_, token.ent_type_


def open_tagger(name: str) -> Tagger:
    """The tagger ``textblob`` or ``spacy:PIPELINE``."""
    kind, _, pipeline = name.partition(":")
    if kind == "spacy" and pipeline:
        return SpacyTagger(pipeline)
    if name != "textblob":
        raise RankwellError(f"no tagger is called {name!r} (known: textblob, spacy:PIPELINE)")
    return TextBlobTagger()


def tag_words(tagger: Tagger, vocabulary: WordVocabulary, words: WordRows) -> WordRows:
    """The same texts with the tags of their words."""
    numbers = [{label: k for k, label in enumerate(labels, 1)} for labels in (tagger.parts_of_speech, tagger.entities)]
    forms = vocabulary.forms.strings(words.numbers)
    begins = (words.ends - words.lengths()).tolist()
    texts = (forms[begin:end] for begin, end in zip(begins, words.ends.tolist(), strict=True))
    pairs = chain.from_iterable(map(tagger.tag, texts))
    tags = [(numbers[0].get(part, 0), numbers[1].get(entity, 0)) for part, entity in pairs]
    return replace(words, tags=np.array(tags, np.uint8).reshape(-1, 2))
