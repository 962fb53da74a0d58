"""How fast models read texts on this machine, measured on a few, to tell what fits into the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from rankwell.core.errors import RankwellError
from rankwell.core.native import working_time
from rankwell.core.stopping import TimeIsUp, time_limit
from rankwell.models.devices import Computing, DTypeName, Precision, chosen_device, resolve
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
Measured = TypeVar("Measured")


class NotTimedError(RankwellError):
    """The time for measurements is up."""


class Speed:
    """How fast models are here on some of the texts; each rate is measured once, and all within so many seconds."""

    def __init__(self, index: Index, parts: Parts, device: str | None, seconds: float):
        self._index, self._parts, self._device = index, parts, device
        self.left, self._each = seconds, min(SECONDS, seconds / 20)
        self._measured: dict[tuple[str, ...], Any] = {}

    def once(self, what: tuple[str, ...], measure: Callable[[], Measured]) -> Measured:
        """What was measured before, or is now. Raises where no time is left for it."""
        if what in self._measured:
            before: Measured = self._measured[what]
            return before
        begin = working_time()
        try:
            if self.left <= 0:
                raise TimeIsUp
            with time_limit(self.left, working_time):
                self._measured[what] = measured = measure()
                return measured
        except TimeIsUp:
            raise NotTimedError("there is no time to measure how long it takes") from None
        finally:
            self.left -= working_time() - begin

    def vectors(self, encoder: str) -> tuple[float, float]:
        """How many documents and how many queries a bi-encoder encodes in a second for a search."""
        return self.once(("vectors", encoder), lambda: self._encode(encoder, "auto"))

    def pairs(self, start: str) -> float:
        """How many pairs of a query and a document a model reads in a second, in the precision of training."""
        on = chosen_device(self._device)
        precision = resolve("auto", "train", on) if on.type == "cpu" else "auto"
        documents, queries = self.once(("pairs", start), lambda: self._encode(start, precision))
        return 1 / (1 / documents + 1 / queries)

    def _encode(self, encoder: str, precision: Precision | DTypeName) -> tuple[float, float]:
        opened = open_encoder(encoder, Computing(self._device, precision))
        step = AT_A_TIME["cuda" if opened.device.type == "cuda" else "cpu"]
        documents = _rate(opened.encode_documents, self._texts, step, self._each)
        return documents, _rate(opened.encode_queries, self._queries, step, self._each)

    def scores(self, model: str, *, words: bool) -> float:
        """How many pairs a re-ranker scores in a second, or a bi-encoder by its ``words``."""

        def measure() -> float:
            queries = self._queries
            # As in lists of ten.
            pairs = [(queries[place // 10 % len(queries)], text) for place, text in enumerate(self._texts)]
            ranker = open_ranker(model, words=words, device=self._device)
            step = AT_A_TIME[chosen_device(self._device).type]
            return _rate(lambda some: ranker.predict(some), pairs, step, self._each)

        return self.once(("scores", model, f"{words}"), measure)

    @property
    def mean_words(self) -> float:
        """The mean number of words of some documents."""
        return float(np.mean([len(text.split()) for text in self._texts]))

    @cached_property
    def _texts(self) -> list[str]:
        """Some documents, evenly spread."""
        numbers = np.linspace(0, len(self._index) - 1, min(len(self._index), 1024)).astype(np.int64)
        return self._index.texts(self._index.docids(numbers))

    @cached_property
    def _queries(self) -> list[str]:
        """Some queries; without any, a document."""
        parts = (self._parts.judged, self._parts.report)
        return [query.text for part in parts for query in part.queries[:512]] or self._texts[:1]


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
