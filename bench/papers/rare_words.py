"""DR-BERT's Table 3 and Figures 1 and 4: do two models tell a rare word from one that looks like it to the tokenizer?

A case is a query with a word that the tokenizer splits (*bogue* = ``bog ##ue``), the document that answers it, and a
misleading one with a look-alike in its place (*bogus* = ``bog ##us``). Both models rank both documents among BM25's
first 100. Without a data set the cases are the sample's; with one they are mined from its dev queries.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import Stemmer

from rankwell import sample
from rankwell.corpus.datasets import Dataset
from rankwell.corpus.records import Qrels, Query, Ranking, Run
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.plots.attention import draw_attention
from rankwell.rank.explain import attention_maps, explain
from rankwell.rank.ranker import Ranker
from rankwell.retrieve.index import Index
from rankwell.training.data.prepare import dev_name, find_types, open_collection

DEPTH = 100
"""Candidates of each query."""
PICTURES = 3
_QUERIES_AT_ONCE = 100
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class RareWordCase:
    """A query's rare word and its look-alike, the document that answers the query and the one that misleads."""

    qid: str
    word: str
    look_alike: str
    right: str
    misleading: str


@dataclass(frozen=True)
class Placed:
    """What one model makes of a case: the scores of both documents and their ranks among the candidates."""

    right_score: float
    misleading_score: float
    right_rank: int
    misleading_rank: int


# Look-alikes


def words_of(text: str) -> list[str]:
    """The distinct words of a text, in order."""
    return list(dict.fromkeys(_WORD.findall(text.lower())))


class SplitWords:
    """The words of a vocabulary that a tokenizer splits: their tokens and stems."""

    def __init__(self, words: Iterable[str], tokenizer: Tokenizer):
        listed = sorted(words)
        pieces = tokenizer.encode(listed)
        spans = zip(pieces.begins.tolist(), pieces.ends.tolist(), strict=True)
        tokens = (pieces.ids[begin:end].tolist() for begin, end in spans)
        self.tokens = {word: ids for word, ids in zip(listed, tokens, strict=True) if len(ids) > 1}
        self._stems = dict(zip(listed, Stemmer.Stemmer("english").stemWords(listed), strict=True))
        self._by_first: dict[int, list[str]] = defaultdict(list)
        for word, ids in self.tokens.items():
            self._by_first[ids[0]].append(word)

    def same_stem(self, word: str) -> set[str]:
        """The word and its other forms in the vocabulary, split or not: *annuities*, *annuity*."""
        return {other for other, stem in self._stems.items() if stem == self._stems[word]}

    def look_alikes(self, word: str) -> list[str]:
        """Words with the same first token and another stem, neither of which begins with the other."""
        return [
            other
            for other in self._by_first[self.tokens[word][0]]
            if self._stems[other] != self._stems[word] and not other.startswith(word) and not word.startswith(other)
        ]


def mine_cases(index: Index, queries: Sequence[Query], qrels: Qrels, tokenizer: Tokenizer) -> Iterator[RareWordCase]:
    """At most one case for each query: its first candidate that has a look-alike of a split query word but no form of
    the word, and its first relevant document that has the word.
    """
    # A look-alike counts only in the query's own candidates, so some queries at a time give the cases of all at once.
    for begin in range(0, len(queries), _QUERIES_AT_ONCE):
        some = queries[begin : begin + _QUERIES_AT_ONCE]
        run = index.search(some, k=DEPTH)
        candidates = list(dict.fromkeys(docid for ranking in run.values() for docid in ranking.docids))
        inside = dict(zip(candidates, map(set, map(words_of, index.texts(candidates))), strict=True))
        vocabulary = {word for words in inside.values() for word in words} | {w for q in some for w in words_of(q.text)}
        split = SplitWords({word for word in vocabulary if len(word) >= 4}, tokenizer)
        for query in some:
            case = _find_case(query, qrels.get(query.qid, {}), run, split, inside, index)
            if case is not None:
                yield case


