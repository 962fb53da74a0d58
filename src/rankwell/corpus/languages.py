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
    """How texts of a language become terms. ``elided`` are the words that lose their vowel before an apostrophe."""

    name: str
    stemmer: str | None = None
    stop_words: str = ""
    fold: Callable[[str], str] | None = None
    """What else becomes of stems: most often accents are dropped, because people leave them out when they type."""
    elided: str = ""
    pairs: bool = False
    segmenter: str | None = None


LANGUAGES = {
    "ar": Language(
        "Arabic",
        "arabic",
        "في من على إلى عن مع أن إن كان كانت هذا هذه ذلك التي الذي الذين لا ما لم لن قد كل بعد قبل بين أو ثم هو هي هم",
    ),
    "ca": Language(
        "Catalan",
        "catalan",
        "el la els les un una uns unes de del dels a al als en per amb i o que no es és ha han ser aquest "
        "aquesta com més",
        fold=fold_accents,
        elided="d l m n s t",
    ),
    "cs": Language("Czech", "czech", "a i v ve na se si je z ze s k ke o do že to by jsou pro po za ale jako od nebo"),
    "da": Language(
        "Danish",
        "danish",
        "og i at det en et den til er som på de med han af for ikke der var mig sig men har om vi min havde hun "
        "nu over da "
        "fra du ud sin dem os op man hans hvor eller hvad skal ved kan",
    ),
    "de": Language(
        "German",
        "german",
        "der die das den dem des ein eine einen einem einer eines und oder aber in im an am auf aus bei mit "
        "nach seit von "
        "vom zu zum zur für durch um über unter vor ist sind war waren wird werden wurde wurden hat haben hatte sein "
        "nicht auch als wie dass es er sie ich wir ihr sich man so nur noch wenn",
    ),
    "el": Language(
        "Greek", "greek", "ο η το οι τα του της των τον την και κι σε με για από να θα δεν που στο στη στην"
    ),
    "es": Language(
        "Spanish",
        "spanish",
        "el la los las un una unos unas de del a al en por para con sin sobre y e o u que no se es son era fue "
        "ser ha han "
        "su sus lo le les me te nos mi tu este esta estos estas como más pero si ya muy",
        fold=fold_accents,
    ),
    "fi": Language("Finnish", "finnish", "ja on ei se että en oli hän mutta ovat olla kun niin myös tai jos kuin joka"),
    "fr": Language(
        "French",
        "french",
        "le la les un une des de du à au aux en dans par pour avec sans sur et ou que qui ne pas se est sont "
        "était être "
        "a ont son sa ses leur leurs ce cette ces il elle ils elles on nous vous je tu me te lui y mais si plus comme",
        fold=fold_accents,
        elided="c d j l m n qu s t jusqu lorsqu puisqu quoiqu",
    ),
    "hi": Language("Hindi", "hindi", "के का की में है और से को पर यह वह हैं था थे थी कि जो एक ने भी तो हो कर या"),
    "hu": Language("Hungarian", "hungarian", "a az és egy hogy nem is van volt de ha meg csak mint vagy ez el ki be"),
    "id": Language("Indonesian", "indonesian", "yang dan di ke dari untuk dengan pada ini itu adalah atau tidak akan"),
    "it": Language(
        "Italian",
        "italian",
        "il lo la i gli le un uno una di del della dei delle a al alla ai alle da dal in nel nella con su sul "
        "per e o che "
        "non si è sono era ha hanno suo sua come più ma se questo questa",
        fold=fold_accents,
        elided="c d dall dell l nell sull all un s t m v quest",
    ),
    "ja": Language("Japanese", pairs=True),
    "km": Language("Khmer", segmenter="icu"),
    "ko": Language("Korean", pairs=True),
    "lo": Language("Lao", segmenter="icu"),
    "my": Language("Burmese", segmenter="icu"),
    "nl": Language(
        "Dutch",
        "dutch",
        "de het een en of van in op aan met voor door bij te tot uit naar is zijn was waren wordt worden heeft "
        "hebben had "
        "niet ook als dat die deze dit er hij zij ze wij je ik om maar dan nog wel",
    ),
    "no": Language(
        "Norwegian",
        "norwegian",
        "og i jeg det at en et den til er som på de med han av for ikke der var meg seg men har om vi min hun "
        "nå over da "
        "fra du ut sin dem oss opp man hans hvor eller hva skal ved kan",
    ),
    "pl": Language("Polish", "polish", "i w we na z ze do o od po za się nie jest to że są jak dla przez oraz lub ale"),
    "pt": Language(
        "Portuguese",
        "portuguese",
        "o a os as um uma uns umas de do da dos das em no na nos nas por para com sem e ou que não se é são era "
        "foi ser "
        "seu sua seus suas ao à como mais mas este esta isso",
        fold=fold_accents,
    ),
    "ro": Language(
        "Romanian", "romanian", "și în de la cu pe din un o a al ale că nu este sunt pentru sau care", fold=fold_accents
    ),
    "ru": Language(
        "Russian",
        "russian",
        "и в во не на что он я с со как а то все она так его но да ты к у же вы за бы по только ее мне было от из о об "
        "для это этот или быть был была были",
    ),
    "sv": Language(
        "Swedish",
        "swedish",
        "och i att det en ett den till är som på de med han av för inte var mig sig men har om vi min hade hon "
        "nu över då "
        "från du ut sin dem oss upp man hans där eller vad skall vid kan",
    ),
    "ta": Language("Tamil", "tamil", "ஒரு என்று மற்றும் இந்த இது அந்த அது என என்ற"),
    "th": Language("Thai", segmenter="icu"),
    "tr": Language(
        "Turkish",
        "turkish",
        "ve bir bu da de için ile çok ne gibi daha olarak olan o ama veya ise mi",
        fold=fold_dotless,
    ),
    "zh": Language("Chinese", pairs=True),
}
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
