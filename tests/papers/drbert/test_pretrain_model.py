"""Pre-training: parts of a batch add up, and a model learns."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from rankwell.corpus.sources import resolve_documents
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.batch import Placer
from rankwell.models.encoder import Encoder
from rankwell.models.spec import EncoderConfig
from rankwell.papers.drbert.options import PretrainOptions
from rankwell.papers.drbert.pretrain import (
    MaskingVocabulary,
    PretrainingModel,
    PretrainingTask,
    evaluate_pretraining,
    hold_out,
)
from rankwell.sample import FOLDER
from rankwell.training.loop.task import Step

# Learning


def tiny_model(words: int, dropout: float = 0.0) -> PretrainingModel:
    shape = EncoderConfig(
        vocab_size=words, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=256, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    torch.manual_seed(4)
    model = PretrainingModel(Encoder(shape))
    for part in model.encoder.modules():
        if isinstance(part, torch.nn.Linear | torch.nn.Embedding):
            torch.nn.init.normal_(part.weight, std=0.05)
    return model


def step_of(budget: int) -> Step:
    return Step(Placer(torch.device("cpu"), "strm"), budget, 0, nullcontext, lambda loss: loss)


@pytest.fixture(scope="module")
def sample(tiny_tokenizer: Path) -> tuple[StoredTokens, MaskingVocabulary]:
    tokenizer = Tokenizer.open(tiny_tokenizer)
    store = DocumentStore.of_texts({document.docid: document.contents for document in resolve_documents(FOLDER)})
    return StoredTokens.open(store.documents, tokenizer), MaskingVocabulary.of(tokenizer)


def gradients(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def test_the_parts_of_a_batch_add_up_to_the_gradient_of_its_mean_loss(
    sample: tuple[StoredTokens, MaskingVocabulary],
) -> None:
    source, words = sample
    task = PretrainingTask(source, np.arange(len(source)), words, PretrainOptions(max_length=64), 1)
    items = np.random.default_rng(0).permutation(task.draw(2))[:24]
    model = tiny_model(len(words.ordinary)).double()

    pairs = task.pairs(items, 2)
    rows = torch.from_numpy(np.flatnonzero(pairs.targets >= 0))
    said, following = model(*step_of(1).place(pairs.sequences), rows)
    targets = torch.from_numpy(pairs.targets).long()[rows]
    labels = torch.from_numpy(pairs.following)
    mlm = torch.nn.functional.cross_entropy(said, targets)
    nsp = torch.nn.functional.cross_entropy(following[labels >= 0], labels[labels >= 0])
    (mlm + nsp).backward()
    mlm, nsp = mlm.detach(), nsp.detach()
    expected = gradients(model)

    for parts, budget in (([slice(0, 24)], 100_000), ([slice(0, 17), slice(17, 24)], 300)):
        model.zero_grad()
        logs = [task.backward(model, items, part, step_of(budget)) for part in parts]
        torch.testing.assert_close(gradients(model), expected, rtol=1e-4, atol=1e-7)
        total = {name: float(sum(log[name] for log in logs)) for name in logs[0]}
        assert total["mlm_loss"] == pytest.approx(float(mlm), rel=1e-5)
        assert total["nsp_loss"] == pytest.approx(float(nsp), rel=1e-5)
        assert total["loss"] == pytest.approx(float(mlm + nsp), rel=1e-5)
        assert total["mlm_accuracy"] == pytest.approx(float((said.argmax(1) == targets).float().mean()))
        right = (following.argmax(1) == labels)[labels >= 0]
        assert total["nsp_accuracy"] == pytest.approx(float(right.float().mean()))


def test_an_empty_part_adds_nothing(sample: tuple[StoredTokens, MaskingVocabulary]) -> None:
    source, words = sample
    task = PretrainingTask(source, np.arange(len(source)), words, PretrainOptions(), 1)
    model = tiny_model(len(words.ordinary))
    log = task.backward(model, np.arange(4), slice(4, 4), step_of(1000))
    assert float(log["loss"]) == 0.0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_dropout_draws_the_same_numbers_for_the_same_step(sample: tuple[StoredTokens, MaskingVocabulary]) -> None:
    source, words = sample
    task = PretrainingTask(source, np.arange(len(source)), words, PretrainOptions(), 1)
    model = tiny_model(len(words.ordinary), dropout=0.1).train()
    losses = []
    for _ in range(2):
        losses.append(float(task.backward(model, np.arange(16), slice(0, 16), step_of(500))["loss"]))
        torch.rand(3)
    assert losses[0] == losses[1]


def test_a_random_model_learns_the_sample(sample: tuple[StoredTokens, MaskingVocabulary]) -> None:
    source, words = sample
    task, held_out = (
        PretrainingTask(source, rows, words, PretrainOptions(max_length=64), 1)
        for rows in hold_out(np.arange(len(source)), 0.2, 0)
    )
    model = tiny_model(len(words.ordinary))
    before = evaluate_pretraining(model, held_out, step_of(4096))
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    losses, rng = [], np.random.default_rng(1)
    for step in range(40):
        items = rng.choice(task.draw(step // 8), 24, replace=False)
        losses.append(float(task.backward(model, items, slice(0, 24), step_of(4096))["loss"]))
        optimiser.step()
        optimiser.zero_grad()
    assert losses[0] == pytest.approx(math.log(len(words.ordinary)) + math.log(2), abs=0.3)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 1.0
    after = evaluate_pretraining(model, held_out, step_of(4096))
    assert after["mlm_loss"] < before["mlm_loss"] - 0.7
    assert after["mlm_accuracy"] > before["mlm_accuracy"]


class Constant(torch.nn.Module):
    """Gives the same word and the same label everywhere."""

    def __init__(self, words: int, word: int):
        super().__init__()
        self.logits = torch.zeros(words)
        self.logits[word] = 2.0

    def forward(self, tokens, segments, positions, layout, rows):  # type: ignore[no-untyped-def]
        return self.logits.expand(len(rows), -1), torch.tensor([1.0, 0.0]).expand(layout.batch, -1)


def test_held_out_figures_are_means_over_all_pieces_and_pairs(sample: tuple[StoredTokens, MaskingVocabulary]) -> None:
    source, words = sample
    task = PretrainingTask(source, np.arange(60), words, PretrainOptions(), 1)
    pairs = task.pairs(np.arange(60), 0)
    targets, labels = pairs.targets[pairs.targets >= 0], pairs.following[pairs.following >= 0]
    word = int(np.bincount(targets).argmax())
    model = Constant(len(words.ordinary), word)
    task.draw(9)
    figures = evaluate_pretraining(model, task, step_of(700))
    share, all_words = float((targets == word).mean()), math.log(math.e**2 + len(words.ordinary) - 1)
    assert figures["mlm_accuracy"] == pytest.approx(share)
    assert figures["mlm_loss"] == pytest.approx(all_words - 2 * share, rel=1e-5)
    assert figures["nsp_accuracy"] == pytest.approx(float((labels == 0).mean()))
    assert figures == evaluate_pretraining(model, task, step_of(700))


def test_what_is_held_out_is_not_trained_on() -> None:
    train, held_out = hold_out(np.arange(1000), 0.1, seed=3)
    assert (len(train), len(held_out)) == (900, 100)
    assert sorted([*train, *held_out]) == list(range(1000))
    assert not np.array_equal(hold_out(np.arange(1000), 0.1, seed=4)[1], held_out)
    assert len(hold_out(np.arange(2_000_000), 0.1, seed=3)[1]) == 10_000
    assert len(hold_out(np.arange(100), 0.01, seed=3)[1]) == 0  # one passage has no other
