"""Words that no document has are searched for as the known words nearest to them."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rankwell import Analyzer, Index
from rankwell.retrieve.spelling import correct, suggest

TEXTS = [
    "Waterproof jacket for the rain",
    "A jacket of wool, with insurance",
    "Health insurance and its coverage",
    "Maintenance of the refrigerator",
    "Regenjacke für den Sommer, ein Café; it performs",
]


@pytest.fixture(scope="module")
def index() -> Index:
    return Index.build(TEXTS)


def suggested(index: Index, query: str) -> str | None:
    return suggest(index.segments, index.analyzer, query)


@pytest.mark.parametrize(
    ("query", "meant"),
    [
        ("waterprof jaket", "waterproof jacket"),
        ("Helath insuracne!", "health insurance!"),
        ("refrigerater jakcet", "refrigerator jacket"),
        ("sumer", None),
        ("somer", "sommer"),
        ("performated", None),
        ("xacket", None),
        ("waterproof jackets", None),
        ("xyzzy", None),
        ("rian", None),
        ("KX-4711b", None),
        ("", None),
    ],
)
def test_unknown_words_get_the_nearest_known_ones(index: Index, query: str, meant: str | None) -> None:
    assert suggested(index, query) == meant


def test_a_correction_is_searched_unless_a_known_word_is_rare(index: Index) -> None:
    assert index.search("waterprof").docids == index.search("waterproof").docids == ("0",)
    assert not index.search("waterprof", filter="id = '1'").docids
    many = Index.build([*TEXTS, *["green tea"] * 200])
    assert set(many.search("jaket green", k=5).docids) > {"0", "1"}
    assert many.search("jaket coverage green").docids == many.search("coverage green").docids
    assert suggested(many, "jaket coverage green") == "jacket coverage green"


def test_the_words_of_a_syntax_are_not_corrected(index: Index) -> None:
    assert not index.search("waterprof", syntax=True).docids
    assert index.search("waterpro*", syntax=True).docids == ("0",)


def test_frequent_words_are_likelier() -> None:
    index = Index.build([*["green trains"] * 3, "three traits"])
    assert suggested(index, "trais") == "trains"


def test_words_of_deleted_documents_are_unknown() -> None:
    index = Index.build({"a": "planet", "b": "planer planer", "c": "tea"})
    index.delete("a")
    assert suggested(index, "planet") == "planer"


def test_languages_without_alphabetic_words_are_left_out() -> None:
    index = Index.build(["東京都の喫茶店"], analyzer=Analyzer.of("ja"))
    assert correct("waterprof", index.segments, index.analyzer) is None


def test_a_correction_takes_some_milliseconds_in_a_large_lexicon() -> None:
    letters = np.random.default_rng(1).integers(97, 123, (50_000, 9), dtype=np.uint8)
    index = Index.build([" ".join(row.tobytes().decode() for row in letters), "waterproof"])
    correct("waterprof", index.segments, index.analyzer)
    begin = time.process_time()
    for _ in range(20):
        assert correct("waterprof", index.segments, index.analyzer) == ("waterproof", "waterproof")
    assert time.process_time() - begin < 1


def test_a_text_of_unknown_words_is_not_corrected(index: Index) -> None:
    assert suggested(index, "waterprof " + " ".join(f"unknown{letter}" for letter in "abcdefg")) is not None
    assert suggested(index, "waterprof " + " ".join(f"unknown{letter}" for letter in "abcdefgh")) is None
