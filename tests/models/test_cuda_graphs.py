"""Batches filled up to a form, and the books a graphed encoder keeps; the kernels run in Triton's interpreter.

CUDA graphs need a GPU. Here a stand-in takes their place that computes what they would play, on the same memory. The
tests marked `interpreted` run by kernels/test_interpreted.py.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rankwell.core.errors import RankwellError
from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.models import cuda_graphs
from rankwell.models.batch import SPARE, BlockPlacer, BlockSizes, Placer, open_block
from rankwell.models.cuda_graphs import FlatGradients, GraphedEncoder
from rankwell.models.encoder import CrossEncoder, Encoder
from rankwell.models.layout import Blocks, Packed
from rankwell.models.spec import AttentionRule, EncoderConfig
from rankwell.papers.deepct.weighing import TokenWeightModel

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="runs in the process of its own")
CPU = torch.device("cpu")
BLOCKS = Blocks(16, 16, 1, 1)
LENGTHS = [17, 1, 5]


@pytest.fixture(autouse=True)
def small_forms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "tokens" not in request.fixturenames:
        monkeypatch.setattr("rankwell.models.batch.LEAST", 32)  # the interpreter takes its time


def sequences(seed: int = 0) -> Sequences:
    rng = np.random.default_rng(seed)
    positions = np.concatenate([np.arange(length) for length in LENGTHS]).astype(np.int32)
    tokens = rng.integers(1, 30, len(positions)).astype(np.int32)
    last = positions % 3 != 1  # every third word has two pieces
    words = (positions - (positions + 1) // 3).astype(np.int32)
    return Sequences(tokens, (positions > 5).astype(np.int8), positions, words, last, np.cumsum(LENGTHS))


def tiny_model(dropout: float = 0.2, *, apart: int = 0, similarity: float = 0.0) -> CrossEncoder:
    torch.manual_seed(0)
    config = EncoderConfig(30, 16, 2, 1, 24, 40, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    model = CrossEncoder(Encoder(config, apart=apart), 1, pooler=True, similarity=similarity)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.train()


def seeded(place: Placer, seed: int, batch: Sequences) -> tuple[object, ...]:
    torch.manual_seed(seed)
    return tuple(place(batch))


@pytest.mark.parametrize("tokens", [1, 247, 249, 8191, 8192, 53_000])
def test_a_form_has_room_for_any_lengths_and_little_to_spare(tokens: int) -> None:
    form = BlockSizes.around(tokens, 7, 64, masked=True)
    assert form.tokens >= tokens + SPARE
    assert form.tokens <= max(tokens * 17 / 16 + SPARE, tokens + 256 + SPARE)
    # The most tiles there can be: each sequence but one with a token in a tile of its own.
    assert form.tiles >= (form.tokens - form.sequences) // 64 + form.sequences
    assert form == BlockSizes.around(tokens + 1, 7, 64, masked=True) or tokens in (247, 248, 8191)


@interpreted
@pytest.mark.parametrize(("rule", "parts"), [("full", True), ("strict", False)])
def test_what_fills_a_batch_changes_neither_scores_nor_gradients(rule: AttentionRule, parts: bool) -> None:
    # With dropout: the same seed, the same elements.
    model = tiny_model(apart=1, similarity=5.0) if parts else tiny_model()
    graphed = GraphedEncoder(model, rule, BLOCKS)
    block = seeded(BlockPlacer(CPU, rule, BLOCKS, parts=parts), 3, sequences())
    plain = seeded(Placer(CPU, rule, BLOCKS, seeded=True, parts=parts), 3, sequences())
    found, gradients = [], []
    for logits in (lambda: graphed(*block), lambda: model(*plain)):
        graphed.clear_gradients()
        scores = logits()
        scores.square().sum().backward()
        found.append(scores.detach())
        gradients.append(graphed.gradients.flat.clone())
    assert found[0].shape == (len(LENGTHS), 1)
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)
    assert gradients[1].norm() > 1
    assert (gradients[0] - gradients[1]).norm() < 1e-6 * gradients[1].norm()


@interpreted
def test_a_block_has_tiles_without_rows_and_a_seed_by_torchs_generator() -> None:
    place = BlockPlacer(CPU, "strm", BLOCKS)
    data, form = seeded(place, 1, sequences())
    again, _ = seeded(place, 1, sequences())
    other, _ = seeded(place, 2, sequences())
    assert isinstance(data, Tensor)
    assert isinstance(form, BlockSizes)
    assert torch.equal(data, again)  # type: ignore[arg-type]
    assert int((data != other).sum()) <= 4  # the seed alone
    layout = open_block(data, form, "strm", BLOCKS).layout
    lengths = layout.tiles[:, 1]  # type: ignore[union-attr]
    assert (lengths == 0).sum() > 0
    assert layout.sequences[:, 1].sum() == form.tokens == 32  # type: ignore[union-attr]
    assert (layout.sequences[:, 1] > 0).all()  # type: ignore[union-attr]


@interpreted
@pytest.mark.parametrize("rule", ["full", "strm"])
def test_packed_parts_score_as_on_the_grid(rule: AttentionRule) -> None:
    model = tiny_model(apart=1, similarity=5.0).eval()
    batch = sequences()
    batch.segments[17] = 0
    whole = take_sequences(batch, np.array([0, 2]))  # the one of one token has no second part
    whole.segments[-2:] = 1
    with torch.no_grad():
        packed = model(*Placer(CPU, rule, BLOCKS, parts=True)(whole))
        on_grid = model(*Placer(CPU, rule, parts=True)(whole))
    torch.testing.assert_close(packed, on_grid, rtol=1e-4, atol=1e-4)


class Toy(nn.Module):
    """A model of one batch's first tokens and its seed, without any kernel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head, self.outputs = nn.Embedding(30, 8), nn.Linear(8, 1), 1

    def forward(self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Packed) -> Tensor:
        assert layout.seeds is not None
        found: Tensor = self.head(torch.tanh(self.table(tokens[layout.first]))) * (1 + layout.seeds % 7)
        return found


