"""BM25's effectiveness beside Lucene's on seven public test sets, both at k1 = .9, b = .4 and at 1.2, .75.

    python bench/bm25_quality.py                 # data from $RANKWELL_DATA or ../shared/data
    python bench/bm25_quality.py --spelling docs/results/spelling.json

Lucene's figures were measured with Anserini 1.7.1 (Lucene 9.9.1) and its default English analyser, top 1000. With
``--spelling``: R@10 of queries with one typed error relative to the same without, and what corrections do to queries as
people wrote them, by when a correction is searched. An error is in one known word of five letters or more, drawn with a
seed: a letter left out, put in, replaced, or exchanged with the next, but not the first; the mean of three seeds.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from string import ascii_lowercase
from typing import Any
from unittest.mock import patch

from harness import DATA, Table, clock_and_cpu, machine, make_parser, write_json
from rankwell import BM25, Index, Query, evaluate, sample
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
SPELT = {"sample": "dev", "insuranceqa": "valid", "cranfield": "test", "medquad": "dev", "cacm": "test", "med": "test"}
RULES = {"never": None, "no known word": 1.1, "no rare known word": 0.01, "always": 0.0}
"""When a correction is searched, and the share of the documents below which a known word is rare."""
SEEDS, ERRORS, SHORTEST = 3, 500, 5


def misspell(query: Query, index: Index, rng: random.Random) -> Query | None:
    """The query with an error in one of its words; None if it has no word for it."""
    words = query.text.split()
    long = [place for place, word in enumerate(words) if len(word) >= SHORTEST and word.isalpha()]
    places = [place for place in long if len(index.search(words[place], k=1, syntax=True))]  # which corrects nothing
    if not places:
        return None
    place = rng.choice(places)
    word, letter, at = words[place], rng.choice(ascii_lowercase), rng.randrange(1, len(words[place]) - 1)
    rest = rng.choice(
        [word[at + 1 :], letter + word[at:], letter + word[at + 1 :], word[at + 1] + word[at] + word[at + 2 :]]
    )
    words[place] = word[:at] + rest
    return Query(query.qid, " ".join(words)) if words[place] != word else None


def searched(index: Index, queries: Sequence[Query], rare: float | None) -> Any:
    """The run of queries whose corrections are searched by a rule."""
    if rare is None:
        with patch("rankwell.retrieve.index.find_corrections", lambda *_: {}):
            return index.search(queries, k=100)
    with patch("rankwell.retrieve.index.RARE", rare):
        return index.search(queries, k=100)


def measure_spelling(data: Path, scratch: Path) -> dict[str, Any]:
    """R@10 of misspelt queries relative to well-spelt ones, and the queries as they are, by rule."""
    table, figures = Table("set", "corrections are searched", "misspelt", "ms more", "changed", "RR@10", labels=2), {}
    for name, split in SPELT.items():
        dataset = open_dataset(sample.FOLDER if name == "sample" else data / name)
        index, qrels = Index.build(dataset.documents(), scratch / f"spelt-{name}"), dataset.qrels(split)
        queries = [query for query in dataset.queries(split) if query.qid in qrels]
        drawn = []
        for seed in range(SEEDS):
            rng = random.Random(seed)
            drawn.append(list(islice((bad for query in queries if (bad := misspell(query, index, rng))), ERRORS)))
        plain = searched(index, queries, None)
        for rule, rare in RULES.items():
            shares, slower = [], []
            for wrong in drawn:
                right_ones = [query for query in queries if query.qid in {bad.qid for bad in wrong}]
                times = [clock_and_cpu(partial(searched, index, some, rare))[1] for some in (wrong, right_ones)]
                slower.append(1000 * (times[0] - times[1]) / len(wrong))
                own = {query.qid: qrels[query.qid] for query in wrong}
                found, right = (evaluate(own, r, ["R@10"]).mean["R@10"] for r in (searched(index, wrong, rare), plain))
                shares.append(found / right)
            run = searched(index, queries, rare)
            row = {
                "queries": len(queries),
                "misspelt": len(drawn[0]),
                "R@10 of misspelt queries": [round(share, 4) for share in shares],
                "ms of CPU more": [round(ms, 2) for ms in slower],
                "changed": sum(list(run.get(q.qid, ())) != list(plain.get(q.qid, ())) for q in queries),
                "RR@10": round(evaluate(qrels, run, ["RR@10"]).mean["RR@10"], 4),
            }
            figures[f"{name}, {rule}"] = row
            means = f"{sum(shares) / SEEDS:.1%}", f"{sum(slower) / SEEDS:.1f}"
            table.row(name, rule, *means, f"{row['changed']} of {len(queries)}", row["RR@10"])
    return figures


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--sets", nargs="*", default=sorted({name for name, *_ in LUCENE}))
    parser.add_argument("--spelling", type=Path, metavar="FILE", help="measure corrections instead")
    options = parser.parse_args()
    if options.spelling:
        with tempfile.TemporaryDirectory() as scratch:
            figures = measure_spelling(options.data, Path(scratch))
        write_json(options.spelling, {"machine": machine("rankwell"), "figures": figures})
        return
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
