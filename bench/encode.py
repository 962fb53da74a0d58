"""Vectors of documents on a CPU: rankwell in three precisions beside sentence-transformers' ``encode``, in one run.

    PYTHONPATH=src python bench/encode.py --documents 400 --rounds 3
    PYTHONPATH=src python bench/encode.py --work FOLDER    # with the graphs that graph_peers.py wrote there

All take turns over the same documents with the same number of threads. On a shared machine the seconds of CPU time say
more than those on the clock, so both are printed, ratios with their range over the rounds. sentence-transformers has
the fastest of three sizes of batches.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from graph_peers import find_graphs, use_graph
from harness import DATA, MINILM, clock_and_cpu, machine, make_parser, write_json
from rankwell import BiEncoder, read_documents
from rankwell.models.checkpoints.names import find_model
from rerank_cpu import BATCHES, PACKAGES, PRECISIONS, spread

Encode = Callable[[list[str]], Any]


def main() -> None:
    """Measure and print a table."""
    options = read_options()
    torch.set_num_threads(options.threads)
    documents = [document.contents for document in read_documents(options.collection)]
    texts = random.Random(0).sample(documents, min(options.documents, len(documents)))
    model = str(find_model(options.encoder))
    ways: dict[str, Encode] = {}
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        if precision not in PRECISIONS:
            continue
        way, best = fastest(SentenceTransformer(model, device="cpu", model_kwargs={"dtype": dtype}), texts)
        ways[f"sentence-transformers {precision}, batches of {best}"] = way
    for graph in find_graphs(options.work) if options.work else []:
        peer = SentenceTransformer(model, device="cpu")
        use_graph(peer, graph, options.threads)
        way, best = fastest(peer, texts)
        ways[f"sentence-transformers {graph.stem}, batches of {best}"] = way
    for precision in PRECISIONS:
        encoder = BiEncoder.from_pretrained(options.encoder, device="cpu", precision=precision)
        ways[f"rankwell {precision}"] = encoder.encode_documents
    expected = ways["rankwell fp32"](texts)
    similar = {name: np.sum(way(texts) * expected, axis=1) for name, way in ways.items()}
    seconds = {name: [] for name in ways}  # type: dict[str, list[tuple[float, float]]]
    for _ in range(options.rounds):
        for name, way in ways.items():
            seconds[name].append(clock_and_cpu(partial(way, texts)))
    print(machine(*PACKAGES))
    print(f"{len(texts):,} documents, {options.threads} threads, the median of {options.rounds} rounds")
    print(f"{'':<54}{'documents/s':>12}{'per CPU second':>16}  ratio, clock  ratio, CPU  cosine: mean, least")
    records = []
    reference = next(iter(seconds.values()))
    for name, rounds in seconds.items():
        clock, cpu = np.median(rounds, axis=0)
        ratios = np.divide(reference, rounds)
        speeds = f"{len(texts) / clock:>12.1f}{len(texts) / cpu:>16.1f}  {spread(ratios[:, 0])}  {spread(ratios[:, 1])}"
        print(f"{name:<54}{speeds}{similar[name].mean():>14.5f}{similar[name].min():>9.5f}", flush=True)
        cosines = {"mean": float(similar[name].mean()), "least": float(similar[name].min())}
        records.append({"system": name, "seconds": rounds, "ratios": ratios.tolist(), "cosine": cosines})
    facts = {"machine": machine(*PACKAGES), "threads": options.threads, "documents": len(texts)}
    write_json(options.out, facts | {"systems": records})


def fastest(peer: SentenceTransformer, texts: list[str]) -> tuple[Encode, int]:
    """The peer with the fastest size of batches; it sorts texts by length."""
    # Folders without a module that normalises are saved by other tools; rankwell's vectors always have length 1.
    encode = partial(peer.encode, normalize_embeddings=True)
    encode(texts[:8])
    best = min(BATCHES, key=lambda size: clock_and_cpu(partial(encode, texts, batch_size=size))[0])
    return partial(encode, batch_size=best), best


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--collection", default=str(DATA / "insuranceqa" / "collection.tsv.gz"))
    parser.add_argument("--encoder", default=MINILM)
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="folder that graph_peers.py wrote")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


if __name__ == "__main__":
    main()
