"""Phrases, required and excluded words, and prefixes in queries."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwell.core.errors import RankwellError
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.records import Query
from rankwell.retrieve.index import Index
from rankwell.retrieve.syntax import Clause, parse_syntax, plain_text

TEXTS = {
    "a": "Honey bees keep warm in winter.",
    "b": "Bees keep the honey warm.",
    "c": "State of the art: bees.",
    "d": "An art of state. Wasps, beeswax, 東京都の天気",
}


def found(query: str, index: Index | None = None, **options: object) -> set[str]:
    return set((index or Index.build(TEXTS)).search(query, syntax=True, **options).docids)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("query", "docids"),
    [
        ("bees", "abc"),
        ("bees -honey", "c"),
        ("bees +warming", "ab"),  # stemmed as all words are
        ('"honey bees"', "a"),
        ('"honey bee" winter', "a"),
        ('bees -"honey bees"', "bc"),
        ('"state of the art"', "c"),  # stop words have their places
        ('"state art"', ""),
        ('"the bees"', "abc"),  # at the ends they have none
        ('"art of state" bees', "d"),
        ("bee*", "abcd"),
        ("+beesw*", "d"),
        ("bees -hone*", "c"),
        ("keeping*", "ab"),
        ("-bees", ""),
        ("bees zebr*", "abc"),
        ("+zebr* bees", ""),
        ("bees +the", "abc"),
        ("bees -the", "abc"),
        ("bees +nowhere", ""),
        ("bees -nowhere", "abc"),
        ("- bees + * ''", "abc"),
        ('"" bees', "abc"),
        ("** +** bees -*", "abc"),
        ("", ""),
    ],
)
def test_what_a_query_finds(query: str, docids: str) -> None:
    assert found(query) == set(docids)


def test_without_the_option_it_is_plain_text() -> None:
    index = Index.build(TEXTS)
    assert set(index.search('"honey bees" -winter').docids) == {"a", "b", "c"}
    assert index.search("warm bees", syntax=True) == index.search("warm bees")


def test_restrictions_do_not_change_scores() -> None:
    index = Index.build(TEXTS)
    plain = dict(index.search("honey bees warm"))
    assert dict(index.search('"honey bees" warm -nothing', syntax=True)) == {"a": plain["a"]}
    assert dict(index.search("bee", syntax=True)) == dict(index.search("bee* -beeswax", syntax=True))


def test_prefixes_are_folded_as_words_are() -> None:
    index = Index.build({"a": "Les élèves", "b": "un éléphant"}, analyzer=Analyzer.of("fr"))
    assert found("ÉLÈ*", index) == found("ele*", index) == {"a", "b"}
    assert found("éléph*", index) == {"b"}


def test_pairs_of_characters_are_phrases_too() -> None:
    index = Index.build(TEXTS | {"e": "京都の東"}, analyzer=Analyzer.of("zh"))
    assert found('"東京都"', index) == {"d"}
    assert found('"京都"', index) == {"d", "e"}


def test_it_goes_with_filters_and_changes(tmp_path: Path) -> None:
    documents = [{"id": docid, "text": text, "year": 2000 + n} for n, (docid, text) in enumerate(TEXTS.items())]
    index = Index.build(documents, tmp_path / "index")
    assert found("bees -honey", index, filter="year < 2003") == {"c"}
    assert found("+bees", index, filter="year >= 2001") == {"b", "c"}
    index.update([{"id": "a", "text": "Honey wasps"}, {"id": "f", "text": "honey bees"}])
    assert found('"honey bees"', index) == {"f"}
    index.delete(["f"])
    assert found('"honey bees"', index) == set()
    run = index.search([Query("1", "+wasps"), Query("2", '"no such"')], syntax=True)
    assert {qid: set(ranking.docids) for qid, ranking in run.items()} == {"1": {"a", "d"}}


def test_a_phrase_needs_texts(tmp_path: Path) -> None:
    index = Index.build(TEXTS, tmp_path / "index", store=False)
    assert found("+bees -honey", index) == {"c"}
    with pytest.raises(RankwellError, match="was built without texts, so it cannot be searched for phrases"):
        found('"honey bees"', index)


def test_a_quote_that_is_not_closed_is_an_error_with_its_place() -> None:
    with pytest.raises(RankwellError, match="query, character 6: a quotation mark that is not closed"):
        parse_syntax('bees "keep warm')


def test_the_number_of_restrictions_is_limited() -> None:
    assert found("bees " + " ".join(["-wasps"] * 100)) == {"a", "b", "c"}
    with pytest.raises(
        RankwellError, match="query: 33 phrases, prefixes, required and excluded words; the limit is 32"
    ):
        parse_syntax(" ".join(f"-{n}" for n in range(33)))


def test_models_read_the_words_that_are_not_excluded() -> None:
    assert plain_text('bees +"keep warm" -wasp* hiv*') == "bees keep warm hiv"
    assert parse_syntax("-x") == [Clause("-", "x")]


words = st.lists(st.sampled_from(["red", "green", "blue", "the"]), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(words, min_size=1, max_size=8), phrase=words, sign=st.sampled_from(["", "+", "-"]))
def test_phrases_are_those_of_a_slow_search(texts: list[list[str]], phrase: list[str], sign: str) -> None:
    index = Index.build({str(n): " ".join(text) for n, text in enumerate(texts)})
    indexed = [place for place, word in enumerate(phrase) if word != "the"]
    wanted = phrase[indexed[0] : indexed[-1] + 1] if indexed else []

    def has(text: list[str]) -> bool:
        return any(text[at : at + len(wanted)] == wanted for at in range(len(text) - len(wanted) + 1))

    query = f'{sign}"{" ".join(phrase)}"'
    scored = index.search(f"red green blue {plain_text(query)}")
    allowed = [d for d in scored.docids if not wanted or has(texts[int(d)]) == (sign != "-")]
    assert list(index.search(f"red green blue {query}", syntax=True).docids) == allowed
