"""Answers: rankings side by side, and the spans a page highlights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from rankwell.corpus.analyser import Word
from rankwell.corpus.records import Ranking, ranking_order
from rankwell.rank.answers import match_words
from rankwell.serve.formats import Answer, Explain, Search
from rankwell.serve.state import Found, Model, State

MOST_WORDS = 100_000
"""Words whose pieces are remembered for each model."""


@dataclass(frozen=True, eq=False)
class Reranked:
    """Candidates in the model's order, with their probabilities."""

    ranking: Ranking
    probabilities: Sequence[float]

    @classmethod
    def of(cls, docids: Sequence[str], scores: NDArray[np.float32], probabilities: NDArray[np.float32]) -> Reranked:
        """Sort candidates that come in any order."""
        order = ranking_order(docids, scores)
        ranking = Ranking(tuple(docids[i] for i in order), scores[order])
        return cls(ranking, probabilities[order].tolist())


def search_answer(body: Search, candidates: Ranking, reranked: Reranked | None, *, first: str | None) -> Answer:
    """A page of each ranking; each row has its document's rank in both.

    ``first`` is the key of the first stage's page; None leaves it out.
    """
    before = {docid: rank for rank, docid in enumerate(candidates.docids, 1)}
    after = {docid: rank for rank, docid in enumerate(reranked.ranking.docids, 1)} if reranked else {}
    page = slice(body.offset, body.offset + body.k)

    def row(rank: int, docid: str, score: float) -> Answer:
        old, new = before[docid], after.get(docid)
        moved = None if new is None or first is None else old - new
        return {"rank": rank, "docid": docid, "score": score, "before": old, "after": new, "moved": moved}

    def rows(ranking: Ranking) -> list[Answer]:
        pairs = zip(ranking.docids[page], ranking.scores[page].tolist(), strict=True)
        return [row(rank, docid, score) for rank, (docid, score) in enumerate(pairs, body.offset + 1)]

    new_rows = rows(reranked.ranking) if reranked else None
    for entry, probability in zip(new_rows or (), reranked.probabilities[page] if reranked else (), strict=True):
        entry["probability"] = probability
    return {**({first: rows(candidates)} if first else {}), "rerank": new_rows, "candidates": len(candidates)}


def documents_answer(state: State, docids: Sequence[str], fields: Sequence[str] | None) -> Answer:
    """The documents' titles, texts and metadata (``fields`` of it, or all), with no spans to highlight yet."""
    assert state.index is not None
    documents = state.index.documents
    numbers = documents.numbers(docids)
    texts = [(d.title, d.text) for d in documents.read(numbers)] if state.has_texts else [("", None)] * len(docids)
    shown: Answer = {
        docid: {
            "title": title,
            "text": text,
            "metadata": {name: value for name, value in metadata.items() if fields is None or name in fields},
            "title_matches": [],
            "matches": [],
            "split_words": [],
        }
        for docid, (title, text), metadata in zip(docids, texts, documents.metadata(numbers), strict=True)
    }
    return {"query_matches": [], "query_split_words": [], "documents": shown}


def add_words(state: State, query: str, found: Found, answer: Answer, most: int) -> None:
    """Add which words met which to the first documents of an answer, at most ``most``."""
    assert state.system is not None
    first, documents = state.system.first_stage, dict(islice(answer["documents"].items(), most))
    with state.dense_lock:
        explained = first.dense.explain_words(query, list(documents), first.index, found.encoded)
    names = ("query", "document", "similarity")
    for document, words in zip(documents.values(), explained, strict=True):
        document["words"] = [dict(zip(names, met, strict=True)) for met in words]


def highlight(state: State, model: Model | None, query: str, answer: Answer, most: int) -> None:
    """Add the spans to highlight in the query and in the first documents of an answer, at most ``most``.

    Call it from one thread at a time, which uses an analyser of its own: a long answer delays no search.
    """
    documents = list(islice(answer["documents"].values(), most))
    texts = [query, *(document["text"] or "" for document in documents)]
    words = state.highlighter.words_batch([*texts, *(document["title"] for document in documents)])
    splits = _split_words(model, words[: len(texts)], texts)
    matches = [[match._asdict() for match in matched] for matched in match_words(words)]
    answer["query_matches"], answer["query_split_words"] = matches[0], splits[0]
    spans = zip(matches[1:], splits[1:], matches[len(texts) :], strict=False)
    for document, (matched, split, in_title) in zip(documents, spans, strict=True):
        document["matches"], document["split_words"], document["title_matches"] = matched, split, in_title


def _split_words(model: Model | None, words: Sequence[Sequence[Word]], texts: Sequence[str]) -> list[list[Answer]]:
    """The words of each text that the tokenizer splits, with their pieces; known words are not tokenised again."""
    if model is None:
        return [[] for _ in words]
    tokenizer, known = model.ranker.tokenizer, model.pieces_of
    if len(known) > MOST_WORDS:
        known.clear()
    spelled = [
        [text[word.begin : word.end] for word in text_words] for text_words, text in zip(words, texts, strict=True)
    ]
    fresh = list(dict.fromkeys(word for spellings in spelled for word in spellings if word not in known))
    pieces = tokenizer.encode(fresh)
    for word, begin, end in zip(fresh, pieces.begins.tolist(), pieces.ends.tolist(), strict=True):
        split = pieces.continues[begin:end].any()
        known[word] = tokenizer.token_names(pieces.ids[begin:end]) if split else []
    return [
        [
            {"begin": word.begin, "end": word.end, "pieces": known[text]}
            for word, text in zip(text_words, spellings, strict=True)
            if known[text]
        ]
        for text_words, spellings in zip(words, spelled, strict=True)
    ]


def explain_answer(model: Model, query: str, document: str, type: str | None, body: Explain) -> Answer:
    """The explanation of a pair, with one attention map."""
    from rankwell.rank.explain import explain

    explanation = explain(model.ranker, query, document, type, attention=body.attention)
    return {
        **explanation.as_dict(body.layer, body.head),
        "open": explanation.open_in(body.layer).astype(int).tolist(),
        "links": [
            {
                "source": link.source.text,
                "target": link.target.text,
                "source_positions": list(link.source.positions),
                "target_positions": list(link.target.positions),
                "weight": round(link.weight, 5),
            }
            for link in explanation.strongest(body.layer, body.head, most=body.links)
        ],
    }
