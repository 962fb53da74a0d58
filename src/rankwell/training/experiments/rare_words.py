"""DR-BERT's Table 3 and Figures 1 and 4: do two models tell a rare word from one that looks like it to the tokenizer?

A case is a query with a word that the tokenizer splits (*bogue* = ``bog ##ue``), the document that answers it, and a
misleading one with a look-alike in its place (*bogus* = ``bog ##us``). Both models rank both documents among the first
stage's candidates. Cases come from a file or are mined from a data set.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import Stemmer

from rankwell.core.errors import InputError, MissingExtraError, RankwellError
from rankwell.core.files import atomic_text, read_lines
from rankwell.core.manifest import write_json
from rankwell.corpus.datasets import Dataset
from rankwell.corpus.records import Qrels, Query, Ranking, Run
from rankwell.evaluation.significance import paired_t_test
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.plots.attention import draw_attention
from rankwell.rank.explain import attention_maps, explain
from rankwell.rank.ranker import Ranker
from rankwell.retrieve.index import Index
from rankwell.training.data.prepare import dev_name, find_types, open_collection

COLUMNS = 5
DEPTH = 100
"""Candidates of each query."""
PICTURES = 3
MAX_CASES = 40
"""Mined cases by default: with 100 candidates and two models 8,000 pairs, some minutes on two cores."""
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


def read_cases(path: str | Path) -> list[RareWordCase]:
    """Read cases: query id, rare word, look-alike, id of the right document, id of the misleading one, with tabs."""
    cases = []
    for number, line in read_lines(path):
        if not line.strip():
            continue
        cells = line.rstrip("\r\n").split("\t")
        if len(cells) != COLUMNS:
            problem = f"found {len(cells)} columns, expected {COLUMNS}"
            raise InputError(path, number, f"{problem}: query id, word, look-alike, right docid, misleading docid")
        cases.append(RareWordCase(*cells))
    if not cases:
        raise InputError(path, None, "no cases")
    return cases


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
        self._by_length: dict[int, list[str]] = defaultdict(list)
        self._by_stem: dict[str, set[str]] = defaultdict(set)
        for word, stem in self._stems.items():
            self._by_stem[stem].add(word)
        for word, ids in self.tokens.items():
            self._by_first[ids[0]].append(word)
            self._by_length[len(ids)].append(word)

    def same_stem(self, word: str) -> set[str]:
        """The word and its other forms in the vocabulary, split or not: *annuities*, *annuity*."""
        return self._by_stem[self._stems[word]]

    def look_alikes(self, word: str) -> list[str]:
        """Words with the same first token and another stem, neither of which begins with the other."""
        return [
            other
            for other in self._by_first[self.tokens[word][0]]
            if self._stems[other] != self._stems[word] and not other.startswith(word) and not word.startswith(other)
        ]

    def unlike(self, word: str) -> list[str]:
        """Words of as many tokens with another first token and another first letter."""
        tokens = self.tokens[word]
        same_length = self._by_length[len(tokens)]
        return [other for other in same_length if self.tokens[other][0] != tokens[0] and other[0] != word[0]]


def mine_cases(
    index: Index,
    queries: Sequence[Query],
    qrels: Qrels,
    tokenizer: Tokenizer,
    *,
    max_cases: int = MAX_CASES,
) -> list[RareWordCase]:
    """At most one case for each query: its first candidate that has a look-alike of a split query word but no form of
    the word, and its first relevant document that has the word.
    """
    return list(islice(_mine(index, queries, qrels, tokenizer), max_cases))


def _mine(index: Index, queries: Sequence[Query], qrels: Qrels, tokenizer: Tokenizer) -> Iterator[RareWordCase]:
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


def compare_on_rare_words(
    models: Sequence[str],
    data: str | Path,
    out: Path,
    *,
    cases: Sequence[RareWordCase] | None = None,
    max_cases: int = MAX_CASES,
    device: str | None = None,
) -> dict[str, Any]:
    """Write how two models rank the documents of each case, and draw their attention where they differ most.

    ``cases`` may be of the queries of any split of ``data``; without them up to ``max_cases`` are mined from
    its dev split. Leaves ``table.md``, ``cases.csv``, ``results.json`` and, with matplotlib,
    ``attention-QID.png`` for the three cases whose misleading document falls the most from the first model to
    the second.
    """
    if len(models) != 2 or models[0] == models[1]:
        raise RankwellError(f"rare words compare two models, found {', '.join(models) or 'none'}")
    rankers = {name: Ranker.from_pretrained(name, device=device) for name in models}
    collection = open_collection(str(data), out)
    dataset, index = collection.dataset, collection.index
    typed = any(ranker.takes_types for ranker in rankers.values())
    splits = [dev_name(dataset)] if cases is None else dataset.splits
    queries = list(_queries(dataset, splits, typed, out))
    if cases is None:
        tokenizer = rankers[models[0]].tokenizer
        cases = mine_cases(index, queries, dataset.qrels(splits[0]), tokenizer, max_cases=max_cases)
        if not cases:
            raise RankwellError(f"{dataset.name}: no query of the split {splits[0]!r} has candidates with a look-alike")
    by_qid = {query.qid: query for query in queries}
    asked = [by_qid[qid] for qid in dict.fromkeys(case.qid for case in cases) if qid in by_qid]
    candidates = _candidates(cases, by_qid, index.search(asked, k=DEPTH), index)
    placed = {name: _place(ranker, cases, asked, candidates, index) for name, ranker in rankers.items()}
    result = _summarise(cases, placed)
    _write(out, cases, by_qid, placed, result)
    first, second = placed.values()
    falls = [after.misleading_rank - before.misleading_rank for before, after in zip(first, second, strict=True)]
    for place in sorted(range(len(cases)), key=lambda k: -falls[k])[:PICTURES]:
        _draw(rankers, cases[place], by_qid[cases[place].qid], index, out)
    return result


def _queries(dataset: Dataset, splits: Iterable[str], typed: bool, out: Path) -> Iterator[Query]:
    for split in splits:
        queries = dataset.queries(split)
        types = find_types("auto", dataset, split, queries, out) if typed else {}
        yield from (replace(query, type=types.get(query.qid)) for query in queries)


def _candidates(cases: Sequence[RareWordCase], queries: Mapping[str, Query], found: Run, index: Index) -> Run:
    """The first stage's candidates of each case's query, with the case's two documents if it missed them."""
    extra: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        if case.qid not in queries:
            raise RankwellError(f"case {case.word!r}: no query has the id {case.qid!r}")
        for docid in (case.right, case.misleading):
            if docid not in index:
                raise RankwellError(f"case {case.word!r}: document {docid!r} is not in the collection")
            extra[case.qid].append(docid)
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


