"""A stand-in for TextBlob where it is not installed: the same calls, with a word list of five words."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rankwell.papers.ccnu import words as taggers

WORDS = {"obama": "NNP", "canada": "NNP", "policy": "NN", "bought": "VBD", ".": "."}
NAMES = {"obama": "NNP-PERS", "canada": "NNP-LOC"}
Tagged = list[list[str]]


def install(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Make ``textblob.en`` importable; the list returned grows by the words of each call to its parser."""
    calls: list[list[str]] = []

    def find_tags(words: list[str]) -> Tagged:
        calls.append(words)
        return [[word, WORDS.get(word.lower(), "NN")] for word in words]

    def after_a_determiner(tagged: Tagged) -> Tagged:
        before = ["", *(word for word, _ in tagged)]
        return [[word, "NN" if last == "a" else label] for last, (word, label) in zip(before, tagged, strict=False)]

    def names(tagged: Tagged) -> Tagged:
        return [[word, NAMES.get(word.lower(), label)] for word, label in tagged]

    english: Any = ModuleType("textblob.en")
    english.parser = SimpleNamespace(find_tags=find_tags)
    english.lexicon = SimpleNamespace(
        context=SimpleNamespace(apply=after_a_determiner), entities=SimpleNamespace(apply=names)
    )
    package: Any = ModuleType("textblob")
    package.en = english
    monkeypatch.setattr(taggers, "version", lambda name: f"stand-in for {name}")
    for name, module in (("textblob", package), ("textblob.en", english)):
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def install_if_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the stand-in unless the real package is there."""
    if find_spec("textblob") is None:
        install(monkeypatch)
