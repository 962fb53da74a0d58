"""Learning to write queries: loss and gradient against transformers, chunks and processes, and that it learns."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Query
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.stored import StoredTokens
from rankwell.models.batch import Placer
from rankwell.papers.doc2query.checkpoints import WriterConfig, load_writer, save_writer
from rankwell.papers.doc2query.decoding import Writer, WritingOptions
from rankwell.papers.doc2query.options import Doc2queryOptions
from rankwell.papers.doc2query.stage import QueryPairs, QueryWritingTask, perplexity_on
from rankwell.training.loop.loop import train
from rankwell.training.loop.task import Step

DOCUMENTS = {
    "d1": "the bees keep warm in winter",
    "d2": "a bank lends money to people and takes interest from them",
    "d3": "tea",
    "d4": "insouciantly numeric",
}
QUERIES = [Query("q1", "how do bees keep warm"), Query("q2", "bank loan"), Query("q3", "what is tea for")]
QRELS = Qrels({"q1": {"d1": 1, "d3": 0}, "q2": {"d2": 2, "d4": 1}, "q3": {"d3": 1}})
LIMITS = {"max_length": 12, "max_query": 6}


@pytest.fixture
def loaded(tiny_checkpoint: Path) -> Any:
    return load_writer(tiny_checkpoint, seed=3)


def pairs(tokenizer: Any, level: int = 1) -> QueryPairs:
    tokens = StoredTokens.open(DocumentStore.of_texts(DOCUMENTS).documents, tokenizer)
    return QueryPairs.of(QUERIES, QRELS, tokens, tokenizer, level=level)


def gradient(model: Any, task: QueryWritingTask, items: Any, part: slice, budget: int = 4096) -> tuple[Any, Any]:
    model.zero_grad()
    model.eval()  # without dropout, or chunks would differ
    step = Step(Placer(torch.device("cpu"), "full"), budget, 1, nullcontext, lambda loss: loss)
    found = task.backward(model, items, part, step)
    flat = [p.grad.reshape(-1) if p.grad is not None else torch.zeros(p.numel()) for p in model.parameters()]
    return torch.cat(flat).clone(), {name: float(value) for name, value in found.items()}


def test_every_relevant_document_makes_a_pair(loaded: Any) -> None:
    tokenizer = loaded[1]
    found = pairs(tokenizer)
    assert found.documents.tolist() == [0, 1, 3, 2]
    assert [found.queries.take([row]).ids.tolist() for row in range(4)] == [
        tokenizer.encode([text]).ids.tolist()
        for text in ("how do bees keep warm", "bank loan", "bank loan", "what is tea for")
    ]
    assert pairs(tokenizer, level=2).documents.tolist() == [1]
    with pytest.raises(RankwellError, match="nothing to learn"):
        pairs(tokenizer, level=3)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_loss_and_gradient_are_those_of_transformers(loaded: Any, tmp_path: Path, smoothing: float) -> None:
    model, tokenizer, _ = loaded
    task = QueryWritingTask(pairs(tokenizer), tokenizer, **LIMITS, smoothing=smoothing)
    _, found = gradient(model, task, np.arange(4), slice(0, 4))
    save_writer(tmp_path / "writer", model, tokenizer, WriterConfig())
    reference = transformers.EncoderDecoderModel.from_pretrained(tmp_path / "writer").eval()
    cls, sep = tokenizer.special.cls, tokenizer.special.sep
    losses, pieces = torch.zeros(()), 0
    for row, document in enumerate([0, 1, 3, 2]):
        passage = tokenizer.encode([list(DOCUMENTS.values())[document]]).ids[:10].tolist()
        query = [*tokenizer.encode([[q.text for q in QUERIES][[0, 1, 1, 2][row]]]).ids.tolist(), sep][:6]
        logits = reference(
            input_ids=torch.tensor([[cls, *passage, sep]]),
            attention_mask=torch.ones(1, len(passage) + 2, dtype=torch.int64),
            decoder_input_ids=torch.tensor([[cls, *query[:-1]]]),
        ).logits[0]
        losses = losses + torch.nn.functional.cross_entropy(
            logits, torch.tensor(query), reduction="sum", label_smoothing=smoothing
        )
        pieces += len(query)
    expected = losses / pieces
    assert found["loss"] == pytest.approx(float(expected.detach()), rel=1e-5)
    expected.backward()
    theirs = dict(reference.named_parameters())
    for name, ours in (
        ("decoder.bert.embeddings.word_embeddings.weight", model.decoder.tokens.weight),
        ("encoder.encoder.layer.0.intermediate.dense.weight", model.encoder.layers[0].inner.weight),
        ("decoder.bert.encoder.layer.1.crossattention.self.query.weight", model.decoder.layers[1].cross_query.weight),
        ("encoder.embeddings.word_embeddings.weight", model.encoder.tokens.weight),
    ):
        torch.testing.assert_close(ours.grad, theirs[name].grad, atol=1e-5, rtol=1e-4)


def test_chunks_and_processes_add_up(loaded: Any) -> None:
    model, tokenizer, _ = loaded
    task = QueryWritingTask(pairs(tokenizer), tokenizer, **LIMITS, smoothing=0.1)
    items = np.array([3, 1, 0, 2])
    whole, figures = gradient(model, task, items, slice(0, 4))
    assert figures["loss"] > 0
    chunked, again = gradient(model, task, items, slice(0, 4), budget=1)
    torch.testing.assert_close(chunked, whole, atol=1e-6, rtol=1e-4)
    assert again == pytest.approx(figures, rel=1e-5)
    first, _ = gradient(model, task, items, slice(0, 1))
    second, _ = gradient(model, task, items, slice(1, 4))
    torch.testing.assert_close(first + second, whole, atol=1e-6, rtol=1e-4)
    nothing, none = gradient(model, task, items, slice(2, 2))
    assert not nothing.any()
    assert none == {"loss": 0.0, "accuracy": 0.0}


def test_perplexity_is_that_of_the_loss_without_smoothing(loaded: Any) -> None:
    model, tokenizer, _ = loaded
    task = QueryWritingTask(pairs(tokenizer), tokenizer, **LIMITS)
    _, found = gradient(model, task, np.arange(4), slice(0, 4))
    figures = perplexity_on(task, model, budget=20)
    assert next(iter(figures)) == "log_likelihood"
    assert figures["log_likelihood"] == pytest.approx(-found["loss"], rel=1e-5)
    assert figures["perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-5)


def test_long_passages_are_counted(loaded: Any) -> None:
    tokenizer = loaded[1]
    assert QueryWritingTask(pairs(tokenizer), tokenizer, **LIMITS).passages_cut == 1  # d2
    assert QueryWritingTask(pairs(tokenizer), tokenizer, max_length=256, max_query=32).passages_cut == 0


def test_it_learns_to_copy_the_word_that_matters(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Passages of which one word, the one after "of", is asked for: on passages never seen, it is found."""
    model, tokenizer, config = load_writer(tiny_checkpoint, seed=3)
    with torch.no_grad():  # the fixture's weights are far wider than a real model's, at which attention learns nothing
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(0.2)
    words = "bee honey hive flower river bridge stone iron coffee tea bread salt bank money gold fish".split()
    draw = np.random.default_rng(1)
    triples = [tuple(draw.choice(words, 3, replace=False)) for _ in range(500)]
    docids = [f"d{number}" for number in range(len(triples))]
    texts = dict(zip(docids, (f"the {a} of {b} in {c}" for a, b, c in triples), strict=True))
    tokens = StoredTokens.open(DocumentStore.of_texts(texts).documents, tokenizer)
    queries = [Query(f"q{number}", f"what is {b}") for number, (_, b, _) in enumerate(triples)]
    qrels = Qrels({f"q{number}": {docid: 1} for number, docid in enumerate(docids)})
    learned, held = (
        QueryWritingTask(QueryPairs.of(part, qrels, tokens, tokenizer), tokenizer, **LIMITS)
        for part in (queries[:460], queries[460:])
    )
    options = Doc2queryOptions(epochs=25, batch=32, learning_rate=3e-3, evaluate_every=400)
    outcome = train(
        model,
        learned,
        options,
        tmp_path,
        save=lambda folder: save_writer(folder, model, tokenizer, config),
        device="cpu",
        validate=partial(perplexity_on, held),
    )
    assert outcome.best is not None
    trained, _, _ = load_writer(tmp_path / "model")
    writer = Writer(trained, tokenizer, 12, WritingOptions(n=1, top_k=1, max_query=6), device="cpu")
    written = writer.write(tokens.at(np.arange(460, 500)), docids[460:])
    right = sum(own == [query.text] for own, query in zip(written, queries[460:], strict=True))
    assert right >= 30
