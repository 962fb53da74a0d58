"""Queries made of passages without any model, for teachers that label whatever they are asked.

Each is made of one sentence of a passage and looks like what people type: lower-cased, short, without punctuation.

keywords   some consecutive content words                         globular clusters captured small galaxies
question   an opening and some content words                      how many globular clusters galaxy
name       a name of the sentence, alone or with content words    what is milky way / milky way globular clusters
span       consecutive words, as they stand (inverse cloze)       some galaxies are much richer in globulars
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.corpus.analyser import LUCENE_STOP_WORDS

KINDS = {"keywords": 0.35, "question": 0.25, "name": 0.25, "span": 0.15}
_OPENINGS = (
    "what is the,what is a,what are,what does,what causes,how many,how much,how long,how do,how does,how to,when did,"
    "when was,where is,where was,where are,who is,who was,who invented,why is,why do,which,define,meaning of,types of"
).split(",")
_ABOUT_NAMES = ("what is {}", "what is {}", "who is {}", "where is {}", "{}", "{} meaning", "{} {rest}", "{} {rest}")
_FURTHER_STOP_WORDS = frozenset(
    "he she his her him its i we you your our my me them who whom whose which what when where how than also been being "
    "were had has have did does do can could may might would should must from about after before between during over "
    "under up down out off so some any all both each more most other only own same too very just however while "
    "because until against through one two first see called known used".split()
)
_STOP_WORDS = LUCENE_STOP_WORDS | _FURTHER_STOP_WORDS
_SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s+")
_WORD = re.compile(r"\w+(?:['’.-]\w+)*")
_NAME = re.compile(r"(?<=[\w,;] )[A-Z]\w+(?:[ -](?:(?:of|the|de|van|von|and) )?[A-Z]\w+){0,3}")
_LONGEST_TEXT = 20_000
_TRIES = 20

TextsAt = Callable[[NDArray[np.int64]], Sequence[str]]


def synthetic_queries(
    texts_at: TextsAt, documents: int, count: int, seed: int, epoch: int
) -> tuple[list[str], NDArray[np.int64]]:
    """``count`` queries and the number of the passage each is made of, one of ``documents``.

    A pure function of the texts, ``seed`` and ``epoch``; passages that no query can be made of are passed over.
    """
    random = np.random.default_rng([seed, epoch, 0x5E])
    queries: list[str] = []
    owners: list[int] = []
    for _ in range(_TRIES):
        if len(queries) >= count:
            break
        numbers = random.integers(documents, size=count - len(queries))
        for number, text in zip(numbers.tolist(), texts_at(numbers), strict=True):
            query = make_query(text, random)
            if query is not None:
                queries.append(query)
                owners.append(number)
    if len(queries) < count:
        raise RankwellError(f"of {count:,} queries to be made of passages only {len(queries):,} could be made")
    return queries, np.array(owners, np.int64)


def make_query(text: str, random: np.random.Generator) -> str | None:
    """A query that one sentence of ``text`` suggests; None where no sentence has two content words."""
    sentences = [(sentence, _content(sentence)) for sentence in _SENTENCE.split(text[:_LONGEST_TEXT])]
    fit = [pair for pair in sentences if len(pair[1]) > 3] or [pair for pair in sentences if len(pair[1]) > 1]
    if not fit:
        return None
    sentence, content = fit[int(random.integers(len(fit)))]
    kind = random.choice(list(KINDS), p=list(KINDS.values()))
    names = _NAME.findall(sentence) if kind == "name" else []
    if names:
        name = names[int(random.integers(len(names)))].lower()
        pattern = _ABOUT_NAMES[int(random.integers(len(_ABOUT_NAMES)))]
        rest = [word for word in content if word not in name.split()]
        return pattern.format(name, rest=_run_of(rest, 1, 3, random)).strip()
    if kind == "span":
        return _run_of([word.lower() for word in _WORD.findall(sentence)], 4, 12, random)
    if kind == "question":
        return f"{_OPENINGS[int(random.integers(len(_OPENINGS)))]} {_run_of(content, 2, 5, random)}"
    return _run_of(content, 3, 8, random)


def _content(sentence: str) -> list[str]:
    """The words that say something, lower-cased, each once."""
    words = [word.lower() for word in _WORD.findall(sentence)]
    return list(dict.fromkeys(word for word in words if len(word) > 1 and word not in _STOP_WORDS))


def _run_of(words: Sequence[str], least: int, most: int, random: np.random.Generator) -> str:
    """From ``least`` to ``most`` consecutive words, fewer where there are not so many."""
    size = min(len(words), int(random.integers(least, most + 1)))
    begin = int(random.integers(len(words) - size + 1))
    return " ".join(words[begin : begin + size])
