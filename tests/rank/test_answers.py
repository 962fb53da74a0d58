"""Answers with titles, and excerpts of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwell.corpus.formats import write_documents
from rankwell.corpus.records import Document
from rankwell.corpus.store import DocumentStore
from rankwell.rank.answers import Answer, AnswerMatches, Match, match_answers, plain_text, read_answers, snippet
from rankwell.rank.texts import Texts, open_texts
from rankwell.retrieve.index import Index

TEXT = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon"


def shown(words: list[str], length: int) -> str:
    matches = [Match(TEXT.index(word), TEXT.index(word) + len(word), n) for n, word in enumerate(words)]
    begin, end = snippet(TEXT, matches, length)
    assert end - begin <= length
    return TEXT[begin:end]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("# Tea\nis **hot**, *fresh* and ~~cold~~", "Tea\nis hot, fresh and cold"),
        (
            "see [the **page**](https://a.example/b_(c)) or ![a cup](cup.png), [[notes/x|notes]], [[Tea]]",
            "see the page or a cup, notes, Tea",
        ),
        ("```python\n# a **b** c\n```\n> said `x*y*z`", "# a **b** c\nsaid x*y*z"),
        ("a|b\n--|--\n__init__, snake_case, 2 * 3 * 4\n---\n- item", "a|b\n__init__, snake_case, 2 * 3 * 4\n- item"),
        ("[open **never [closed](", "[open **never [closed]("),
    ],
)
def test_markdown_is_shown_plain(text: str, plain: str) -> None:
    assert plain_text("notes/a.md", text) == plain_text("A.Markdown#2", text) == plain
    assert plain_text("notes/a.txt", text) == plain_text("sku-1", text) == text


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


TITLED = [Document("a", "They shiver in a cluster.", "Bees in winter"), Document("b", "Winter tea is hot.")]


def open_kind(kind: str, folder: Path) -> Texts:
    index = Index.build(TITLED, folder / "index")
    if kind == "index":
        return index
    if kind == "two segments":
        Index.build(TITLED[:1], folder / "two")
        return Index.build(TITLED[1:], folder / "two", append=True)
    if kind == "store":
        return DocumentStore.build(TITLED, folder / "store")
    write_documents(TITLED, folder / "texts.jsonl")
    return open_texts(folder / "texts.jsonl", index.search({"q": "winter"}))


@pytest.mark.parametrize("kind", ["index", "two segments", "store", "file"])
def test_an_answer_has_its_title_apart(kind: str, tmp_path: Path) -> None:
    texts = open_kind(kind, tmp_path)
    ranking = Index.open(tmp_path / "index").rank("winter bees")
    answers = read_answers(ranking, texts)
    assert [(a.docid, a.title, a.text) for a in answers] == [(d.docid, d.title, d.text) for d in TITLED]
    assert [a.contents for a in answers] == [d.contents for d in TITLED] == texts.texts(ranking.docids)
    matches = match_answers("winter bees", answers, texts)
    assert matches[0] == AnswerMatches([Match(0, 4, 1), Match(8, 14, 0)], [])
    assert matches[1] == AnswerMatches([], [Match(0, 6, 0)])


def test_a_title_is_searched_as_part_of_the_text(tmp_path: Path) -> None:
    apart = Index.build(TITLED, tmp_path / "apart")
    whole = Index.build([Document(d.docid, d.contents) for d in TITLED], tmp_path / "whole")
    assert apart.rank("winter bees") == whole.rank("winter bees")
    assert apart.manifest["data_hash"] == whole.manifest["data_hash"]


def test_an_index_without_texts_gives_ids_and_scores(tmp_path: Path) -> None:
    index = Index.build(TITLED, tmp_path / "bare", store=False)
    ranking = index.rank("winter bees")
    assert read_answers(ranking, index) == [Answer(docid, score) for docid, score in ranking]