class Standin:
    """Computes what a graph would play: on its own block, adding to the gradients' own places."""

    made = 0

    def __init__(self, owner: GraphedEncoder, data: Tensor, form: BlockSizes, pool: object):
        Standin.made += 1
        self.owner, self.form, self.real, self.block = owner, form, form.sequences - SPARE, data.clone()
        self.logits, self.grad = torch.zeros(form.sequences, 1), torch.zeros(form.sequences, 1)
        self.forward_graph, self.backward_graph = (
            SimpleNamespace(replay=self._ahead),
            SimpleNamespace(replay=self._back),
        )

    def _ahead(self) -> None:
        with torch.enable_grad():
            self.kept = self.owner.compute_apart(self.block, self.form)
        self.logits.copy_(self.kept[0].detach())

    def _back(self) -> None:
        own = self.owner.gradients
        with torch.enable_grad():
            found = torch.autograd.grad(*self.kept, self.grad)
        for part, gradient in zip(own.parts, found, strict=True):
            part += gradient


@pytest.fixture
def graphed(monkeypatch: pytest.MonkeyPatch) -> GraphedEncoder:
    monkeypatch.setattr(cuda_graphs, "_Graph", Standin)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    Standin.made = 0
    made = GraphedEncoder(Toy(), "full", BLOCKS)  # type: ignore[arg-type]
    made.active = True
    return made


def batch(seed: int) -> tuple[object, ...]:
    return seeded(BlockPlacer(CPU, "full", BLOCKS), seed, sequences(seed))


def test_played_chunks_add_up_to_the_gradient_of_computed_ones(graphed: GraphedEncoder) -> None:
    first, second = batch(1), batch(2)

    def gradient() -> Tensor:
        graphed.clear_gradients()
        for chunk in (first, second):
            graphed(*chunk).square().sum().backward()
        return graphed.gradients.flat.clone()

    computed = gradient()
    assert graphed.recorded == 0
    played = gradient()  # the third batch of the form is recorded, and played at once
    assert graphed.recorded == Standin.made == 1
    torch.testing.assert_close(played, computed)
    torch.testing.assert_close(gradient(), computed)
    with torch.no_grad():
        assert not graphed(*first).requires_grad
    assert Standin.made == 1


