"""Many queries by hybrid search and by the fusion of two runs on this machine.

    PYTHONPATH=src python bench/hybrid_many.py DATA/insuranceqa

The vectors are random, in MiniLM's width and the documents' in fp16: no time is the bi-encoder's own. `search` is all
of hybrid search over an index of the collection, `fuse` the fusion of the same two runs when documents have their ids.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness import make_parser, timed
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.records import Query, Run
from rankwell.inputs.stored import TokenSource
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.rank.dense import DEEP, DenseRanker
from rankwell.rank.fusion import Shares, fuse
from rankwell.rank.hybrid import search_hybrid
from rankwell.retrieve.index import Index

SHARE = 0.7


class RandomVectors(BiEncoder):
    """A bi-encoder that takes no time."""

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Random vectors."""
        return np.random.default_rng(len(texts)).standard_normal((len(texts), self.width), np.float32)

    def encode_tokens(self, source: TokenSource, numbers: NDArray[np.int64]) -> Vectors:
        """Random vectors."""
        return np.random.default_rng(len(numbers)).standard_normal((len(numbers), self.width), np.float32)


def main() -> None:
    """Measure and print the fastest of several rounds."""
    options = read_options()
    data = open_dataset(options.data)
    texts = [query.text for query in data.queries("train")]
    fusion = Shares.hybrid(SHARE)
    with tempfile.TemporaryDirectory() as folder:
        index = Index.build(data.documents(), Path(folder) / "index")
        dense = DenseRanker(RandomVectors.from_pretrained(DEFAULT))
        dense.vectors(index.segments[0].store)
        print(f"{len(index):,} documents, {DEEP:,} found by each, {options.k:,} kept; ms a query")
        print(f"{'queries':>9}{'search':>9}{'fuse':>9}")
        for count in options.queries:
            asked = [Query(f"q{i}", texts[i % len(texts)]) for i in range(count)]
            search = partial(search_hybrid, index, dense, asked, SHARE, k=options.k)
            searching = min(timed(search) for _ in range(options.rounds))
            # Plain runs, whose documents have ids.
            runs = {"first": Run(index.search(asked, k=DEEP)), "similarity": Run(dense.search(asked, index, DEEP))}
            join = partial(fuse, runs, fusion, depth=options.k)
            fusing = min(timed(join) for _ in range(options.rounds))
            print(f"{count:>9,}{1000 * searching / count:>9.2f}{1000 * fusing / count:>9.2f}", flush=True)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--queries", type=int, nargs="+", default=[2_000, 10_000])
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
