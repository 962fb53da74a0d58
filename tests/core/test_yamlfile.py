"""YAML that is small, flat and honest is read; all other is one line, at once."""

from __future__ import annotations

import time

import pytest

from rankwell.core.yamlfile import YamlError, parse_yaml

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)


def test_yaml_is_read() -> None:
    tree = parse_yaml("name: a\nstages: {one: {epochs: 2, rate: 2e-5}}\n")
    assert tree["stages"]["one"] == {"epochs": 2, "rate": "2e-5"}
    assert parse_yaml("") is None
    assert parse_yaml("7") == 7


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\na: 2", "the key 'a' comes twice"),
        ("? [a]\n: b", "a key must be plain text"),
        ("a: !!int x", "a value does not fit its type"),
        ("a: !!float x", "a value does not fit its type"),
        ("a: !!int ''", "a value does not fit its type"),
        ("a: !!timestamp 1", "a value does not fit its type"),
        (f"a: {'9' * 5000}", "a value does not fit its type"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("[" * 100_000, "nested more than 64 deep"),
        ("a: " + "{b: " * 1000, "nested more than 64 deep"),
        (BOMB, "the alias *a0 is not supported; write the value out"),
        ("a: &a [*a]", "the alias *a is not supported"),
        ("a: &a {b: 1}\nc: {<<: *a}", "the alias *a is not supported"),
        ("x" * (2**20 + 1), "over 1,048,576 characters"),
        ("a: 1\n---\nb: 2", "but found another document"),
        ("a: \x00", "special characters are not allowed"),
    ],
)
def test_a_problem_is_one_line_at_once(text: str, problem: str) -> None:
    begin = time.thread_time()
    with pytest.raises(YamlError) as caught:
        parse_yaml(text)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.thread_time() - begin < 1


def test_a_problem_knows_its_line() -> None:
    with pytest.raises(YamlError) as caught:
        parse_yaml("a: 1\nb: [1\nc: 2")
    assert caught.value.line == 3
