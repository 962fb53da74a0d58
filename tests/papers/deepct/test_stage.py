"""DeepCT's targets and its training task."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from rankwell.core.errors import RankwellError
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.batching import Sequences
from rankwell.inputs.reader import Reader
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows
from rankwell.models.batch import Placer
from rankwell.papers.deepct.options import DeepctOptions
from rankwell.papers.deepct.stage import TermRecall, TermWeightTask
from rankwell.papers.deepct.weighing import load_token_weights
from rankwell.training.loop.loop import train
from rankwell.training.loop.task import Step

PASSAGES = ["Bees make honey from flowers", "The iron bridge over the river", "Coffee and tea with salt", "bread"]
QUERIES = ["how do bees make honey honey", "the bee", "is honey sweet", "iron bridges", "of the and", "salted coffee"]
JUDGED = [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (0, 2), (0, 0)]


def recall_of(tokenizer: Tokenizer) -> TermRecall:
    rows, documents = (np.array(column, np.int64) for column in zip(*JUDGED, strict=True))
    return TermRecall.of(tokenizer.encode(QUERIES, stems=True), rows, documents)


def slow_target(passage: int, term: str) -> float:
    """By the definition: the share of the passage's queries that contain the term."""
    analyzer = Analyzer.english()
    asking = sorted({query for query, document in JUDGED if document == passage})
    return sum(term in analyzer.terms(QUERIES[query]) for query in asking) / len(asking)


def test_a_target_is_the_share_of_the_passages_queries_that_have_the_term(tokenizer: Tokenizer) -> None:
    recall = recall_of(tokenizer)
    assert recall.documents.tolist() == [0, 1, 2]  # nobody asked for the last passage
    for passage in range(3):
        own = tokenizer.encode([PASSAGES[passage]], stems=True)
        terms = Analyzer.english().terms(PASSAGES[passage])
        stems = own.stems[own.opens].astype(np.int64)
        found = recall.targets(np.full(len(stems), passage), stems)
        np.testing.assert_allclose(found, [slow_target(passage, term) for term in terms], rtol=1e-6)
    honey = tokenizer.encode(["honey"], stems=True).stems[:1].astype(np.int64)
    assert recall.targets(np.array([0]), honey) == pytest.approx(2 / 3)
    assert recall.targets(np.array([2]), honey) == pytest.approx(1 / 2)
    assert recall.targets(np.array([1]), honey) == 0


def test_judgments_without_a_relevant_document_are_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(RankwellError, match="nothing to learn from"):
        TermRecall.of(tokenizer.encode(QUERIES, stems=True), np.zeros(0, np.int64), np.zeros(0, np.int64))


def task_of(tokenizer: Tokenizer, max_length: int = 64) -> TermWeightTask:
    store = DocumentStore.of_texts({f"d{i}": passage for i, passage in enumerate(PASSAGES)})
    source = StoredTokens.open(store.documents, tokenizer, stems=True)
    reader = Reader.of_texts(tokenizer, max_length, windows=Windows())
    return TermWeightTask(source, recall_of(tokenizer), reader)


def step_of(budget: int) -> Step:
    return Step(Placer(torch.device("cpu"), "full"), budget, 1, nullcontext, lambda loss: loss)


def without_dropout(checkpoint: Path) -> torch.nn.Module:
    model, _ = load_token_weights(checkpoint, seed=2)
    return model.eval()


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_the_loss_is_the_mean_over_the_words_of_the_batch(tiny_checkpoint: Path, tokenizer: Tokenizer) -> None:
    model, task = without_dropout(tiny_checkpoint), task_of(tokenizer)
    items = np.array([2, 0])
    found = task.backward(model, items, slice(0, 2), step_of(10_000))
    errors, squares = [], []
    for passage in items:
        pieces = tokenizer.encode([PASSAGES[passage]], stems=True)
        ids = torch.tensor([tokenizer.special.cls, *pieces.ids.tolist(), tokenizer.special.sep])
        n = len(ids)
        one = Sequences(
            ids.numpy().astype(np.int32),
            np.zeros(n, np.int8),
            np.arange(n, dtype=np.int32),
            np.arange(n, dtype=np.int32),
            np.ones(n, bool),
            np.array([n]),
        )
        with torch.no_grad():
            weights = model(*Placer(torch.device("cpu"), "full")(one))[1:-1][torch.from_numpy(pieces.opens)]
        targets = torch.tensor([slow_target(passage, term) for term in Analyzer.english().terms(PASSAGES[passage])])
        errors.append((weights - targets) ** 2)
        squares.append(targets**2)
    assert float(found["loss"]) == pytest.approx(float(torch.cat(errors).mean()), rel=1e-5)
    assert float(found["zero_loss"]) == pytest.approx(float(torch.cat(squares).mean()), rel=1e-5)


def test_parts_and_chunks_add_up_to_the_whole(tiny_checkpoint: Path, tokenizer: Tokenizer) -> None:
    items, task = np.array([1, 2, 0]), task_of(tokenizer, max_length=8)  # windows of six pieces
    assert len(task.lay_out(items)[0].sequences) > 3
    whole, parts = without_dropout(tiny_checkpoint), without_dropout(tiny_checkpoint)
    expected = task.backward(whole, items, slice(0, 3), step_of(10_000))
    shares = [task.backward(parts, items, part, step_of(9)) for part in (slice(0, 1), slice(1, 1), slice(1, 3))]
    for name, value in expected.items():
        assert float(sum(share[name] for share in shares)) == pytest.approx(float(value), rel=1e-5)
    for ours, theirs in zip(gradients(parts), gradients(whole), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


def test_it_learns_which_words_are_asked_for(tiny_checkpoint: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model, _ = load_token_weights(tiny_checkpoint, seed=2)
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    task = task_of(tokenizer)
    options = DeepctOptions(epochs=50, batch=3, learning_rate=3e-3, precision="fp32")
    train(model, task, options, tmp_path / "run", save=lambda folder: folder.mkdir(), device="cpu")
    model.eval()
    passages, targets = task.lay_out(np.arange(3))
    with torch.no_grad():
        weights = model(*Placer(torch.device("cpu"), "full")(passages.sequences))[passages.tokens].numpy()
    assert float(((weights - targets) ** 2).mean()) < 0.3 * float(targets.var())
