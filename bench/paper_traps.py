"""Words that look alike to a tokenizer: trap pairs made from relevant passages, and look-alikes among candidates.

A look-alike of a split word begins with the same token and has another stem, and neither word begins with the other.
"""

from __future__ import annotations

import csv
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from harness import write_json
from rankwell import sample
from rankwell.corpus.datasets import FolderDataset
from rankwell.corpus.formats import read_run
from rankwell.corpus.records import Query
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.names import BACKBONE, find_model
from rankwell.rank.ranker import Ranker
from rankwell.training.experiments.rare_words import SplitWords, words_of

PASSAGE_WORDS, CANDIDATE_WORDS = 110, 130
SAMPLED = 50_000
MOST_CASES = 600
RARE_WORDS = "rare-words"


@dataclass(frozen=True)
class Case:
    """A query, a relevant passage, and the copies that should score lower, by what replaced the query's word."""

    qid: str
    query: str
    type: str | None
    passage: str
    copies: dict[str, str]


def make_traps(folder: Path, split: str, out: Path) -> None:
    """Write up to 600 cases: a relevant passage, and copies with another word in place of a split query word."""
    draw = random.Random(7)
    data, tokenizer = FolderDataset(folder), Tokenizer.open(find_model(BACKBONE))
    texts = {document.docid: document.text for document in data.documents()}
    some = list(texts.values()) if len(texts) < SAMPLED else draw.sample(list(texts.values()), SAMPLED)
    frequency = Counter(word for text in some for word in words_of(text))
    queries, qrels = data.queries(split), data.qrels(split)
    vocabulary = {word for word, count in frequency.items() if count >= 2 and 4 <= len(word) <= 20}
    words = SplitWords(vocabulary | {word for query in queries for word in words_of(query.text)}, tokenizer)
    types = data.types(split) if data.has("types") else {}
    cases = []
    for query in queries:
        relevant = [docid for docid, grade in qrels.get(query.qid, {}).items() if grade >= 1][:3]
        passages = [" ".join(texts[docid].split()[:PASSAGE_WORDS]) for docid in relevant]
        found = next(_trap_texts(query, passages, words, vocabulary, draw), None)
        if found is not None:
            cases.append(Case(query.qid, query.text, types.get(query.qid), *found))
    draw.shuffle(cases)
    write_json(out, [asdict(case) for case in cases[:MOST_CASES]])
    print(f"{len(cases):,} of {len(queries):,} queries give a trap pair; wrote {min(len(cases), MOST_CASES)} to {out}")


def _trap_texts(
    query: Query, passages: list[str], words: SplitWords, vocabulary: set[str], draw: random.Random
) -> Iterator[tuple[str, dict[str, str]]]:
    asked = words_of(query.text)
    split = [word for word in asked if word in words.tokens and len(word) >= 4]
    draw.shuffle(split)
    for passage in passages:
        taken = {*words_of(passage), *asked}
        for word in split:
            if word not in words_of(passage):
                continue
            tokens = words.tokens[word]
            alike = [other for other in words.look_alikes(word) if other in vocabulary and other not in taken]
            alike = [other for other in alike if words.tokens[other][1] != tokens[1]]
            unlike = [other for other in words.unlike(word) if other in vocabulary and other not in taken]
            if not alike or not unlike:
                continue
            alike = [other for other in alike if len(words.tokens[other]) == len(tokens)] or alike
            place = re.compile(rf"(?<![A-Za-z]){word}(?![A-Za-z])", re.IGNORECASE)
            chosen = {"look-alike": draw.choice(alike), "unlike": draw.choice(unlike)}
            yield passage, {kind: place.sub(other, passage) for kind, other in chosen.items()}


