"""The analyser turns text into index terms: Unicode words, lower-cased, without stop words, stemmed.

The default, :meth:`Analyzer.english`, gives what Lucene's English analyser gives: words after UAX #29, a final ``'s``
dropped, Lucene's 33 stop words, Porter's stemmer. :meth:`Analyzer.of` has what other languages need. Words keep their
character spans, which exact-match markers need.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rankwell.core.arrays import pack_strings
from rankwell.core.errors import RankwellError
from rankwell.corpus.characters import class_table
from rankwell.corpus.languages import LANGUAGES, SEGMENTERS, elision, guess_language
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.word_kernels import MAX_WORD_BYTES, find_codes, find_words

try:
    from Stemmer import Stemmer, algorithms
except ImportError:  # no wheel for this Python: the same algorithms, slower
    from snowballstemmer import algorithms
    from snowballstemmer import stemmer as Stemmer  # noqa: N812

LUCENE_STOP_WORDS = frozenset(
    (
        "a an and are as at be but by for if in into is it no not of on or such "
        "that the their then there these they this to was will with"
    ).split()
)
FUNCTION_WORDS = LUCENE_STOP_WORDS | frozenset(
    (
        "i me my mine myself we us our ours ourselves you your yours yourself he him his himself she her hers herself "
        "its itself them theirs themselves who whom whose which what when where why how whether "
        "am been being were do does did doing done have has had having can could may might must shall should would "
        "cannot isn aren wasn weren don doesn didn won wouldn couldn shouldn hasn haven hadn "
        "about above across after against along among around before behind below beneath beside besides between beyond "
        "despite down during except from inside like near off onto out outside over past per since than through "
        "throughout till toward towards under until up upon via within without "
        "all also another any anybody anyone anything because both each either else enough even ever every everybody "
        "everyone everything few here however just less many more most much neither never nobody none nor nothing now "
        "often once one only other others ought own please quite rather same several so some somebody someone "
        "something sometimes still those though thus too very well while whatever whichever whoever yet"
    ).split()
)
"""Lucene's stop words and the other words of English that carry grammar rather than content, question words too."""

TitleWeight = Annotated[float, Field(gt=0, le=1000)]
# What step 1 turns into -logi or -bli.
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_LOGI_OR_BLI = re.compile(r"(log|bl)(?:ies|[iy](?:ed|ing)?s?)$")


def _syllables(stem: str) -> int:
    """Porter's m, the number of times a vowel is followed by a consonant; y is a vowel after a consonant."""
    kinds = ""
    for letter in stem:
        kinds += "v" if letter in "aeiou" or (letter == "y" and kinds.endswith("c")) else "c"
    return kinds.count("vc")


