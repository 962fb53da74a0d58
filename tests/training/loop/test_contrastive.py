"""In-batch negatives: costs by hand, what is ignored, and gradients that do not depend on how a batch is split."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from rankwell.core.arrays import Rows
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.reader import Reader
from rankwell.inputs.stored import StoredTokens
from rankwell.models.batch import Placer
from rankwell.models.checkpoints.folders import load_encoder
from rankwell.models.encoder import Encoder
from rankwell.models.pooling import VectorModel
from rankwell.models.spec import EncoderConfig
from rankwell.training.data.sampling import Lists, RelevantDocuments, find_copies
from rankwell.training.loop.contrastive import TextPairTask, in_batch_softmax
from rankwell.training.loop.gradients import Gradients
from rankwell.training.loop.task import Step
from rankwell.training.options import TrainingOptions

TEXTS = ["bee honey hive", "river bridge stone", "bee honey hive", "iron coffee tea", "salt", "flower of the hive"]
QUERIES = ["bee", "bridge", "coffee", "flower"]
RELEVANT = RelevantDocuments(np.array([0, 5, 1, 3, 5]), np.array([2, 3, 4, 5]), {2: 0})


def test_costs_are_those_of_picking_the_document_among_all() -> None:
    queries = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    documents = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
    ignored = torch.tensor([[False, False, True], [False, False, False]])
    costs = in_batch_softmax(queries, documents, torch.tensor([0, 1]), ignored, 2.0)
    first = -np.log(np.exp(2.0) / (np.exp(2.0) + np.exp(0.0)))
    second = -np.log(np.exp(1.6) / (np.exp(1.2) + np.exp(1.6) + np.exp(1.92)))
    np.testing.assert_allclose(costs.numpy(), [first, second], rtol=1e-5)


def test_relevant_documents_and_copies_of_them_are_no_negatives() -> None:
    ignored = RELEVANT.ignored(np.array([0, 1, 3, 0]), np.array([0, 1, 5, 2]))
    assert ignored.astype(int).tolist() == [[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 1, 1]]
    pairs = RELEVANT.pairs()
    assert pairs.queries.tolist() == [0, 0, 1, 2, 3]
    assert pairs.documents[:, 0].tolist() == [0, 5, 1, 3, 5]


def make_task(
    checkpoint: Path, teacher: Callable[[Rows, Rows], Tensor] | None = None
) -> tuple[TextPairTask, VectorModel]:
    encoder, _, tokenizer = load_encoder(checkpoint)
    assert isinstance(encoder, Encoder)
    store = DocumentStore.of_texts({f"d{n}": text for n, text in enumerate(TEXTS)})
    documents = StoredTokens.open(store.documents, tokenizer)
    assert find_copies(np.arange(len(TEXTS)), documents) == {2: 0}
    model = VectorModel(encoder).train()
    pairs = RELEVANT.pairs()
    lists = Lists(pairs.queries, np.column_stack([pairs.documents, (pairs.documents + 1) % 6]), np.zeros((5, 2)))
    task = TextPairTask(
        lambda epoch: lists,
        RELEVANT,
        tokenizer.encode(QUERIES),
        documents,
        Reader.of_texts(tokenizer, 24),
        20.0,
        teacher=teacher,
    )
    task.draw(0)
    return task, model


def cosines(queries: Rows, documents: Rows) -> Tensor:
    """What a teacher thinks of queries and documents."""
    return torch.from_numpy(np.cos(3.0 * queries[:, None] + documents[None])).float()


@pytest.fixture
def start(tiny_bi_encoder: Path) -> tuple[TextPairTask, VectorModel]:
    return make_task(tiny_bi_encoder)


def gradients(
    task: TextPairTask, model: VectorModel, budget: int, parts: Sequence[slice] = (slice(0, 5),), *, pads: bool = False
) -> Tensor:
    step = Step(Placer(torch.device("cpu"), "full", None), budget, 7, nullcontext, lambda loss: loss, pads=pads)
    model.zero_grad()
    for part in parts:
        figures = task.backward(model, np.arange(5), part, step)
        assert {"loss", "spread"} <= figures.keys()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("taught", [False, True])
def test_gradients_in_chunks_are_those_of_the_whole_batch(taught: bool, tiny_bi_encoder: Path) -> None:
    task, model = make_task(tiny_bi_encoder, cosines if taught else None)
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.0  # chunks have dropout of their own
    for layer in model.encoder.layers:
        layer.attention_dropout = 0.0
    whole = gradients(task, model, 10_000)
    assert whole.abs().max() > 1e-3
    for pads in (False, True):  # texts of a model that pads are sorted by their lengths
        torch.testing.assert_close(gradients(task, model, 12, pads=pads), whole, rtol=1e-4, atol=1e-6)


def test_a_teacher_adds_half_of_the_divergence_from_it(tiny_bi_encoder: Path) -> None:
    alone, taught = make_task(tiny_bi_encoder)[0], make_task(tiny_bi_encoder, cosines)[0]
    model = make_task(tiny_bi_encoder)[1].eval()
    step = Step(Placer(torch.device("cpu"), "full", None), 10_000, 7, nullcontext, lambda loss: loss)
    lists = alone.drawn(np.arange(5))
    with torch.no_grad():
        every = alone.texts(lists, step).compute(model, slice(0, 15))
    student = torch.softmax(20 * every[:5] @ every[5:].T, 1)
    teacher = torch.softmax(20 * cosines(lists.queries, lists.documents.reshape(-1)), 1)
    divergence = float((teacher * (teacher / student).log()).sum(1).mean())
    losses = [float(task.backward(model, np.arange(5), slice(0, 5), step)["loss"]) for task in (alone, taught)]
    assert losses[1] - losses[0] == pytest.approx(divergence / 2, rel=1e-4)
    assert divergence > 0.1


def test_a_chunk_has_the_same_dropout_in_both_passes(start: tuple[TextPairTask, VectorModel]) -> None:
    task, model = start
    once, again = gradients(task, model, 24), gradients(task, model, 24)
    torch.testing.assert_close(once, again)


def test_the_loss_of_one_pair_ignores_what_is_relevant_too(start: tuple[TextPairTask, VectorModel]) -> None:
    task, model = start
    model.eval()
    step = Step(Placer(torch.device("cpu"), "full", None), 10_000, 7, nullcontext, lambda loss: loss)
    lists = task.drawn(np.arange(5))
    texts = task.texts(lists, step)
    with torch.no_grad():
        every = texts.compute(model, slice(0, len(texts.costs)))
    queries, documents = every[:5], every[5:].view(5, 2, -1)
    loss = float(task.backward(model, np.arange(5), slice(0, 5), step)["loss"])
    expected = []
    for row in range(5):
        scores = (20 * documents @ queries[row]).reshape(-1).tolist()
        numbers = lists.documents.reshape(-1).tolist()
        good = {0: {0, 2, 5}, 1: {1}, 2: {3}, 3: {5}}[int(lists.queries[row])]
        kept = [s for c, (s, n) in enumerate(zip(scores, numbers, strict=True)) if c == 2 * row or n not in good]
        expected.append(-np.log(np.exp(scores[2 * row]) / np.exp(kept).sum()))
    assert loss == pytest.approx(np.mean(expected), rel=1e-4)


def test_the_budget_is_halved_until_a_step_fits(
    start: tuple[TextPairTask, VectorModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients, tried = Gradients(start[1], start[0], TrainingOptions(budget=9_000), "full", "cpu"), list[int]()

    def backward(items: Rows, part: slice, seed: int) -> dict[str, Tensor]:
        tried.append(gradients.budget)
        if gradients.budget > 3_000:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return {"loss": torch.zeros(())}

    monkeypatch.setattr(gradients, "_backward", backward)
    with pytest.warns(UserWarning, match="out of GPU memory; continuing with 2,250 tokens at a time"):
        gradients.compute(np.arange(5), 7)
    assert tried == [9_000, 4_500, 2_250]
    gradients.budget = 5_000
    monkeypatch.setattr("rankwell.training.loop.gradients.LEAST_BUDGET", 4_000)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        gradients.compute(np.arange(5), 7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("budget", [None, 512])
def test_on_a_gpu_replayed_graphs_have_the_gradient_of_32_bits(
    budget: int | None, start: tuple[TextPairTask, VectorModel]
) -> None:
    task, _ = start
    config = EncoderConfig(
        vocab_size=600,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    model = VectorModel(Encoder(config)).train()
    exact = copy.deepcopy(model)
    pairs, order, items = RELEVANT.pairs(), np.random.default_rng(0).integers(0, 5, 200), np.arange(200)
    task._lists = Lists(pairs.queries[order], pairs.documents[order], np.ones((200, 1), np.float32))
    step = Step(Placer(torch.device("cpu"), "full", None), 10**6, 7, nullcontext, lambda loss: loss)
    task.backward(exact, items, slice(0, 200), step)
    gradients = Gradients(model, task, TrainingOptions(), "full", "cuda")
    gradients.budget = budget or gradients.budget
    assert gradients.graphed is not None
    for _ in range(5):
        gradients.compute(items, 7)
        for own, expected in zip(model.parameters(), exact.parameters(), strict=True):
            if expected.grad is None or float(expected.grad.norm()) < 1e-3:
                continue
            assert own.grad is not None
            cosine = torch.nn.functional.cosine_similarity(own.grad.cpu().reshape(1, -1), expected.grad.reshape(1, -1))
            assert float(cosine) > 0.98
            assert float(own.grad.norm()) == pytest.approx(float(expected.grad.norm()), rel=0.05)
    assert gradients.graphed.recorded >= 1


def compute_part(rank: int, folder: str, checkpoint: str) -> None:
    """One of two processes: its gradient and its share of the loss, in a file."""
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    task, model = make_task(Path(checkpoint))
    model.eval()
    step = Step(Placer(torch.device("cpu"), "full", None), 10_000, 7, nullcontext, lambda loss: loss)
    figures = task.backward(model, np.arange(5), slice(0, 2) if rank == 0 else slice(2, 5), step)
    gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    np.save(f"{folder}/{rank}.npy", np.append(gradient.numpy(), float(figures["loss"])))
    torch.distributed.destroy_process_group()


def test_two_processes_together_have_the_gradient_of_one(tiny_bi_encoder: Path, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(compute_part, (str(tmp_path), str(tiny_bi_encoder)), nprocs=2)
    both = sum(np.load(tmp_path / f"{rank}.npy") for rank in (0, 1))
    task, model = make_task(tiny_bi_encoder)
    model.eval()
    whole = gradients(task, model, 10_000)
    step = Step(Placer(torch.device("cpu"), "full", None), 10_000, 7, nullcontext, lambda loss: loss)
    loss = float(task.backward(model, np.arange(5), slice(0, 5), step)["loss"])
    np.testing.assert_allclose(both, np.append(whole.numpy(), loss), rtol=1e-4, atol=1e-6)