def rare_word_cases() -> list[Case]:
    """The bundled sample's rare words: the right passage, and one about the look-alike."""
    data = FolderDataset(sample.FOLDER)
    texts = {document.docid: document.text for document in data.documents()}
    queries = {query.qid: query.text for split in ("dev", "train") for query in data.queries(split)}
    types = {**data.types("dev"), **data.types("train")}
    rows = [line.split("\t") for line in (data.folder / "rare_words.tsv").read_text(encoding="utf-8").splitlines()]
    return [
        Case(qid, queries[qid], types.get(qid), texts[right], {"look-alike": texts[wrong]})
        for qid, _, _, right, wrong in rows
    ]


def score_traps(arm: Path, cases_file: str, out: Path, device: str | None) -> None:
    """Write each case's margin over each copy, in standard deviations of the model's scores of the dev candidates."""
    if cases_file == RARE_WORDS:
        cases = rare_word_cases()
    else:
        cases = [Case(**fields) for fields in json.loads(Path(cases_file).read_text(encoding="utf-8"))]
    deviation = json.loads((arm / "result.json").read_text(encoding="utf-8"))["standard deviation of dev scores"]
    ranker = Ranker.from_pretrained(arm / "model", device=device)
    kinds = list(cases[0].copies)
    pairs = [(case.query, text) for case in cases for text in (case.passage, *case.copies.values())]
    types = [case.type for case in cases for _ in range(1 + len(kinds))] if ranker.takes_types else None
    scores = ranker.predict(pairs, types=types).reshape(len(cases), -1)
    margins = (scores[:, :1] - scores[:, 1:]) / deviation
    with open(out, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["case", "replacement", "margin"])
        for k, kind in enumerate(kinds):
            table.writerows([i + 1, kind, f"{margin:.3g}"] for i, margin in enumerate(margins[:, k].tolist()))
    for k, kind in enumerate(kinds):
        print(f"{kind}: beaten in {(margins[:, k] > 0).mean():.3f} of {len(cases)}, margin {margins[:, k].mean():.3f}")


def compare_candidates(folder: Path, split: str, arm: Path, out: Path) -> None:
    """Write how often the first relevant candidate with a split query word beats those with only a look-alike of it.

    Queries without such candidates are left out; *neither* are candidates without the word and without look-alikes.
    """
    data, run, first = FolderDataset(folder), read_run(arm / "dev.run.gz"), read_run(arm / "first-stage.run.gz")
    qrels, queries = data.qrels(split), {query.qid: words_of(query.text) for query in data.queries(split)}
    needed = {docid for ranking in run.values() for docid in ranking.docids}
    texts = {document.docid: document.text for document in data.documents() if document.docid in needed}
    inside = {docid: set(words_of(" ".join(text.split()[:CANDIDATE_WORDS]))) for docid, text in texts.items()}
    listed = {word for some in inside.values() for word in some if 4 <= len(word) <= 20}
    asked = {word for some in queries.values() for word in some if len(word) >= 4}
    words = SplitWords(listed | asked, Tokenizer.open(find_model(BACKBONE)))
    with open(out, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["qid", "look-alike documents", "look-alike", "neither"])
        for qid, ranking in first.items():
            split_words = [word for word in queries[qid] if word in words.tokens and len(word) >= 4]
            alike = {other for word in split_words for other in words.look_alikes(word)} - set(queries[qid])
            scores, relevant = dict(run[qid]), {docid for docid, grade in qrels[qid].items() if grade >= 1}
            true: list[float] = []
            others: dict[str, list[float]] = {"look-alike": [], "neither": []}
            for docid in ranking.docids:
                has_word = not inside[docid].isdisjoint(split_words)
                if docid in relevant and has_word:
                    true.append(scores[docid])
                elif docid not in relevant and not has_word:
                    others["neither" if inside[docid].isdisjoint(alike) else "look-alike"].append(scores[docid])
            if true and all(others.values()):
                wins = [f"{np.mean([true[0] > score for score in some]):.4g}" for some in others.values()]
                table.writerow([qid, len(others["look-alike"]), *wins])
