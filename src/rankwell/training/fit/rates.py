"""How fast this machine encodes texts, measured on a few, to tell what fits into the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rankwell.rank.rankers import open_encoder
from rankwell.retrieve.index import Index
from rankwell.training.fit.parts import Parts

SECONDS = 2.0
"""How long each rate is measured."""
WARM_UP = 4
AT_A_TIME = {"cuda": 512, "cpu": 32}


@dataclass(frozen=True)
class Rates:
    """Texts a second: vectors of documents and queries, and pairs of both in the precision of training."""

    documents: float
    queries: float
    pairs: float

    @classmethod
    def measure(cls, index: Index, parts: Parts, encoder: str, device: str | None) -> Rates:
        """Encode some of the documents and queries."""
        opened = open_encoder(encoder, device)
        docids = index.docids(np.linspace(0, len(index) - 1, min(len(index), 1024)).astype(np.int64))
        texts = index.texts(docids)
        queries = [query.text for part in (parts.choose, parts.report) for query in part.queries[:512]] or texts[:1]
        step = AT_A_TIME["cuda" if opened.device.type == "cuda" else "cpu"]
        documents = _rate(opened.encode_documents, texts, step)
        of_queries = _rate(opened.encode_queries, queries, step)
        # A re-ranker reads query and document joined; models are trained in fp32 on a CPU.
        pairs = [f"{queries[place % len(queries)]} {text}" for place, text in enumerate(texts)]
        exact = opened if opened.device.type == "cuda" else open_encoder(encoder, device, "fp32")
        return cls(documents, of_queries, _rate(exact.encode_documents, pairs, step))


def _rate(encode: Callable[[Sequence[str]], object], texts: Sequence[str], step: int) -> float:
    """Texts a second, after a warm-up."""
    encode(texts[:WARM_UP])
    done, begin = 0, time.perf_counter()
    while done < len(texts) and time.perf_counter() - begin < SECONDS:
        batch = texts[done : done + step]
        encode(batch)
        done += len(batch)
    return done / max(1e-9, time.perf_counter() - begin)
