"""BM25's effectiveness beside Lucene's on seven public test sets, both at k1 = .9, b = .4 and at 1.2, .75.

    python bench/bm25_quality.py                 # data from $RANKWELL_DATA or ../shared/data

Lucene's figures were measured with Anserini 1.7.1 (Lucene 9.9.1) and its default English analyser, top 1000.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from harness import DATA, Table, make_parser
from rankwell import BM25, Index, evaluate
from rankwell.corpus.datasets import open_dataset

MEASURES = ("RR@10", "nDCG@10", "AP", "P@10", "R@100", "R@1000")
LUCENE = {
    ("insuranceqa", "valid", 0.9, 0.4): (0.2711, 0.2671, 0.2278, 0.0557, 0.6069, 0.8256),
    ("insuranceqa", "valid", 1.2, 0.75): (0.2768, 0.2749, 0.2349, 0.0574, 0.6230, 0.8392),
    ("wiki", "questions.dev", 0.9, 0.4): (0.6238, 0.6659, 0.6279, 0.0798, 0.8935, 0.9541),
    ("wiki", "questions.dev", 1.2, 0.75): (0.6038, 0.6484, 0.6084, 0.0788, 0.8935, 0.9554),
    ("wiki", "headings.dev", 0.9, 0.4): (0.4097, 0.3571, 0.3042, 0.0986, 0.7384, 0.8596),
    ("wiki", "headings.dev", 1.2, 0.75): (0.4033, 0.3519, 0.3002, 0.0979, 0.7418, 0.8631),
    ("medquad", "dev", 0.9, 0.4): (0.4070, 0.4864, 0.4131, 0.0738, 0.8538, 0.9100),
    ("medquad", "dev", 1.2, 0.75): (0.4085, 0.4911, 0.4145, 0.0753, 0.8671, 0.9154),
    ("cranfield", "test", 0.9, 0.4): (0.5078, 0.3510, 0.2880, 0.2227, 0.7226, 0.9520),
    ("cranfield", "test", 1.2, 0.75): (0.5274, 0.3675, 0.3055, 0.2333, 0.7365, 0.9525),
    ("cacm", "test", 0.9, 0.4): (0.6900, 0.4754, 0.3270, 0.3308, 0.6424, 0.8867),
    ("cacm", "test", 1.2, 0.75): (0.7392, 0.4942, 0.3407, 0.3462, 0.6574, 0.8857),
    ("med", "test", 0.9, 0.4): (0.8872, 0.6651, 0.5118, 0.6100, 0.7729, 0.9118),
    ("med", "test", 1.2, 0.75): (0.9075, 0.6895, 0.5264, 0.6400, 0.7914, 0.9118),
}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--sets", nargs="*", default=sorted({name for name, *_ in LUCENE}))
    options = parser.parse_args()
    table = Table("set", "k1/b", *MEASURES, labels=2)
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.sets:
            dataset = open_dataset(options.data / name)
            index = Index.build(dataset.documents(), Path(scratch) / name, store=False)
            for (own, split, k1, b), theirs in LUCENE.items():
                if own == name:
                    run = index.search(dataset.queries(split), BM25(k1, b), k=1000, threads=os.cpu_count() or 1)
                    ours = evaluate(dataset.qrels(split), run, MEASURES).mean
                    cells = [f"{ours[m]:.4f} ({ours[m] - them:+.4f})" for m, them in zip(MEASURES, theirs, strict=True)]
                    table.row(f"{name} {split}", f"{k1:g}/{b:g}", *cells)


if __name__ == "__main__":
    main()