def _as_porter_ships(word: str, stem: str) -> str:
    """The stem by the algorithm as its author distributes it and Lucene uses it, which departs from the paper.

    Snowball's ``porter`` is the paper's. The distributed one leaves words of two letters alone and has the rules
    logi → log and bli → ble in step 2, so that *technology* meets *technological* and *possibly* meets *possible*.
    """
    if len(word) <= 2:
        return word
    if not stem.endswith(("logi", "bli")) or not (ending := _LOGI_OR_BLI.search(word)):
        return stem
    if stem != word[: ending.end(1)] + "i":  # a later step left this ending (in -logiate, say), too late for step 2
        return stem
    if stem.endswith("logi"):
        return stem[:-1] if _syllables(stem[:-4]) > 0 else stem
    if _syllables(stem[:-3]) == 0:
        return stem
    # Step 4 may now drop all of -ible or -able, and step 5 an e and one of two ls before it.
    if stem[-4] in "ai" and _syllables(root := stem[:-4]) > 1:
        root = root.removesuffix("e")
        return root.removesuffix("l") if root.endswith("ll") else root
    return stem[:-1]


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text: its lower-cased form, its term (``None`` for a stop word) and its span in characters."""

    text: str
    term: str | None
    begin: int
    end: int


class Analyzer(BaseModel):
    """How text becomes terms, and what they count.

    Frozen, and stored with every index so that queries are analysed the same way.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stemmer: str | None = "porter"
    """A Snowball algorithm (porter, english, german, …) or None."""
    stop_words: frozenset[str] = LUCENE_STOP_WORDS
    drop_possessive: bool = True
    cjk_pairs: bool = False
    """Whether runs of Chinese, Japanese and Korean characters become overlapping pairs and single characters, rather
    than single characters, runs of Katakana, and runs of Hangul."""
    language: str = "en"
    """The language, for its elisions (*l'avion*) and accents, and for the segmenter."""
    segmenter: str | None = None
    """What finds the words of a language without spaces: ``icu``, or a function of a plugin."""
    title_weight: TitleWeight = 1.0
    """How many times an index counts each term of a title."""

    @classmethod
    def of(cls, language: str, *, stop_words: frozenset[str] | None = None, title_weight: float = 1.0) -> Analyzer:
        """What a language needs; ``none`` only lower-cases. ``stop_words`` replace the language's.

        >>> Analyzer.of("fr").terms("L'élève lit les journaux")
        ['elev', 'lit', 'journal']
        """
        if language not in LANGUAGES:
            if language not in ("en", "none"):
                known = ", ".join(sorted((*LANGUAGES, "en", "none")))
                raise RankwellError(f"no language is called {language!r} (known: {known})")
            made = cls.english() if language == "en" else cls.plain()
        else:
            needs = LANGUAGES[language]
            made = cls(
                stemmer=needs.stemmer,
                stop_words=frozenset(needs.stop_words.split()),
                drop_possessive=False,
                cjk_pairs=needs.words == "pairs",
                language=language,
                segmenter=None if needs.words == "pairs" else needs.words,
            )
        own = {} if stop_words is None else {"stop_words": stop_words}
        return made.changed(title_weight=title_weight, **own)

    def changed(self, **settings: Any) -> Analyzer:
        """This analyser with some settings changed."""
        return Analyzer(**{**self.model_dump(), **settings})

    @classmethod
    def english(cls) -> Analyzer:
        """Lucene's English analyser."""
        return cls()

    @classmethod
    def plain(cls) -> Analyzer:
        """Lower-cased words and nothing else: no stop words, no stemming."""
        return cls(stemmer=None, stop_words=frozenset(), drop_possessive=False, language="none")

    @field_validator("stop_words")
    @classmethod
    def _folded(cls, words: frozenset[str]) -> frozenset[str]:
        return frozenset(word.lower() for word in words)

    @field_validator("stemmer")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        if name is not None and name not in algorithms():
            raise ValueError(f"no stemmer is called {name!r} (known: {', '.join(algorithms())})")
        return name

    @model_validator(mode="after")
    def _has_what_its_language_needs(self) -> Analyzer:
        if self.language not in ("en", "none") and "stemmer" not in self.model_fields_set:
            raise ValueError(f"Analyzer.of({self.language!r}) has the stemmer and the stop words of a language")
        return self

    @field_validator("segmenter")
    @classmethod
    def _present(cls, name: str | None) -> str | None:
        if name is not None and name not in SEGMENTERS:
            raise ValueError(f"no segmenter is called {name!r}; name its module with --plugin")
        return name

    @cached_property
    def _elision(self) -> re.Pattern[str] | None:
        return elision(self.language)

    @property
    def fold(self) -> Callable[[str], str] | None:
        """What becomes of a stem in this language."""
        return LANGUAGES[self.language].fold if self.language in LANGUAGES else None

    @cached_property
    def _stemmer(self) -> Any:
        # No cache of its own: each distinct word is stemmed once anyway. One stemmer must not be used by two threads.
        if self.stemmer is None:
            return None
        made = Stemmer(self.stemmer)
        made.maxCacheSize = 0
        return made

    def stems(self, words: Sequence[str]) -> list[str | None]:
        """The term of each lower-cased word, ``None`` for stop words."""
        if self._elision is not None:
            words = [word[match.end() :] if (match := self._elision.match(word)) else word for word in words]
        stemmed: Sequence[str] = self._stemmer.stemWords(list(words)) if self._stemmer else words
        if self.stemmer == "porter":
            stemmed = [_as_porter_ships(word, stem) for word, stem in zip(words, stemmed, strict=True)]
        if self.fold is not None:
            stemmed = list(map(self.fold, stemmed))
        stop_words = self.stop_words
        return [None if word in stop_words else stem for word, stem in zip(words, stemmed, strict=True)]

    def spans(self, text: NDArray[np.uint8], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The words of packed UTF-8 texts: their byte spans ``(words, 2)`` and the running count after each text."""
        if self.segmenter is not None:
            return self._segmented(text, ends)
        room = np.empty((len(text) // (1 if self.cjk_pairs else 2) + len(ends) + 1, 2), np.int64)
        counts = np.empty(len(ends), np.int64)
        classes = class_table(self.cjk_pairs)
        find_words(text, ends, classes, self.drop_possessive, self.cjk_pairs, room, counts)
        return room[: int(counts[-1]) if len(counts) else 0], counts

    def coded_spans(
        self, text: NDArray[np.uint8], ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Like :meth:`spans`, with the parts of words such as ``add_done`` and whole codes such as ``SKU-JA-10158``.

        The last array says which words are such: they are searched for, but not counted in a text's length.
        """
        spans, counts = self.spans(text, ends)
        room = 2 * len(spans) + len(text) // 2
        joined, uncounted = np.empty((room, 2), np.int64), np.empty(room, np.bool_)
        joined_counts = np.empty(len(ends), np.int64)
        find_codes(text, spans, counts, joined, uncounted, joined_counts)
        used = slice(joined_counts[-1] if len(ends) else 0)
        return joined[used], joined_counts, uncounted[used]

    def _segmented(
        self, text: NDArray[np.uint8], ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """As :meth:`spans`, by the segmenter: its parts that begin with a letter or digit, cut as other words are."""
        segment, spans, counts, at = SEGMENTERS[self.segmenter or ""], [], np.empty(len(ends), np.int64), 0
        for number, end in enumerate(ends.tolist()):
            # Half a surrogate pair, which ICU cannot read, gets a character that takes as many bytes.
            readable = _HALF_PAIR.sub("\ufffd", text[at:end].tobytes().decode("utf-8", "surrogatepass"))
            for part in segment(readable, self.language):
                if part[:1].isalnum():
                    cut = part.encode()[:MAX_WORD_BYTES].decode("utf-8", "ignore")  # not within a character
                    spans.append((at, at + len(cut.encode())))
                at += len(part.encode())
            counts[number], at = len(spans), end
        return np.array(spans, np.int64).reshape(-1, 2), counts

    def guess(self, texts: Sequence[str]) -> str | None:
        """The language that texts are evidently written in, if it is not this analyser's."""
        words = [word.text for found in self.words_batch([text[:2000] for text in texts]) for word in found]
        found = guess_language(words, LUCENE_STOP_WORDS)
        return None if found == self.language or self.language == "none" else found

    def _intern(self, texts: Sequence[str], codes: bool) -> tuple[list[int], list[int], list[str], Any, Any, Any]:
        """Where the words of each text begin, each word's number, and the words' forms; the texts packed, their ends
        and the words' spans."""
        packed, ends = pack_strings(list(texts))
        spans, counts, *_ = (self.coded_spans if codes else self.spans)(packed, ends)
        lexicon = Lexicon(fold_case=True)
        numbers = lexicon.intern(packed, spans).tolist()
        return [0, *counts.tolist()], numbers, lexicon.strings(range(len(lexicon))), packed, ends, spans

    def terms_batch(self, texts: Sequence[str]) -> list[list[str]]:
        """The terms of each text, in order, stop words left out.

        >>> Analyzer.english().terms("The AirFlex-3000")
        ['airflex', 'air', 'flex', '3000', 'airflex-3000']
        """
        bounds, numbers, forms, *_ = self._intern(texts, True)
        term_of = self.stems(forms)
        terms = [term_of[number] for number in numbers]
        return [[term for term in terms[begin:end] if term is not None] for begin, end in pairwise(bounds)]

    def terms(self, text: str) -> list[str]:
        """The terms of one text."""
        return self.terms_batch([text])[0]

    def words(self, text: str) -> list[Word]:
        """The words of one text with their spans, stop words included.

        >>> [(word.term, text[word.begin:word.end]) for text in ["The cats' café"] for word in Analyzer().words(text)]
        [(None, 'The'), ('cat', 'cats'), ('café', 'café')]
        """
        return self.words_batch([text])[0]

    def words_batch(self, texts: Sequence[str], *, codes: bool = False) -> list[list[Word]]:
        """The words of each text, with ``codes`` those of :meth:`coded_spans`; each distinct word is stemmed once."""
        bounds, numbers, forms, packed, ends, spans = self._intern(texts, codes)
        term_of = self.stems(forms)
        # Bytes to characters: a UTF-8 byte of the form 10xxxxxx does not begin a character.
        characters = np.concatenate([[0], np.cumsum((packed & 0xC0) != 0x80)])
        # Counted from the beginning of each word's text.
        bases = np.repeat(characters[np.concatenate([[0], ends])[:-1]], np.diff(bounds))
        places = (characters[spans] - bases[:, None]).tolist()
        words = [
            Word(forms[number], term_of[number], begin, end)
            for number, (begin, end) in zip(numbers, places, strict=True)
        ]
        return [words[begin:end] for begin, end in pairwise(bounds)]


def read_analyzer(config: object, where: str) -> Analyzer:
    """An analyser from the JSON an index keeps, or an error that says where it came from."""
    try:
        return Analyzer.model_validate(config)
    except ValueError as error:
        raise RankwellError(f"{where}: the analyser's settings cannot be read ({error})") from None
