"""How fast models read texts on this machine, measured on a few, to tell what fits into the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rankwell.models.bi_encoder import has_vectors
from rankwell.models.checkpoints.names import find_model
from rankwell.models.devices import Precision, chosen_device
from rankwell.rank.ranker import Ranker
from rankwell.rank.rankers import open_encoder
from rankwell.retrieve.index import Index
from rankwell.training.fit.parts import Parts

SECONDS = 2.0
"""How long each rate is measured."""
WARM_UP = 4
AT_A_TIME = {"cuda": 512, "cpu": 32}
Text = TypeVar("Text")


@dataclass(frozen=True)
class Rates:
    """Vectors of documents and of queries a second."""

    documents: float
    queries: float

    @classmethod
    def measure(cls, index: Index, parts: Parts, encoder: str, device: str | None) -> Rates:
        """Encode some of the documents and queries."""
        opened = open_encoder(encoder, device)
        texts, queries = _texts(index, parts)
        step = AT_A_TIME["cuda" if opened.device.type == "cuda" else "cpu"]
        return cls(_rate(opened.encode_documents, texts, step), _rate(opened.encode_queries, queries, step))


def measure_pairs(index: Index, parts: Parts, start: str, device: str | None) -> float:
    """Pairs of query and document a second that a model reads joined, in the precision of training."""
    cuda = chosen_device(device).type == "cuda"
    precision: Precision = "auto" if cuda else "fp32"
    step = AT_A_TIME["cuda" if cuda else "cpu"]
    texts, queries = _texts(index, parts)
    pairs = [(queries[place % len(queries)], text) for place, text in enumerate(texts)]
    if has_vectors(find_model(start)):
        encoder = open_encoder(start, device, precision)
        return _rate(encoder.encode_documents, [f"{query} {text}" for query, text in pairs], step)
    ranker = Ranker.from_pretrained(start, device=device, precision=precision)
    return _rate(lambda some: ranker.predict(some), pairs, step)


def _texts(index: Index, parts: Parts) -> tuple[list[str], list[str]]:
    """Some documents, evenly spread, and some queries."""
    docids = index.docids(np.linspace(0, len(index) - 1, min(len(index), 1024)).astype(np.int64))
    texts = index.texts(docids)
    queries = [query.text for part in (parts.choose, parts.report) for query in part.queries[:512]] or texts[:1]
    return texts, queries


def _rate(encode: Callable[[Sequence[Text]], object], texts: Sequence[Text], step: int) -> float:
    """Texts a second, after a warm-up."""
    encode(texts[:WARM_UP])
    done, begin = 0, time.perf_counter()
    while done < len(texts) and time.perf_counter() - begin < SECONDS:
        batch = texts[done : done + step]
        encode(batch)
        done += len(batch)
    return done / max(1e-9, time.perf_counter() - begin)
