"""How fast models read texts on this machine, measured on a few, to tell what fits into the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from rankwell.core.errors import RankwellError
from rankwell.core.native import working_time
from rankwell.core.stopping import TimeIsUp, time_limit
from rankwell.models.devices import Computing, chosen_device, resolve
from rankwell.rank.ranker import open_ranker
from rankwell.rank.rankers import open_encoder
from rankwell.retrieve.index import Index
from rankwell.training.fit.split import Parts

TIMED_STEPS = {"cuda": (60, 16), "cpu": (1, 4)}
"""Steps, and lists in a step, that tell how fast a re-ranker is trained here: the last twenty count."""
ADAPTER_SECONDS = 5e-4
"""Training an adapter, for each pair and epoch: measured with vectors of width 384 on two ARM cores."""
BACKWARD, AUTOCAST = 3.5, 5.0
"""Training on a text costs about this many times as much as encoding it, also in bf16 on a CPU."""
TIMING = 0.1
"""The part of the time that all measurements take at most."""
SECONDS = 2.0
"""How long each rate is measured, or a twentieth of the time for all if that is less."""
AT_A_TIME = {"cuda": 512, "cpu": 10}
"""Texts or pairs in a batch; a CPU may take seconds for more."""
Text = TypeVar("Text")
Rate = TypeVar("Rate")


class NotTimedError(RankwellError):
    """The time for measurements is up."""


class Timer:
    """Measurements of how fast models are here, each made once and all within so many seconds."""

    def __init__(self, seconds: float):
        self.left, self.each = seconds, min(SECONDS, seconds / 20)
        self._rates: dict[tuple[str, ...], Any] = {}

    def once(self, what: tuple[str, ...], measure: Callable[[], Rate]) -> Rate:
        """What was measured before, or is now. Raises where no time is left for it."""
        if what in self._rates:
            rate: Rate = self._rates[what]
            return rate
        begin = working_time()
        try:
            if self.left <= 0:
                raise TimeIsUp
            with time_limit(self.left, working_time):
                self._rates[what] = rate = measure()
                return rate
        except TimeIsUp:
            raise NotTimedError("there is no time to measure how long it takes") from None
        finally:
            self.left -= working_time() - begin


@dataclass(frozen=True)
class Rates:
    """Vectors of documents and of queries a second."""

    documents: float
    queries: float

    @classmethod
    def measure(
        cls, index: Index, parts: Parts, encoder: str, device: str | None, seconds: float, *, training: bool = False
    ) -> Rates:
        """Encode some of the documents and queries, in the precision of ``training`` or that of a search."""
        trained = training and chosen_device(device).type == "cpu"
        precision = resolve("auto", "train", chosen_device(device)) if trained else "auto"
        opened = open_encoder(encoder, Computing(device, precision))
        texts, queries = _texts(index, parts)
        step = AT_A_TIME["cuda" if opened.device.type == "cuda" else "cpu"]
        documents = _rate(opened.encode_documents, texts, step, seconds)
        return cls(documents, _rate(opened.encode_queries, queries, step, seconds))

    @property
    def pairs(self) -> float:
        """Pairs of a query and a document a second."""
        return 1 / (1 / self.documents + 1 / self.queries)


def measure_ranker(
    index: Index, parts: Parts, model: str, device: str | None, seconds: float, *, words: bool = False
) -> float:
    """Pairs of query and document a second that a re-ranker scores, or a bi-encoder by its ``words``."""
    texts, queries = _texts(index, parts)
    pairs = [(queries[place // 10 % len(queries)], text) for place, text in enumerate(texts)]  # as in lists of ten
    ranker = open_ranker(model, words=words, device=device)
    return _rate(lambda some: ranker.predict(some), pairs, AT_A_TIME[chosen_device(device).type], seconds)


def mean_words(index: Index, parts: Parts) -> float:
    """The mean number of words of some documents."""
    texts, _ = _texts(index, parts)
    return float(np.mean([len(text.split()) for text in texts]))


def _texts(index: Index, parts: Parts) -> tuple[list[str], list[str]]:
    """Some documents, evenly spread, and some queries."""
    docids = index.docids(np.linspace(0, len(index) - 1, min(len(index), 1024)).astype(np.int64))
    texts = index.texts(docids)
    queries = [query.text for part in (parts.judged, parts.report) for query in part.queries[:512]] or texts[:1]
    return texts, queries


def _rate(encode: Callable[[Sequence[Text]], object], texts: Sequence[Text], step: int, seconds: float) -> float:
    """Texts a second, after a warm-up."""
    encode(texts[:step])
    done, begin = 0, time.perf_counter()
    while done < len(texts) and time.perf_counter() - begin < seconds:
        batch = texts[done : done + step]
        encode(batch)
        done += len(batch)
    return done / max(1e-9, time.perf_counter() - begin)


def training_factor(device: str | None) -> float:
    """How many times as long training on a text takes as encoding it in the same precision."""
    on = chosen_device(device)
    return AUTOCAST if on.type == "cpu" and resolve("auto", "train", on) != "fp32" else BACKWARD