def _summarise(cases: Sequence[RareWordCase], placed: Mapping[str, Sequence[Placed]]) -> dict[str, Any]:
    """Means over the cases, and whether the second model differs from the first."""
    rows: dict[str, Any] = {}
    for name, some in placed.items():
        rows[name] = {
            "right document wins": float(np.mean([each.right_score > each.misleading_score for each in some])),
            "mean rank, right document": float(np.mean([each.right_rank for each in some])),
            "mean rank, misleading document": float(np.mean([each.misleading_rank for each in some])),
        }
    ranks = [np.array([each.misleading_rank for each in some], np.float64) for some in placed.values()]
    p = paired_t_test(ranks[1], ranks[0]) if len(cases) > 1 and (ranks[0] != ranks[1]).any() else 1.0
    return {"cases": len(cases), "models": rows, "p, rank of the misleading document": p}


# Files


def _write(
    out: Path,
    cases: Sequence[RareWordCase],
    queries: Mapping[str, Query],
    placed: Mapping[str, Sequence[Placed]],
    result: Mapping[str, Any],
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "results.json", dict(result))
    text = io.StringIO()
    names = [f"{model} {name.replace('_', ' ')}" for model in placed for name in Placed.__annotations__]
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*RareWordCase.__annotations__, *names])
    for k, case in enumerate(cases):
        values = [value for some in placed.values() for value in asdict(some[k]).values()]
        table.writerow([*asdict(case).values(), *(f"{value:.6g}" for value in values)])
    with atomic_text(out / "cases.csv") as file:
        file.write(text.getvalue())
    with atomic_text(out / "table.md") as file:
        file.writelines(_lines(cases, queries, placed, result))


def _lines(
    cases: Sequence[RareWordCase],
    queries: Mapping[str, Query],
    placed: Mapping[str, Sequence[Placed]],
    result: Mapping[str, Any],
) -> Iterator[str]:
    yield f"# Rare words: {result['cases']} cases\n\n"
    yield "| model | right document wins | mean rank, right | mean rank, misleading |\n|---|--:|--:|--:|\n"
    for name, row in result["models"].items():
        wins, right, misleading = row.values()
        yield f"| {name} | {wins:.3f} | {right:.1f} | {misleading:.1f} |\n"
    p = result["p, rank of the misleading document"]
    yield f"\nRank of the misleading document, paired t-test: p = {p:.3g}\n\n"
    heads = " | ".join(f"{name}: score | rank" for name in placed)
    yield f"| query | word | look-alike | {heads} |\n|---|---|---|{'--:|--:|' * len(placed)}\n"
    for k, case in enumerate(cases):
        cells = " | ".join(f"{some[k].misleading_score:.3f} | {some[k].misleading_rank}" for some in placed.values())
        query = queries[case.qid].text.replace("|", " ")
        yield f"| {query} | {case.word} | {case.look_alike} | {cells} |\n"
    yield "\nScore and rank are those of the misleading document, as in DR-BERT's Table 3.\n"


def _draw(rankers: Mapping[str, Ranker], case: RareWordCase, query: Query, index: Index, out: Path) -> None:
    """Draw both models' attention between the query and the misleading document (Figure 4), if matplotlib is there."""
    text = index.texts([case.misleading])[0]
    shown = [explain(each, query.text, text, query.type if each.takes_types else None) for each in rankers.values()]
    path = out / f"attention-{re.sub(r'[^A-Za-z0-9.-]+', '-', case.qid)}.png"
    title = f"{case.word} in the query, {case.look_alike} in the document"
    try:
        if shown[0].tokens == shown[1].tokens:
            draw_attention(attention_maps(shown), path, title=title)
        else:  # templates or tokenizers differ, so the maps have different rows
            for number, one in enumerate(shown, start=1):
                draw_attention(attention_maps([one]), path.with_stem(f"{path.stem}-{number}"), title=title)
    except MissingExtraError:
        return
