"""Stems: against the words Porter distributes with his algorithm, and his program written out again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rankwell.corpus.analyser import Analyzer

UNSTOPPED = Analyzer(stop_words=frozenset())


DISTRIBUTED = (
    "technology:technolog technologies:technolog technological:technolog biologically:biolog possibly:possibl "
    "possible:possibl reliably:reliabl reliable:reliabl comfortably:comfort comfortable:comfort as:as is:is us:us s:s "
    "by:by logy:logi caresses:caress ponies:poni agreed:agre hopping:hop relational:relat generalizations:gener "
    "controll:control sky:sky happy:happi"
)


def test_english_words_are_stemmed_as_porter_distributes_his_algorithm() -> None:
    words, stems = zip(*(pair.split(":") for pair in DISTRIBUTED.split()), strict=True)
    assert UNSTOPPED.terms(" ".join(words)) == list(stems)


STEP_2 = (
    "ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e ousli:ous ization:ize "
    "ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al iviti:ive biliti:ble logi:log"
)
STEP_3 = "icate:ic ative: alize:al iciti:ic ical:ic ful: ness:"
STEP_4 = "al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize".split()


def is_consonant(word: str, i: int) -> bool:
    if word[i] == "y":
        return i == 0 or not is_consonant(word, i - 1)
    return word[i] not in "aeiou"


def measure(stem: str) -> int:
    kinds = "".join("c" if is_consonant(stem, i) else "v" for i in range(len(stem)))
    return kinds.count("vc")


def is_short(word: str) -> bool:
    """Consonant, vowel, consonant other than w, x and y."""
    if len(word) < 3:
        return False
    kinds = [is_consonant(word, i) for i in range(len(word) - 3, len(word))]
    return kinds == [True, False, True] and word[-1] not in "wxy"


def is_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and is_consonant(word, len(word) - 1)


def has_vowel(stem: str) -> bool:
    return not all(is_consonant(stem, i) for i in range(len(stem)))


def replace(word: str, rules: str) -> str:
    for rule in rules.split():
        suffix, replacement = rule.split(":")
        if word.endswith(suffix):
            stem = word.removesuffix(suffix)
            return stem + replacement if measure(stem) > 0 else word
    return word


def porter(word: str) -> str:
    """The algorithm by its author's C program, written down independently of Snowball."""
    if len(word) <= 2:
        return word
    # Step 1
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        word = word[:-1] if measure(word[:-3]) > 0 else word
    else:
        for suffix in ("ed", "ing"):
            if word.endswith(suffix) and has_vowel(word.removesuffix(suffix)):
                word = word.removesuffix(suffix)
                if word.endswith(("at", "bl", "iz")) or (not is_double(word) and measure(word) == 1 and is_short(word)):
                    word += "e"
                elif is_double(word) and word[-1] not in "lsz":
                    word = word[:-1]
                break
    if word.endswith("y") and has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = replace(replace(word, STEP_2), STEP_3)
    # Step 4
    for suffix in STEP_4:
        stem = word.removesuffix(suffix)
        if stem != word and (suffix != "ion" or stem.endswith(("s", "t"))):
            word = stem if measure(stem) > 1 else word
            break
    # Step 5
    if word.endswith("e") and (measure(word) > 1 or (measure(word) == 1 and not is_short(word[:-1]))):
        word = word[:-1]
    if word.endswith("ll") and measure(word) > 1:
        word = word[:-1]
    return word


SUFFIXES = [pair.split(":")[0] for pair in (STEP_2 + " " + STEP_3).split()] + STEP_4
SUFFIXES += ["", *"s es ed ing y ly logy logies bly ably logis logys blying bliing bliate logiate ibly".split()]
SUFFIXES += "ll le lly sses".split()
english_words = st.builds(
    lambda root, first, second: root + first + second,
    st.text("abcdefghijklmnopqrstuvwxyz", max_size=5) | st.text("aeyblogit", max_size=7),
    st.sampled_from(SUFFIXES),
    st.sampled_from(SUFFIXES),
)


@settings(max_examples=1000, deadline=None)
@given(english_words)
@example("oyology")
@example("eyably")
@example("technologys")
@example("orologi")
@example("bliate")
@example("callogiate")
@example("agreeibly")
@example("controlleibly")
def test_any_word_is_stemmed_as_porters_own_program_does(word: str) -> None:
    assume("yy" not in word)  # of which Snowball makes something else, and which English does not have
    assert UNSTOPPED.stems([word]) == [porter(word)]


def test_no_word_is_stemmed_to_nothing() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    short = [*letters, *(a + b for a in letters for b in letters), *(a + b + "s" for a in letters for b in letters)]
    assert all(UNSTOPPED.stems(short))


@pytest.mark.parametrize(
    ("stemmer", "word", "stem"),
    [
        ("english", "generously", "generous"),
        ("german", "häuser", "haus"),
        ("french", "continuellement", "continuel"),
        ("spanish", "corriendo", "corr"),
        ("russian", "книгами", "книг"),
        ("finnish", "taloissa", "talo"),
    ],
)
def test_snowballs_other_languages_work(stemmer: str, word: str, stem: str) -> None:
    assert Analyzer(stemmer=stemmer, stop_words=frozenset()).terms(word) == [stem]


def test_without_pystemmer_the_stems_are_the_same() -> None:
    """snowballstemmer takes its place where PyStemmer has no wheel."""
    pytest.importorskip("snowballstemmer")
    program = """
import json, sys
sys.modules["Stemmer"] = None if sys.argv[1] == "without" else sys.modules.get("Stemmer", __import__("Stemmer"))
from rankwell.corpus.analyser import Analyzer, algorithms
words = "technology possibly running bees häuser l'élève corriendo журналы insouciantly relational".split()
made = {name: Analyzer(stemmer=name).stems(words) for name in sorted(algorithms())}
print(json.dumps(made | {"by": [Analyzer()._stemmer.__class__.__module__]}))
"""
    with_it, without = (
        json.loads(
            subprocess.run([sys.executable, "-c", program, how], capture_output=True, text=True, check=True).stdout
        )
        for how in ("with", "without")
    )
    assert (with_it.pop("by"), without.pop("by")) == (["Stemmer"], ["snowballstemmer.porter_stemmer"])
    assert without == with_it
    assert len(with_it) > 20
