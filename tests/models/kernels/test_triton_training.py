"""Gradients and dropout of the Triton kernels against torch's on the padded grid.

Without a GPU they run in Triton's interpreter: see kernels/test_interpreted.py.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rankwell.models.attention import attend, attend_first, make_layout
from rankwell.models.encoder import CrossEncoder, Encoder
from rankwell.models.layout import Blocks, Layout, Packed
from rankwell.models.spec import AttentionRule, EncoderConfig

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
kernels_run = pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="no GPU, no interpreter")

RULES: tuple[AttentionRule, ...] = ("full", "strm", "strict", "exact_match")
SMALL = Blocks(16, 16, 1, 1)  # small blocks meet their boundaries in short sequences
SIZE = 16


def layouts(lengths: list[int], rule: AttentionRule, blocks: Blocks = SMALL, seed: int = 0) -> tuple[Packed, Layout]:
    """The same sequences of random words for both ways; a sequence's first token is a word of its own, as [CLS] is."""
    from rankwell.models.kernels.triton_attention import make_tiles, pack

    generator = torch.Generator().manual_seed(seed)
    total, ends = sum(lengths), np.cumsum(lengths)
    words = torch.randint(1, max(2, total // 3), (total,), generator=generator, dtype=torch.int32)
    last = torch.rand(total, generator=generator) < 0.6
    words[ends - lengths], last[ends - lengths] = 0, True
    words, last = words.to(DEVICE), last.to(DEVICE)
    tiles, sequences = (torch.from_numpy(table).to(DEVICE) for table in make_tiles(ends, blocks.rows))
    on_grid = make_layout(words, last, torch.from_numpy(ends), rule)
    return pack(words, last, tiles, sequences, rule, blocks), on_grid


def seeds(number: int) -> Tensor:
    return torch.tensor([number], dtype=torch.int32, device=DEVICE)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return made.to(DEVICE, dtype).requires_grad_()


def relative(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().float(), expected.detach().float()
    return float((found - expected).norm() / expected.norm())


@kernels_run
@pytest.mark.parametrize("rule", ["full", "strm", "strict"])
def test_attentions_gradient_is_that_of_the_dense_mask(rule: AttentionRule) -> None:
    lengths = [33, 1, 16]
    packed, on_grid = layouts(lengths, rule)
    qkv, grad = random(sum(lengths), 6 * SIZE), random(sum(lengths), 2 * SIZE, seed=1)
    (found,), (expected,) = (
        torch.autograd.grad((attend(qkv, layout, 2) * grad).sum(), (qkv,)) for layout in (packed, on_grid)
    )
    assert relative(found, expected) < 2e-6


@kernels_run
@pytest.mark.parametrize("rule", RULES)
def test_the_first_tokens_gradient_is_that_of_the_dense_mask(rule: AttentionRule) -> None:
    lengths = [1, 70, 17, 64]  # the kernel takes 64 keys at a time
    packed, on_grid = layouts(lengths, rule)
    query, keys_values = random(len(lengths), 2 * SIZE), random(sum(lengths), 4 * SIZE, seed=1)
    grad = random(len(lengths), 2 * SIZE, seed=2)
    found, expected = (
        torch.autograd.grad((attend_first(query, keys_values, layout, 2) * grad).sum(), (query, keys_values))
        for layout in (packed, on_grid)
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert relative(ours, theirs) < 2e-6


@kernels_run
@pytest.mark.parametrize(("rule", "size", "dtype"), [("full", 32, torch.bfloat16), ("strm", 64, torch.float16)])
def test_the_blocks_in_use_give_the_same_gradient(rule: AttentionRule, size: int, dtype: torch.dtype) -> None:
    from rankwell.models.kernels.triton_attention import blocks_for

    blocks = blocks_for(size, rule)
    assert blocks is not None
    packed, on_grid = layouts([1, 64, 65], rule, blocks)
    qkv, grad = random(130, 3 * size, dtype=dtype), random(130, size, seed=1, dtype=dtype)
    (found,) = torch.autograd.grad((attend(qkv, packed, 1) * grad).sum(), (qkv,))
    exact = qkv.detach().float().requires_grad_()
    (expected,) = torch.autograd.grad((attend(exact, on_grid, 1) * grad.float()).sum(), (exact,))
    assert found.dtype == dtype
    assert relative(found, expected) < 1e-2


@kernels_run
def test_a_row_that_sees_no_key_of_a_block_has_no_nan() -> None:
    from rankwell.models.kernels.triton_attention import make_tiles, pack

    # 40 pieces of one word, then 8 of another: the second word's pieces see nothing in two whole blocks.
    words = torch.tensor([0] * 40 + [1] * 8, dtype=torch.int32, device=DEVICE)
    last = torch.zeros(48, dtype=torch.bool, device=DEVICE)
    tables = (torch.from_numpy(table).to(DEVICE) for table in make_tiles(np.array([48]), 16))
    qkv = random(48, 3 * SIZE)
    (found,) = torch.autograd.grad(attend(qkv, pack(words, last, *tables, "strm", SMALL), 1).square().sum(), (qkv,))
    on_grid = make_layout(words, last, torch.tensor([48]), "strm")
    (expected,) = torch.autograd.grad(attend(qkv, on_grid, 1).square().sum(), (qkv,))
    assert relative(found, expected) < 2e-6


def kept_weights(layout: Packed, length: int, heads: int, dropout: float, seed: int, site: int = 0) -> Tensor:
    """Which weights (heads, L, L) of one sequence stay: with equal weights and the unit vectors as values, attention
    gives back the mask, as many columns at a time as a head is wide.
    """
    layout = replace(layout, seeds=seeds(seed))
    found = torch.zeros(heads, length, length, device=DEVICE)
    for begin in range(0, length, SIZE):
        width = min(SIZE, length - begin)
        qkv = torch.zeros(length, 3, heads, SIZE, device=DEVICE)
        qkv[begin : begin + width, 2, :, :width] = torch.eye(width, device=DEVICE)[:, None]
        mixed = attend(qkv.view(length, -1), layout, heads, dropout, site)
        found[:, :, begin : begin + width] = mixed.view(length, heads, SIZE).transpose(0, 1)[:, :, :width]
    return (found > 0).float()


@kernels_run
def test_both_ways_of_attention_drop_the_same_weights() -> None:
    length, heads, dropout = 18, 2, 0.3
    layout, on_grid = layouts([length], "strm")
    everyone, _ = layouts([length], "full")
    stays = kept_weights(everyone, length, heads, dropout, seed=5, site=3)
    qkv, grad = random(length, 3 * heads * SIZE), random(length, heads * SIZE, seed=1)
    found = attend(qkv, replace(layout, seeds=seeds(5)), heads, dropout, site=3)
    query, key, value = qkv.view(length, 3, heads, SIZE).permute(1, 2, 0, 3)
    assert on_grid.mask is not None
    scores = (query @ key.transpose(1, 2) / SIZE**0.5).masked_fill(~on_grid.mask[0], -torch.inf)
    weights = torch.softmax(scores, dim=-1) * stays / (1 - dropout)
    expected = (weights @ value).transpose(0, 1).reshape(length, -1)
    assert relative(found, expected) < 2e-6
    gradients = [torch.autograd.grad((out * grad).sum(), (qkv,))[0] for out in (found, expected)]
    assert relative(*gradients) < 2e-6


@kernels_run
def test_the_first_tokens_dropout_is_the_same_both_ways() -> None:
    length, dropout = SIZE, 0.4
    layout = replace(layouts([length], "full")[0], seeds=seeds(3))
    nothing = torch.zeros(1, SIZE, device=DEVICE)
    unit = torch.cat([torch.zeros(length, SIZE), torch.eye(SIZE)], dim=1).to(DEVICE)
    stays = (attend_first(nothing, unit, layout, 1, dropout) > 0).float()
    assert 2 < stays.sum() < length
    query, keys_values, grad = random(1, SIZE), random(length, 2 * SIZE, seed=1), random(1, SIZE, seed=2)
    found = attend_first(query, keys_values, layout, 1, dropout)
    key, value = keys_values.split(SIZE, dim=1)
    expected = (torch.softmax(query @ key.T / SIZE**0.5, dim=-1) * stays / (1 - dropout)) @ value
    assert relative(found, expected) < 2e-6
    gradients = [torch.autograd.grad((out * grad).sum(), (query, keys_values)) for out in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        assert relative(ours, theirs) < 2e-6


@kernels_run
def test_as_many_weights_are_dropped_as_asked_for_and_no_two_alike() -> None:
    length, heads, dropout = 32, 2, 0.25
    layout, _ = layouts([length], "full")
    stays = kept_weights(layout, length, heads, dropout, seed=1)
    spread = (dropout * (1 - dropout)) ** 0.5
    assert abs(float(stays.mean()) - (1 - dropout)) < 4 * spread / stays.numel() ** 0.5
    for axis in (1, 2):  # each column's share and each row's scatter as those of independent draws
        shares = stays.mean(dim=axis)
        assert 0.7 < float(shares.std()) / (spread / length**0.5) < 1.3
    centred = (stays - stays.mean()) / spread
    alike = [
        centred[0] * centred[1],  # two heads
        centred[:, 1:] * centred[:, :-1],  # rows side by side
        centred[:, :, 1:] * centred[:, :, :-1],  # columns side by side
        centred * (kept_weights(layout, length, heads, dropout, seed=2) - (1 - dropout)) / spread,  # two seeds
        centred * (kept_weights(layout, length, heads, dropout, seed=1, site=1) - (1 - dropout)) / spread,  # two sites
    ]
    for product in alike:
        assert abs(float(product.mean())) < 4 / product.numel() ** 0.5


@kernels_run
@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("width", [32, 48])
def test_dropout_residual_and_norm_are_those_of_torch(
    width: int, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankwell.models.kernels import triton_training_layers

    monkeypatch.setattr(triton_training_layers, "PROGRAMS", 2)  # each goes over several blocks of rows
    norm = nn.LayerNorm(width).to(DEVICE)
    nn.init.normal_(norm.weight)
    x, y, grad = (random(19, width, seed=seed) for seed in range(3))
    inputs = (x, y, norm.weight, norm.bias)
    found = triton_training_layers.add_norm_trained(x, y, norm, dropout, seeds(0), site=2)
    ours = torch.autograd.grad((found * grad).sum(), inputs)
    stays = (ours[1] != 0).float()  # a dropped element has no gradient
    assert (stays.mean() == 1) if dropout == 0 else (0.6 < stays.mean() < 0.9)
    expected = norm(x + y * stays / (1 - dropout))
    assert relative(found, expected) < 1e-6
    for own, theirs in zip(ours, torch.autograd.grad((expected * grad).sum(), inputs), strict=True):
        assert relative(own, theirs) < 1e-5


@kernels_run
def test_embeddings_are_those_of_torch() -> None:
    from rankwell.models.kernels.triton_training_layers import embed_norm_trained

    norm = nn.LayerNorm(32).to(DEVICE)
    nn.init.normal_(norm.weight)
    tables = (random(20, 32), random(2, 32, seed=1), random(9, 32, seed=2))
    generator = torch.Generator().manual_seed(0)
    ids = tuple(
        torch.randint(0, len(table), (13,), generator=generator, dtype=dtype).to(DEVICE)
        for table, dtype in zip(tables, (torch.int32, torch.int8, torch.int32), strict=True)
    )
    inputs = (*tables, norm.weight, norm.bias)
    grad = random(13, 32, seed=3)
    found = embed_norm_trained(ids, tables, norm, 0.25, seeds(0), 0)  # type: ignore[arg-type]
    stays = (found != 0).float()
    assert 0.6 < stays.mean() < 0.9
    summed = tables[0][ids[0].long()] + tables[1][ids[1].long()] + tables[2][ids[2].long()]
    expected = norm(summed) * stays / 0.75
    assert relative(found, expected) < 1e-6
    gradients = [torch.autograd.grad((out * grad).sum(), inputs) for out in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        assert relative(ours, theirs) < 1e-5


def tiny_model(dropout: float) -> CrossEncoder:
    torch.manual_seed(0)
    config = EncoderConfig(30, SIZE, 2, 1, 24, 40, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    model = CrossEncoder(Encoder(config), 1, pooler=True).to(DEVICE)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.train()


LENGTHS = [17, 1, 5]


def token_ids(segment_type: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    tokens = torch.randint(0, 30, (len(positions),), generator=generator)
    segments = (positions > 5).to(segment_type)
    return tokens.to(DEVICE), segments.to(DEVICE), positions.to(DEVICE)


@kernels_run
@pytest.mark.parametrize("rule", ["strict"])
def test_a_models_gradients_are_those_of_the_grid(rule: AttentionRule) -> None:
    model = tiny_model(dropout=0.0)
    packed, on_grid = layouts(LENGTHS, rule)
    gradients = []
    for layout, kind in ((packed, torch.int8), (on_grid, torch.int64)):
        model.zero_grad()
        model(*token_ids(kind), layout).square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, expected in gradients[1].items():
        found = gradients[0][name]
        assert found is not None, name
        assert expected is not None, name
        # A key's bias adds the same to all of a row's scores, which the softmax takes away again: no relative error.
        if name.endswith("qkv.bias"):
            found[SIZE : 2 * SIZE] = expected[SIZE : 2 * SIZE] = 0
        assert relative(found, expected) < 2e-5, name


@kernels_run
def test_a_batchs_seed_replays_a_models_dropout_with_and_without_a_graph() -> None:
    model = tiny_model(dropout=0.2)
    packed, _ = layouts(LENGTHS, "strm")
    ids = token_ids(torch.int8)

    def logits(seed: int) -> Tensor:
        found: Tensor = model(*ids, replace(packed, seeds=seeds(seed)))
        return found

    with torch.no_grad():
        first = logits(1)
    torch.manual_seed(5)  # no other generator has a say
    assert torch.equal(first, logits(1).detach())
    assert not torch.equal(first, logits(2).detach())


@kernels_run
def test_dropout_without_a_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="without a seed"):
        tiny_model(dropout=0.2)(*token_ids(torch.int8), layouts(LENGTHS, "strm")[0])


@kernels_run
def test_the_heads_dropout_is_the_same_both_ways() -> None:
    from rankwell.models.kernels.triton_training_layers import dropout_trained

    x, grad = random(9, 24), random(9, 24, seed=1)
    found = dropout_trained(x, 0.25, seeds(4), site=7)
    stays = (found != 0).float()
    assert 0.65 < stays.mean() < 0.85
    torch.testing.assert_close(found, x * stays / 0.75)
    (slope,) = torch.autograd.grad((found * grad).sum(), (x,))
    torch.testing.assert_close(slope, (grad * stays / 0.75).detach())
    assert not torch.equal(stays, (dropout_trained(x, 0.25, seeds(4), site=8) != 0).float())


@kernels_run
def test_under_autocast_the_stream_is_short_and_the_gradients_long() -> None:
    encoder = tiny_model(dropout=0.0).encoder
    packed, on_grid = layouts(LENGTHS, "strm")
    with torch.autocast(DEVICE, torch.bfloat16):
        short = encoder(*token_ids(torch.int8), packed, first_only=False)
    assert short.dtype == torch.bfloat16
    exact = encoder(*token_ids(torch.int64), on_grid, first_only=False)
    grad = random(*exact.shape)
    found, expected = (
        torch.autograd.grad((out.float() * grad).sum(), tuple(encoder.parameters())) for out in (short, exact)
    )
    assert all(gradient.dtype == torch.float32 for gradient in found)
    whole = [torch.cat([gradient.flatten() for gradient in gradients]) for gradients in (found, expected)]
    assert relative(*whole) < 5e-2