def test_a_batch_that_comes_between_two_ways_is_not_passed_over_in_silence(graphed: GraphedEncoder) -> None:
    for _ in range(2):
        graphed(*batch(1))
    pending, later = graphed(*batch(1)), graphed(*batch(2))
    with pytest.raises(RankwellError, match="between"):
        pending.sum().backward()
    later.sum().backward()


def test_graphs_are_few_and_forgotten_when_parameters_move(
    graphed: GraphedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphed._needed = 1
    monkeypatch.setattr(cuda_graphs, "GRAPHS", 1)
    graphed(*batch(1))
    half = Sequences(
        *(getattr(sequences(), name)[:18] for name in ("tokens", "segments", "positions", "words", "last")),
        np.array([17, 18]),
    )
    graphed(*seeded(BlockPlacer(CPU, "full", BLOCKS), 1, half))
    assert (graphed.recorded, Standin.made) == (1, 2)
    for made in (2, 3):  # the first form has lost its graph, and gets it back only if it comes twice
        graphed(*batch(1))
        assert Standin.made == made
    graphed.clear_gradients()
    assert graphed.recorded == 1
    weight = graphed.gradients.parameters[0]
    weight.data = weight.data.clone()
    graphed.clear_gradients()
    assert graphed.recorded == 0
    graphed.most, graphed._needed = 31, 1
    graphed(*batch(1))
    assert graphed.recorded == 0


def test_where_recording_fails_training_goes_on_with_a_warning() -> None:
    made = GraphedEncoder(Toy(), "full", BLOCKS)  # type: ignore[arg-type]
    assert not made.active  # on a CPU
    made.active = True
    made._needed = 1
    expected = made.model(*open_block(*batch(1), "full", BLOCKS))[: len(LENGTHS)]  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        found = made(*batch(1))
    torch.testing.assert_close(found, expected)
    assert not made.active


def test_recording_computes_both_ways_and_leaves_the_gradients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a GPU what a recording does is done at once.
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    made = GraphedEncoder(Toy(), "full", BLOCKS)  # type: ignore[arg-type]
    made.clear_gradients()
    made.gradients.flat.fill_(2.0)
    data, form = batch(1)
    assert isinstance(data, Tensor)
    assert isinstance(form, BlockSizes)
    added = []
    add = torch._foreach_add_
    monkeypatch.setattr(torch, "_foreach_add_", lambda parts, found: (added.append(len(found)), add(parts, found)))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        graph = cuda_graphs._Graph(made, data, form, None)
        expected = made.compute(data, form)
    assert torch.equal(graph.logits, expected)
    assert graph.logits.shape == graph.grad.shape == (len(LENGTHS) + SPARE, 1)
    assert added == [len(made.gradients.parameters)] * 2
    assert bool((made.gradients.flat == 2.0).all())


def test_gradients_lie_in_one_tensor_and_are_clipped_as_torch_does() -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))
    model[0].bias.requires_grad_(False)
    gradients = FlatGradients(model.parameters())
    inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)) * 9
    for _ in range(2):  # anew each time
        gradients.clear()
        model(inputs).square().sum().backward()
        assert all(part.data_ptr() % 16 == 0 for part in gradients.parts)
        own = [parameter.grad.clone() for parameter in gradients.parameters]
    assert model[0].bias.grad is None
    norm = torch.cat([gradient.flatten() for gradient in own]).norm()
    torch.testing.assert_close(gradients.clip(0.0), norm)
    torch.testing.assert_close(gradients.parameters[0].grad, own[0])
    torch.testing.assert_close(gradients.clip(1.0), norm)
    assert norm > 1
    torch.testing.assert_close(gradients.parameters[0].grad, own[0] / norm)
    torch.testing.assert_close(gradients.clip(5.0), torch.tensor(1.0))
    torch.testing.assert_close(gradients.parameters[2].grad, own[2] / norm)


def test_only_cross_encoders_of_our_own_are_taken() -> None:
    model = tiny_model()
    assert GraphedEncoder.can_take(model)
    assert not GraphedEncoder.can_take(TokenWeightModel(model.encoder))
    assert not GraphedEncoder.can_take(model.to(torch.bfloat16))
