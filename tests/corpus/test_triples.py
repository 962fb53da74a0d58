"""Training examples: triples and query/pos/neg objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankwell.core.errors import InputError
from rankwell.corpus.formats.texts import Example, read_examples, read_triples


def triples(path: Path) -> list[Example]:
    return list(read_triples(path))


def id_triples(path: Path) -> list[Example]:
    return list(read_triples(path, ids=True))


def examples(path: Path) -> list[Example]:
    return list(read_examples(path))


def test_triples_are_texts_or_ids(tmp_path: Path) -> None:
    path = tmp_path / "triples.tsv"
    path.write_text("what is it\tthis\tthat\n\nwho\tshe\t\n")
    assert triples(path) == [Example("what is it", ("this",), ("that",)), Example("who", ("she",), ("",))]
    path.write_text("1\t2\t3\n")
    assert id_triples(path) == [Example("1", ("2",), ("3",))]


def test_examples_hold_lists(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"query": "q", "pos": ["a", "b"], "neg": [], "score": 1}\n')
    assert examples(path) == [Example("q", ("a", "b"), ())]


@pytest.mark.parametrize(
    ("read", "content", "line", "problem"),
    [
        (triples, "a\tb\n", 1, "found 2 columns, expected 3 \\(query, positive, negative\\)"),
        (id_triples, "1\t2\t3\n1\t2\t\n", 2, "negative's id is empty"),
        (id_triples, "1\t2\ta text\n", 1, "negative's id 'a text' holds whitespace"),
        (triples, "", None, "is empty, expected triples"),
        (examples, '{"query": "q", "pos": ["a"]}\n', 1, "no key 'neg'; found 'query', 'pos'"),
        (examples, '{"query": 1, "pos": ["a"], "neg": []}\n', 1, "key 'query': expected a string, found a number"),
        (
            examples,
            '{"query": "q", "pos": "a", "neg": []}\n',
            1,
            "key 'pos': expected a list of strings, found a string",
        ),
        (examples, '{"query": "q", "pos": ["a"], "neg": [[]]}\n', 1, "key 'neg': .*, found a list in it"),
        (examples, '{"query": "q", "pos": [], "neg": []}\n', 1, "key 'pos': found an empty list"),
        (examples, '{"query": "q", "pos": ["a"], "neg": []}\nnothing\n', 2, "not JSON"),
        (examples, "", None, "is empty, expected training examples"),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, read: Callable[[Path], object], content: str, line: int | None, problem: str
) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(InputError, match=problem) as caught:
        read(path)
    assert caught.value.line == line
