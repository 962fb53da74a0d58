"""The data rankwell-mini is distilled on: parts of wiki and all of medquad as one data set.

    python bench/mini_data.py --expansions expansions.jsonl.gz --out mini-data

``--expansions`` are queries written for wiki's passages (``rankwell expand``, or the stage ``doc2query``); without them
there is no split ``generated``. What is drawn is drawn with a fixed seed.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from harness import DATA, make_parser
from rankwell.core.files import atomic_folder, atomic_text
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.formats import write_qrels, write_queries
from rankwell.corpus.formats.texts import read_expansions
from rankwell.corpus.records import Qrels, Query

Split = tuple[list[Query], dict[str, dict[str, int]]]


def main() -> None:
    """Write the folder and say what is in it."""
    options = read_options()
    draw = random.Random(1)
    wiki, medquad = (open_dataset(str(options.data / name)) for name in ("wiki", "medquad"))
    train = split(wiki, "questions.train")
    dev = first(split(wiki, "questions.dev"), options.dev)
    texts = {document.docid: document.text for document in wiki.documents()}
    kept = {docid for _, qrels in (train, dev) for grades in qrels.values() for docid in grades}
    others = [docid for docid in texts if docid not in kept]
    draw.shuffle(others)
    kept |= set(others[: max(0, options.passages - len(kept))])
    splits = {
        "train": joined(train, split(medquad, "train")),
        "dev": dev,
        "headings": some(within(split(wiki, "headings.train"), kept), options.headings, draw),
    }
    if options.expansions:
        splits["generated"] = generated(options.expansions, kept, options.generated, draw)
    with atomic_folder(options.out) as folder:
        with atomic_text(folder / "collection.tsv") as file:
            file.writelines(f"{docid}\t{text}\n" for docid, text in texts.items() if docid in kept)
            file.writelines(f"{document.docid}\t{document.text}\n" for document in medquad.documents())
        for name, (queries, qrels) in splits.items():
            write_queries(queries, folder / f"queries.{name}.tsv")
            write_qrels(Qrels(qrels), folder / f"qrels.{name}.txt")
            print(f"{name}: {len(queries):,} queries")


def split(dataset: object, name: str) -> Split:
    """The judged queries of a split."""
    queries, qrels = list(dataset.queries(name)), dataset.qrels(name)  # type: ignore[attr-defined]
    return queries, {query.qid: dict(qrels[query.qid]) for query in queries if query.qid in qrels}


def first(part: Split, count: int) -> Split:
    """The first queries."""
    queries = part[0][:count]
    return queries, {query.qid: part[1][query.qid] for query in queries if query.qid in part[1]}


def joined(*parts: Split) -> Split:
    """Several splits as one."""
    qrels = {qid: grades for _, judged in parts for qid, grades in judged.items()}
    return [query for queries, _ in parts for query in queries], qrels


def within(part: Split, kept: set[str]) -> Split:
    """The judgments of kept passages, and the queries that still have one."""
    found = {qid: {docid: grade for docid, grade in grades.items() if docid in kept} for qid, grades in part[1].items()}
    return [query for query in part[0] if found.get(query.qid)], {qid: own for qid, own in found.items() if own}


def some(part: Split, count: int, draw: random.Random) -> Split:
    """So many queries, drawn."""
    queries = draw.sample(part[0], min(count, len(part[0])))
    return queries, {query.qid: part[1][query.qid] for query in queries}


def generated(path: Path, kept: set[str], count: int, draw: random.Random) -> Split:
    """Written queries, each with its passage."""
    pairs = [(one.docid, text) for one in read_expansions(path) if one.docid in kept for text in one.queries]
    draw.shuffle(pairs)
    queries = [Query(f"g{number}", text) for number, (_, text) in enumerate(pairs[:count])]
    return queries, {query.qid: {docid: 1} for query, (docid, _) in zip(queries, pairs, strict=False)}


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--expansions", type=Path, default=None)
    parser.add_argument("--passages", type=int, default=44_000, help="of wiki, those of its questions among them")
    parser.add_argument("--headings", type=int, default=12_000)
    parser.add_argument("--generated", type=int, default=25_000)
    parser.add_argument("--dev", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
