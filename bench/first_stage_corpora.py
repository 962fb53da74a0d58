"""The corpora of the first-stage benchmark: real collections, and larger ones resampled from ``wiki``.

A resampled passage is two windows of running words taken from two places of the real text, as long together as a real
passage drawn at random (shortened in proportion where a mean length is set). The words, their frequencies and the
spread of lengths are thus real, and no two passages are alike; the vocabulary, however, is that of ``wiki``.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness import DATA

MSMARCO_PASSAGES = 8_841_823
MSMARCO_WORDS = 56.0
SEED = 20_240_131
BLOCK = 1 << 16
QUERIES = {"wiki": "queries.questions.dev.tsv", "insuranceqa": "queries.valid.tsv"}


@dataclass(frozen=True)
class Corpus:
    """One corpus in the cache: ``passages.tsv``, ``queries.tsv`` and, once analysed, the tokens of both."""

    name: str
    folder: Path

    @property
    def passages(self) -> Path:
        return self.folder / "passages.tsv"

    @property
    def queries(self) -> Path:
        return self.folder / "queries.tsv"

    @property
    def passage_tokens(self) -> Path:
        return self.folder / "passages.tokens"

    @property
    def query_tokens(self) -> Path:
        return self.folder / "queries.tokens"

    @property
    def facts(self) -> dict[str, float]:
        facts: dict[str, float] = json.loads((self.folder / "facts.json").read_text())
        return facts


def size(name: str) -> int | None:
    """How many passages the name of a resampled corpus asks for; None for a real collection.

    >>> size("1M"), size("20k"), size("8.8M"), size("wiki")
    (1000000, 20000, 8841823, None)
    """
    if name in QUERIES:
        return None
    if name == "8.8M":
        return MSMARCO_PASSAGES
    unit = {"k": 1_000, "M": 1_000_000}.get(name[-1:], 1)
    try:
        return round(float(name.rstrip("kM")) * unit)
    except ValueError:
        raise SystemExit(f"unknown corpus {name!r}: give {', '.join(QUERIES)}, or a size such as 1M or 8.8M") from None


def prepare(name: str, cache: Path) -> Corpus:
    """The corpus ``name`` in ``cache``, made there if it is not there yet."""
    count = size(name)
    source = DATA / (name if count is None else "wiki")
    corpus = Corpus(name, cache / "corpora" / name)
    if (corpus.folder / "facts.json").exists():
        return corpus
    if not (source / "collection.tsv.gz").exists():
        raise SystemExit(f"{source} has no collection.tsv.gz; set RANKWELL_DATA to the folder of the public data")
    corpus.folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / QUERIES[source.name], corpus.queries)
    if count is None:
        with gzip.open(source / "collection.tsv.gz") as packed, corpus.passages.open("wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 20)
        lengths, _ = _words(corpus.passages.read_bytes())
        count, mean = len(lengths), float(lengths.mean())
    else:
        with gzip.open(source / "collection.tsv.gz") as packed:
            text = packed.read()
        mean = _resample(text, count, corpus.passages, MSMARCO_WORDS if count == MSMARCO_PASSAGES else None)
    facts = {"passages": count, "mean_words": round(mean, 1), "bytes": corpus.passages.stat().st_size}
    (corpus.folder / "facts.json").write_text(json.dumps(facts))
    return corpus


def _words(collection: bytes) -> tuple[NDArray[np.int64], bytes]:
    """The words of each passage, counted, and all the text as words separated by single spaces."""
    texts = [b" ".join(line.split(b"\t", 1)[1].split()) for line in collection.splitlines()]
    return np.array([text.count(b" ") + 1 for text in texts], np.int64), b" ".join(texts)


def _resample(collection: bytes, count: int, out: Path, mean_words: float | None) -> float:
    """Write ``count`` new passages; returns their mean length in words."""
    lengths, text = _words(collection)
    starts = np.concatenate([[0], np.flatnonzero(np.frombuffer(text, np.uint8) == ord(" ")) + 1, [len(text) + 1]])
    words = len(starts) - 1
    if mean_words is not None:
        lengths = np.maximum(np.rint(lengths * (mean_words / lengths.mean())).astype(np.int64), 2)
    rng = np.random.default_rng(SEED)
    total = 0
    with out.open("wb") as file:
        for first in range(0, count, BLOCK):
            number = min(BLOCK, count - first)
            length = np.maximum(rng.choice(lengths, number), 2)
            total += int(length.sum())
            bounds: list[list[int]] = []
            for window in (length // 2, length - length // 2):
                begin = rng.integers(0, words - window)
                bounds += [starts[begin].tolist(), (starts[begin + window] - 1).tolist()]
            lines = [
                b"D%d\t%b %b\n" % (first + i, text[a:b], text[c:d])
                for i, (a, b, c, d) in enumerate(zip(*bounds, strict=True))
            ]
            file.write(b"".join(lines))
    return total / count


def read_texts(path: Path, limit: int | None = None) -> Iterator[str]:
    """The second column of a two-column file, line by line."""
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in islice(file, limit):
            yield line.rstrip("\n").split("\t", 1)[1]


def read_tokens(path: Path, limit: int | None = None) -> Iterator[list[str]]:
    """The tokens of each line of a file that :func:`write_tokens` wrote."""
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in islice(file, limit):
            yield line.split()


def write_tokens(path: Path, batches: Iterator[list[list[str]]]) -> int:
    """Write each text's tokens as one line, separated by spaces; returns the number of tokens."""
    total = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for batch in batches:
            total += sum(map(len, batch))
            file.writelines(" ".join(tokens) + "\n" for tokens in batch)
    return total
