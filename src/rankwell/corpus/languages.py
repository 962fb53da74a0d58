"""What each language needs to become terms: a stemmer, stop words, folding, and a way to find words.

Stop words are the most frequent words that carry grammar rather than content. A language without spaces between words
is indexed by pairs of characters (Chinese, Japanese, Korean), which needs no dictionary, or by the words that ICU's
dictionary finds (Thai, Lao, Khmer, Burmese).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwell.core.errors import MissingExtraError
from rankwell.core.registry import Registry

SEGMENTERS: Registry[Callable[[str, str], Iterator[str]]] = Registry("segmenter")
"""Functions that split a text of a language into consecutive parts, words among them; together they are the text."""


@SEGMENTERS.register("icu")
def icu_words(text: str, language: str) -> Iterator[str]:
    """The words of a text by ICU's rules and dictionaries."""
    try:
        from icu4py.breakers import WordBreaker
    except ImportError:
        raise MissingExtraError("icu4py", "languages", f"finding words (--language {language})") from None
    return iter(WordBreaker(text, language))


def fold_accents(word: str) -> str:
    """The word without accents and other marks.

    >>> fold_accents("garçon élève")
    'garcon eleve'
    """
    if word.isascii():
        return word
    plain = (letter for letter in unicodedata.normalize("NFKD", word) if not unicodedata.combining(letter))
    return unicodedata.normalize("NFC", "".join(plain))


def fold_dotless(word: str) -> str:
    """The word with i for ı, whose capital is I: it is lower-cased to i, as elsewhere."""
    return word.replace("ı", "i")


@dataclass(frozen=True, slots=True)
class Language:
    """How texts of a language become terms; a row of ``languages.tsv``."""

    stemmer: str | None
    fold: Callable[[str], str] | None
    """What else becomes of stems: most often accents are dropped, because people leave them out when they type."""
    elided: str
    """The words that lose their vowel before an apostrophe."""
    words: str | None
    """What finds words: ``pairs`` of characters, a segmenter, or else Unicode's rules."""
    stop_words: str
    name: str


def _read_languages() -> dict[str, Language]:
    _, *lines = (Path(__file__).parent / "languages.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    return {
        code: Language(stemmer or None, _FOLDS.get(fold), elided, words or None, stop_words, name)
        for code, stemmer, fold, elided, words, stop_words, name in rows
    }


_FOLDS = {"accents": fold_accents, "dotless": fold_dotless}
LANGUAGES = _read_languages()
"""Besides English and ``none``, by ISO 639-1's codes."""

_SCRIPTS = {"ja": "ぁ-ヿ", "ko": "가-힣", "zh": "一-鿿", "th": "ก-๛", "lo": "ກ-ໟ", "km": "ក-៹", "my": "က-႟"}


def elision(language: str) -> re.Pattern[str] | None:
    """Matches a word that lost its vowel, with its apostrophe."""
    words = LANGUAGES[language].elided.split() if language in LANGUAGES else []
    return re.compile(rf"(?:{'|'.join(words)})['’ʼ]") if words else None


def guess_language(words: Sequence[str], english: frozenset[str]) -> str | None:
    """The language of a text's lower-cased words, where it is evident; ``english`` are the stop words of English.

    >>> guess_language("der hund und die katze sind in dem haus".split(), frozenset({"in", "the", "and"}))
    'de'
    """
    text = "".join(words)
    for code, script in _SCRIPTS.items():
        if len(re.findall(f"[{script}]", text)) > 0.3 * len(text):
            return code
    lists = {"en": english} | {code: frozenset(language.stop_words.split()) for code, language in LANGUAGES.items()}
    counts = {code: sum(word in stop_words for word in words) for code, stop_words in lists.items()}
    best, second = sorted(counts, key=lambda code: -counts[code])[:2]
    clear = counts[best] >= 0.15 * len(words) and counts[best] > 1.25 * counts[second]
    return best if words and clear else None
