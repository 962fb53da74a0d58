"""ModernBERT without padding: it scores as transformers does, on a grid by torch and packed by the Triton kernels.

Without a GPU they run in Triton's interpreter: see kernels/test_interpreted.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from rankwell import Ranker
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models import modernbert
from rankwell.models.attention import attend, make_layout, within
from rankwell.models.batch import Placer, packed_blocks
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.bi_encoder_modules import Modules
from rankwell.models.foreign import ForeignCrossEncoder, ForeignEncoder
from rankwell.models.layout import Blocks, Layout, Packed

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
kernels_run = pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="no GPU, no interpreter")
plain = pytest.mark.skipif(INTERPRETED, reason="needs no kernel")

SMALL = Blocks(16, 16, 1, 1)  # small blocks meet their boundaries in short sequences
LENGTHS = [5, 50, 17, 1]  # the window has 4 tokens on each side


def make(*, biased: bool = False, **changes: Any) -> Any:
    """A random classifier of four layers, two of them local, whose norms and biases are not 1 and 0."""
    torch.manual_seed(3)
    biases = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), biased)
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    settings = {"vocab_size": 60, "local_attention": 8, "initializer_range": 0.2, "num_labels": 2, **biases}
    config = transformers.ModernBertConfig(**{**sizes, **ids, **settings, **changes})
    model = transformers.ModernBertForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def batch(lengths: list[int] = LENGTHS, vocabulary: int = 60) -> tuple[Tensor, Tensor]:
    """Random tokens, and their positions."""
    tokens = torch.randint(3, vocabulary, (sum(lengths),), generator=torch.Generator().manual_seed(1))
    return tokens, torch.cat([torch.arange(length) for length in lengths])


def on_grid(lengths: list[int]) -> Layout:
    words = torch.zeros(sum(lengths), dtype=torch.int32)
    return make_layout(words, words == 0, torch.tensor(lengths).cumsum(0), "full")


def packed(lengths: list[int]) -> Packed:
    from rankwell.models.kernels.triton_attention import make_tiles, pack

    tiles, table = (torch.from_numpy(table).to(DEVICE) for table in make_tiles(np.cumsum(lengths), SMALL.rows))
    nothing = torch.zeros(0, dtype=torch.int32, device=DEVICE)
    return pack(nothing, nothing, tiles, table, "full", SMALL)


@plain
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("lengths", [LENGTHS, [30, 30]])
def test_scores_on_a_grid_are_those_of_transformers(pooling: str, biased: bool, lengths: list[int]) -> None:
    model = make(biased=biased, classifier_pooling=pooling)
    tokens, positions = batch(lengths)
    scores = modernbert.classify(model, tokens, positions, on_grid(lengths))
    with torch.inference_mode():
        expected = torch.cat([model(part[None]).logits for part in tokens.split(lengths)])
    assert expected.std() > 0.1
    assert (scores - expected).abs().max() < 1e-5


@plain
def test_states_on_a_grid_are_those_of_transformers() -> None:
    backbone = make().model
    tokens, positions = batch()
    states = modernbert.encode(backbone, tokens, positions, on_grid(LENGTHS))
    with torch.inference_mode():
        expected = torch.cat([backbone(part[None])[0][0] for part in tokens.split(LENGTHS)])
    assert (states - expected).abs().max() < 1e-5


@plain
def test_a_window_hides_what_is_farther_away() -> None:
    qkv = torch.randn(sum(LENGTHS), 48)
    with torch.no_grad():
        mixed = attend(qkv, within(on_grid(LENGTHS), 4), 2)
        changed = qkv.clone()
        changed[5 + 20] += 1  # the token 20 of the second sequence
        rows = (attend(changed, within(on_grid(LENGTHS), 4), 2) - mixed).abs().amax(dim=1).nonzero().flatten()
    assert rows.tolist() == [5 + place for place in range(16, 25)]


@plain
def test_only_a_plain_modernbert_is_packed_and_only_in_inference() -> None:
    pytest.importorskip("triton")
    encoder = ForeignEncoder(make().model)
    assert packed_blocks(encoder, "full") is not None
    assert packed_blocks(encoder, "full", trained=True) is None
    assert packed_blocks(encoder, "strm") is None
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    longer = make(rope_parameters={"full_attention": scaled, "sliding_attention": dict(scaled)})
    for other in (make(hidden_activation="silu"), longer):
        assert packed_blocks(ForeignEncoder(other.model), "full") is None
    bert = transformers.BertModel(transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2))
    assert packed_blocks(ForeignEncoder(bert), "full") is None


@kernels_run
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_packed_scores_are_those_of_the_grid(pooling: str) -> None:
    model = make(classifier_pooling=pooling)
    tokens, positions = batch()
    expected = modernbert.classify(model, tokens, positions, on_grid(LENGTHS))
    model.to(DEVICE)
    ranker = ForeignCrossEncoder(model)
    scores = ranker(tokens.to(DEVICE), torch.zeros_like(tokens), positions.to(DEVICE), packed(LENGTHS))
    assert (scores.cpu() - expected).abs().max() < 1e-5


@kernels_run
@pytest.mark.parametrize("window", [3, 16, 40])
def test_the_window_of_the_kernel_is_that_of_the_mask(window: int) -> None:
    qkv = torch.randn(sum(LENGTHS), 96)
    with torch.no_grad():
        expected = attend(qkv, within(on_grid(LENGTHS), window), 2)
        mixed = attend(qkv.to(DEVICE), within(packed(LENGTHS), window), 2)
    assert (mixed.cpu() - expected).abs().max() < 1e-5


@kernels_run
@pytest.mark.parametrize("biased", [False, True])
def test_each_pass_of_the_kernels_is_that_of_torch(biased: bool) -> None:
    x, y, norm = torch.randn(9, 40), torch.randn(9, 40), nn.LayerNorm(40, bias=biased)
    nn.init.normal_(norm.weight)
    angles = modernbert.Rotary.at(torch.arange(9) * 100, 1e4, 16)
    moved = modernbert.Rotary(*(table.to(DEVICE) for table in angles))
    qkv, wide = torch.randn(9, 96), torch.randn(9, 300)
    with torch.no_grad():
        expected = [
            *modernbert.add_norm(x, y, norm, packed=False),
            modernbert.rotate(qkv.clone(), angles, 2, packed=False),
            modernbert.gate(wide, packed=False),
        ]
        norm.to(DEVICE)
        computed = [
            *modernbert.add_norm(x.to(DEVICE), y.to(DEVICE), norm, packed=True),
            modernbert.rotate(qkv.to(DEVICE), moved, 2, packed=True),
            modernbert.gate(wide.to(DEVICE), packed=True),
        ]
    for one, other in zip(computed, expected, strict=True):
        assert (one.cpu() - other).abs().max() < 1e-5


@kernels_run
def test_a_ranker_scores_the_same_packed(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make("modernbert", tmp_path / "model", num_attention_heads=2)
    pairs = tiny_models.PAIRS[:3]
    expected = Ranker(folder, device="cpu").predict(pairs)
    ranker = Ranker(folder, device=DEVICE, precision="fp32", engine={"packed": True})
    assert ranker.engine.compute.packed  # type: ignore[attr-defined]
    assert np.abs(ranker.predict(pairs) - expected).max() < 1e-5


@kernels_run
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_a_bi_encoder_has_the_same_vectors_packed(tiny_models: Any, tmp_path: Path, pooling: str) -> None:
    folder = tiny_models.make("modernbert", tmp_path / "model", labels=None, num_attention_heads=2)
    texts = [document for _, document in tiny_models.PAIRS[:3]]
    tokenizer, encoder = Tokenizer.open(folder), ForeignEncoder(transformers.AutoModel.from_pretrained(folder).eval())
    expected, packed_vectors = (
        BiEncoder(encoder, tokenizer, modules=Modules(pooling), device=device, precision="fp32")
        for device in ("cpu", DEVICE)
    )
    vectors = expected.encode_documents(texts)
    compute = packed_vectors._compute
    compute.place = Placer(compute.device, "full", packed_blocks(encoder, "full"))
    assert np.abs(packed_vectors.encode_documents(texts) - vectors).max() < 1e-5
