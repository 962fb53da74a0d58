"""Answers: rankings side by side, and the spans a page highlights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from rankwell.corpus.analyser import Word
from rankwell.corpus.records import Ranking
from rankwell.inputs.reader import LaidOutPairs
from rankwell.rank.answers import did_you_mean, explain_nothing, match_words, plain_text
from rankwell.rank.engines.engine import Logits, probability, relevance
from rankwell.rank.relevance import COMPARED, nothing_fits
from rankwell.serve.formats import Answer, Explain, Search
from rankwell.serve.state import Found, Model, State

MOST_WORDS = 100_000
"""Words whose pieces are remembered for each model."""


def search_answer(
    state: State,
    model: Model | None,
    body: Search,
    query: str,
    found: Found,
    scored: tuple[LaidOutPairs, Logits] | None,
    *,
    most: int,
    least: float | None,
) -> Answer:
    """A page of the ranking, and of the first stage's if both are shown; at most ``most`` documents are highlighted.

    Documents of less relevance than ``least`` are left out of the ranking; None if answers have no relevance.

    ``query`` is the body's as models read it, ``scored`` the pairs of the best documents and what the model said of
    them. Call it from one thread at a time: what highlights has an analyser of its own, so that a long answer delays
    no search.
    """
    candidates, page = found.ranking, slice(body.offset, body.offset + body.k)
    shows_first = body.stages != "rerank"
    before = {docid: rank for rank, docid in enumerate(candidates.docids, 1)}
    after: dict[str, int] = {}
    probabilities: dict[str, float] = {}
    reranked = scores = None
    if scored is not None:
        laid, logits = scored
        scores = laid.join(relevance(logits))
        reranked = state.fuse(query, found, scores)
        after = {docid: rank for rank, docid in enumerate(reranked.docids, 1)}
        probabilities = dict(zip(candidates.docids, laid.join(probability(logits)).tolist(), strict=False))
    ranking, rated = candidates if reranked is None else reranked, dict[str, float]()
    if least is not None:
        rated = state.rate(query, found, ranking.head(max(COMPARED, page.stop)), scores)

    def row(rank: int, docid: str, score: float) -> Answer:
        old, new = before[docid], after.get(docid)
        moved = None if new is None or not shows_first else old - new
        known = {"rank": rank, "id": docid, "score": score, "before": old, "after": new, "moved": moved}
        return {**known, "relevance": rated.get(docid)}

    def rows(ranking: Ranking) -> list[Answer]:
        pairs = zip(ranking.docids[page], ranking.scores[page].tolist(), strict=True)
        return [row(rank, docid, score) for rank, (docid, score) in enumerate(pairs, body.offset + 1)]

    listed = rows(candidates) if shows_first or reranked is None else []
    best = listed if reranked is None else [{**own, "probability": probabilities[own["id"]]} for own in rows(ranking)]
    fitting = [own for own in best if not least or (own["relevance"] or 0.0) >= least]
    nothing = nothing_fits(rated) if best and not fitting else None
    listed, best = fitting if listed is best else listed, fitting
    documents = read_documents(state, list(dict.fromkeys(row["id"] for row in [*listed, *best])), body.fields)
    answer: Answer = {"candidates": len(candidates), "query_matches": [], "query_split_words": []}
    answer["did_you_mean"] = did_you_mean(state.aside, query)
    answer["nothing"] = nothing if len(candidates) else explain_nothing(state.aside, query, body.filter)
    if body.words:
        add_words(state, body.query, found, dict(islice(documents.items(), most)))
    if body.highlight:
        answer |= highlight(state, model, body.query, dict(islice(documents.items(), most)))
    whole = [[{**row, **documents[row["id"]]} for row in some] for some in (best, listed)]
    return {**answer, "results": whole[0], "first": whole[1] if shows_first and reranked is not None else None}


def read_documents(state: State, docids: Sequence[str], fields: Sequence[str] | None) -> Answer:
    """The documents' titles, texts and metadata (``fields`` of it, or all), with no spans to highlight yet."""
    assert state.index is not None
    documents = state.index.documents
    numbers = documents.numbers(docids)
    texts = [(d.title, d.text) for d in documents.read(numbers)] if state.has_texts else [("", None)] * len(docids)
    return {
        docid: {
            "title": title,
            "text": text and plain_text(docid, text),
            "fields": {name: value for name, value in metadata.items() if fields is None or name in fields},
            "title_matches": [],
            "matches": [],
            "split_words": [],
        }
        for docid, (title, text), metadata in zip(docids, texts, documents.metadata(numbers), strict=True)
    }


def add_words(state: State, query: str, found: Found, documents: Answer) -> None:
    """Add which words met which to some documents of an answer."""
    assert state.system is not None
    first = state.system.first_stage
    with state.dense_lock:
        explained = first.dense.explain_words(query, list(documents), first.index, found.encoded)
    names = ("query", "document", "similarity")
    for document, words in zip(documents.values(), explained, strict=True):
        document["words"] = [dict(zip(names, met, strict=True)) for met in words]


def highlight(state: State, model: Model | None, query: str, shown: Answer) -> Answer:
    """Add the spans to highlight to some documents; returns those of the query."""
    documents = list(shown.values())
    texts = [query, *(document["text"] or "" for document in documents)]
    words = state.aside.analyzer.words_batch([*texts, *(document["title"] for document in documents)], codes=True)
    splits = _split_words(model, [list(_apart(some)) for some in words[: len(texts)]], texts)
    matches = [[match._asdict() for match in matched] for matched in match_words(words)]
    spans = zip(matches[1:], splits[1:], matches[len(texts) :], strict=False)
    for document, (matched, split, in_title) in zip(documents, spans, strict=True):
        document["matches"], document["split_words"], document["title_matches"] = matched, split, in_title
    return {"query_matches": matches[0], "query_split_words": splits[0]}


def _apart(words: Sequence[Word]) -> Iterator[Word]:
    """The words that do not overlap with those before, as the parts of codes do."""
    end = 0
    for word in words:
        if word.begin >= end:
            yield word
            end = word.end


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