def _find_case(
    query: Query,
    grades: Mapping[str, int],
    run: Run,
    split: SplitWords,
    inside: Mapping[str, set[str]],
    index: Index,
) -> RareWordCase | None:
    relevant = [docid for docid, grade in grades.items() if grade >= 1]
    ranking = run[query.qid].docids if query.qid in run else ()
    asked = words_of(query.text)
    for word in (word for word in asked if word in split.tokens):
        alike = set(split.look_alikes(word)) - set(asked)
        right = next((d for d in relevant if word in words_of(index.texts([d])[0])), None)
        forms = split.same_stem(word)
        without = (docid for docid in ranking if docid not in relevant and inside[docid].isdisjoint(forms))
        misleading = next((docid for docid in without if inside[docid] & alike), None)
        if right is not None and misleading is not None:
            look_alike = min(inside[misleading] & alike)
            return RareWordCase(query.qid, word, look_alike, right, misleading)
    return None


# Two models


def compare_rare_words(models: Sequence[str], data: Path | None, most: int, out: Path, device: str | None) -> None:
    """Write ``cases.csv``, and draw both models' attention where a misleading document falls the most."""
    rankers = {name: Ranker.from_pretrained(name, device=device) for name in models}
    collection = open_collection(str(data or sample.FOLDER), out)
    dataset, index = collection.dataset, collection.index
    typed = any(ranker.takes_types for ranker in rankers.values())
    splits = dataset.splits if data is None else [dev_name(dataset)]
    by_qid = {query.qid: query for query in _queries(dataset, splits, typed, out)}
    if data is None:
        lines = (sample.FOLDER / "rare_words.tsv").read_text(encoding="utf-8").splitlines()
        cases = [RareWordCase(*line.split("\t")) for line in lines]
    else:
        tokenizer = rankers[models[0]].tokenizer
        cases = list(islice(mine_cases(index, list(by_qid.values()), dataset.qrels(splits[0]), tokenizer), most))
    asked = [by_qid[qid] for qid in dict.fromkeys(case.qid for case in cases)]
    candidates = _candidates(cases, index.search(asked, k=DEPTH))
    placed = {name: _place(ranker, cases, asked, candidates, index) for name, ranker in rankers.items()}
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "cases.csv", "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        names = [f"{model} {name.replace('_', ' ')}" for model in placed for name in Placed.__annotations__]
        table.writerow([*RareWordCase.__annotations__, *names])
        for k, case in enumerate(cases):
            values = [value for some in placed.values() for value in asdict(some[k]).values()]
            table.writerow([*asdict(case).values(), *(f"{value:.6g}" for value in values)])
    first, second = placed.values()
    falls = [after.misleading_rank - before.misleading_rank for before, after in zip(first, second, strict=True)]
    for place in sorted(range(len(cases)), key=lambda k: -falls[k])[:PICTURES]:
        case, query = cases[place], by_qid[cases[place].qid]
        text = index.texts([case.misleading])[0]
        shown = [explain(each, query.text, text, query.type if each.takes_types else None) for each in rankers.values()]
        title = f"{case.word} in the query, {case.look_alike} in the document"
        draw_attention(attention_maps(shown), out / f"attention-{case.qid}.png", title=title)


def _queries(dataset: Dataset, splits: Iterable[str], typed: bool, out: Path) -> Iterator[Query]:
    for split in splits:
        queries = dataset.queries(split)
        types = find_types("auto", dataset, split, queries, out) if typed else {}
        yield from (replace(query, type=types.get(query.qid)) for query in queries)


def _candidates(cases: Sequence[RareWordCase], found: Run) -> Run:
    """The first stage's candidates of each case's query, with the case's two documents if it missed them."""
    extra: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        extra[case.qid] += (case.right, case.misleading)
    rankings = {}
    for qid, docids in extra.items():
        listed = list(dict.fromkeys([*(found[qid].docids if qid in found else ()), *docids]))
        rankings[qid] = Ranking.of(listed, np.zeros(len(listed), np.float32))
    return Run(rankings)


def _place(
    ranker: Ranker, cases: Sequence[RareWordCase], queries: Sequence[Query], candidates: Run, index: Index
) -> list[Placed]:
    deepest = max(len(ranking) for ranking in candidates.values())
    ranked = ranker.rerank(candidates, queries, index, depth=deepest)
    placed = []
    for case in cases:
        ranking = ranked[case.qid]
        ranks = {docid: rank for rank, docid in enumerate(ranking.docids, start=1)}
        scores = dict(ranking)
        placed.append(Placed(scores[case.right], scores[case.misleading], ranks[case.right], ranks[case.misleading]))
    return placed
