"""Excerpts of answers."""

from __future__ import annotations

from rankwell.corpus.matches import Match
from rankwell.rank.answers import snippet

TEXT = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon"


def shown(words: list[str], length: int) -> str:
    matches = [Match(TEXT.index(word), TEXT.index(word) + len(word), n) for n, word in enumerate(words)]
    begin, end = snippet(TEXT, matches, length)
    assert end - begin <= length
    return TEXT[begin:end]


def test_a_short_text_is_shown_whole() -> None:
    assert shown(["delta"], 1000) == TEXT


def test_an_excerpt_begins_at_the_start_if_the_words_are_there() -> None:
    assert shown(["gamma"], 30) == "alpha beta gamma delta epsilon"
    assert shown([], 30) == "alpha beta gamma delta epsilon"


def test_an_excerpt_shows_most_words_of_the_query() -> None:
    excerpt = shown(["beta", "omicron", "sigma"], 40)
    assert "omicron" in excerpt
    assert "sigma" in excerpt
    assert TEXT[TEXT.index(excerpt) - 1] == " "


def test_a_text_without_spaces_is_cut_anywhere() -> None:
    assert snippet("x" * 100, [], 10) == (0, 10)
