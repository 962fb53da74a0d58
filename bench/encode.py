"""Vectors of documents on a CPU: rankwell in fp32 and int8 beside sentence-transformers' ``encode``, in one run.

    PYTHONPATH=src python bench/encode.py --documents 400 --rounds 3

All take turns over the same documents with the same number of threads. On a shared machine the seconds of CPU time say
more than those on the clock, so both are printed. sentence-transformers has the best of several batch sizes.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from harness import DATA, MINILM, clock_and_cpu, machine, make_parser
from rankwell import BiEncoder, read_documents
from rankwell.models.checkpoints.names import find_model

Encode = Callable[[list[str]], Any]


def main() -> None:
    """Measure and print a table."""
    options = read_options()
    torch.set_num_threads(options.threads)
    documents = [document.contents for document in read_documents(options.collection)]
    texts = random.Random(0).sample(documents, min(options.documents, len(documents)))
    peer = SentenceTransformer(str(find_model(options.encoder)), device="cpu")
    exact = BiEncoder.from_pretrained(options.encoder, device="cpu", precision="fp32")
    fast = BiEncoder.from_pretrained(options.encoder, device="cpu", precision="int8")
    # Folders without a module that normalises are saved by other tools; rankwell's vectors always have length 1.
    encode = partial(peer.encode, normalize_embeddings=True)
    sizes = {size: clock_and_cpu(partial(encode, texts, batch_size=size))[1] for size in (8, 32)}
    best = min(sizes, key=lambda size: sizes[size])
    ways: dict[str, Encode] = {
        f"sentence-transformers, batches of {best}": partial(encode, batch_size=best),
        "rankwell fp32": exact.encode_documents,
        "rankwell int8": fast.encode_documents,
    }
    expected = exact.encode_documents(texts)
    similar = {name: np.sum(way(texts) * expected, axis=1) for name, way in ways.items()}
    seconds = {name: [] for name in ways}  # type: dict[str, list[tuple[float, float]]]
    for _ in range(options.rounds):
        for name, way in ways.items():
            seconds[name].append(clock_and_cpu(partial(way, texts)))
    print(machine("torch", "sentence-transformers", "numba"))
    print(f"{len(texts):,} documents, {options.threads} threads, the median of {options.rounds} rounds")
    print(f"{'':<42}{'documents/s':>12}{'per CPU second':>16}{'ratio':>7}{'cosine, mean':>14}{'least':>9}")
    peer_cpu = None
    for name, rounds in seconds.items():
        clock, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        peer_cpu = peer_cpu or cpu
        speeds = f"{len(texts) / clock:>12.1f}{len(texts) / cpu:>16.1f}{peer_cpu / cpu:>7.2f}"
        print(f"{name:<42}{speeds}{similar[name].mean():>14.5f}{similar[name].min():>9.5f}", flush=True)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--collection", default=str(DATA / "insuranceqa" / "collection.tsv.gz"))
    parser.add_argument("--encoder", default=MINILM)
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


if __name__ == "__main__":
    main()
