"""Peak memory of re-ranking 1000-deep runs of 512-token passages, for more and more queries.

    python bench/rerank_memory.py                        # a tiny BERT and MiniLM's shape, on the CPU
    python bench/rerank_memory.py --queries 2 4 --shapes minilm --depth 200

Weights and texts are random: memory does not depend on them. Each run is a process of its own, which reports its peak
resident set before the first pair is scored (model, index and tokens open) and after the last.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from harness import Table, make_parser, memory, timed
from rankwell import Index, Ranker
from rankwell.corpus.records import Document, Query, Run
from rankwell.rank.texts import make_tokens

SHAPES = {  # hidden size, layers, heads
    "tiny": (16, 1, 1),
    "minilm": (384, 6, 12),
}
VOCABULARY = 30_522
PASSAGES = 1_500


def make_checkpoint(folder: Path, shape: str) -> Path:
    """A random BERT over a vocabulary of short words, as transformers saves it."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    hidden, layers, heads = SHAPES[shape]
    config = BertConfig(  # type: ignore[call-arg,unused-ignore]
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        num_labels=1,
    )
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)  # type: ignore[no-untyped-call,unused-ignore]
    words = [f"w{number}" for number in range(VOCABULARY - 5)]
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    return folder


def make_index(folder: Path) -> Path:
    """Passages that fill a sequence of 512 tokens together with a query of ten."""
    random = np.random.default_rng(0)
    words = random.integers(0, VOCABULARY - 5, (PASSAGES, 499))
    Index.build((Document(str(i), " ".join(f"w{word}" for word in row)) for i, row in enumerate(words)), folder)
    return folder


def measure(model: Path, index: Path, queries: int, depth: int) -> dict[str, float]:
    """Re-rank in this process."""
    random = np.random.default_rng(1)
    asked = [
        Query(str(q), " ".join(f"w{word}" for word in random.integers(0, VOCABULARY - 5, 10))) for q in range(queries)
    ]
    run = Run.from_scores(
        {
            query.qid: {str(docid): 1.0 for docid in random.choice(PASSAGES, depth, replace=False).tolist()}
            for query in asked
        }
    )
    ranker = Ranker.from_pretrained(model)
    texts = Index.open(index)
    make_tokens(texts, ranker.tokenizer)
    ranker.predict([("w1 w2", "w3 " * 499)] * 4)
    before = memory()
    seconds = timed(lambda: ranker.rerank(run, asked, texts, depth=depth))
    return {"before": before, "peak": memory(), "seconds": seconds, "pairs": queries * depth}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--queries", type=int, nargs="*", help="by default 1 4 8 16 32 (tiny), 1 2 (MiniLM)")
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument("--measure", nargs=3, metavar=("MODEL", "INDEX", "QUERIES"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        model, index, queries = chosen.measure
        print(json.dumps(measure(Path(model), Path(index), int(queries), chosen.depth)))
        return
    table = Table("model", "queries", "pairs", "before, MB", "peak, MB", "pairs/s")
    with tempfile.TemporaryDirectory() as scratch:
        index = make_index(Path(scratch) / "index")
        for shape in chosen.shapes:
            model = make_checkpoint(Path(scratch) / shape, shape)
            make_tokens(Index.open(index), Ranker.from_pretrained(model).tokenizer)
            for queries in chosen.queries or {"tiny": [1, 4, 8, 16, 32], "minilm": [1, 2]}[shape]:
                command = [sys.executable, __file__, "--depth", str(chosen.depth), "--measure"]
                done = subprocess.run(
                    [*command, str(model), str(index), str(queries)], check=True, capture_output=True, text=True
                )
                found = json.loads(done.stdout)
                figures = (found["before"], found["peak"], found["pairs"] / found["seconds"])
                table.row(shape, queries, f"{found['pairs']:,}", *(f"{figure:,.0f}" for figure in figures))


if __name__ == "__main__":
    main()
