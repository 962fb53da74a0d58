"""Layers in int8: close to the exact ones, under every attention rule, whatever the batch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rankwell.core.errors import RankwellError
from rankwell.inputs.batching import Sequences, slice_sequences
from rankwell.models.batch import Placer
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.compute import Compute
from rankwell.models.devices import INT8_UNIT, may_use_tiles
from rankwell.models.encoder import Encoder
from rankwell.models.int8 import quantise_encoder
from rankwell.models.spec import AttentionRule, EncoderConfig

CONFIG = {"vocab_size": 60, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
CONFIG |= {"intermediate_size": 96, "max_position_embeddings": 64}
LENGTHS = (11, 1, 40, 8, 3)


def make_encoder(**changes: object) -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(**{**CONFIG, **changes})).eval()  # type: ignore[arg-type]
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for layer in encoder.layers:
        torch.nn.init.normal_(layer.qkv.weight, std=0.8)  # so that tokens attend to some more than to others
    return encoder.requires_grad_(False)


def sequences() -> Sequences:
    random, total = np.random.default_rng(0), sum(LENGTHS)
    continues = random.random(total) < 0.4
    ends = np.cumsum(LENGTHS)
    continues[[0, *ends[:-1]]] = False
    words = np.cumsum(~continues).astype(np.int32)
    last = np.append(words[1:] != words[:-1], True)
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in LENGTHS])
    segments = (positions > 4).astype(np.int8)
    return Sequences(random.integers(0, 60, total, np.int32), segments, positions, words, last, ends)


def states(encoder: Encoder, batch: Sequences, rule: AttentionRule = "full", *, first_only: bool = False) -> np.ndarray:
    with torch.inference_mode():
        placed = Placer(torch.device("cpu"), rule, parts=True)(batch)
        return encoder(*placed, first_only=first_only).numpy()


@pytest.mark.parametrize("rule", ["full", "strm", "strict"])
@pytest.mark.parametrize(("apart", "heads", "width"), [(0, 2, 64), (2, 2, 64), (0, 1, 64), (0, 3, 96)])
def test_states_are_close_to_exact_ones(rule: AttentionRule, apart: int, heads: int, width: int) -> None:
    encoder = make_encoder(num_attention_heads=heads, hidden_size=width, intermediate_size=3 * width)
    encoder.restrict(apart, None)
    exact = states(encoder, sequences(), rule)
    quantise_encoder(encoder)
    found = states(encoder, sequences(), rule)
    cosines = (found * exact).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(exact, axis=1)
    assert cosines.min() > 0.995
    first = states(encoder, sequences(), rule, first_only=True)
    np.testing.assert_allclose(first, found[np.cumsum(LENGTHS) - LENGTHS], atol=1e-5)


def test_whole_tiles_have_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    if not may_use_tiles():
        pytest.skip("this processor has no AMX")
    found = []
    for tiles in (True, False):
        monkeypatch.setattr("rankwell.models.int8.may_use_tiles", lambda tiles=tiles: tiles)
        encoder = make_encoder(intermediate_size=192)
        quantise_encoder(encoder)
        found.append(states(encoder, sequences(), "strm"))
    np.testing.assert_array_equal(*found)


def test_tiles_are_compiled_for_a_processor_that_has_them() -> None:
    """The instructions, made here for another processor: one product for each tile loaded."""
    script = """
from llvmlite import binding, ir
from rankwell.models import devices
devices.DOT_LANES, devices.PANEL, devices.HAS_TILES = 16, 32, True
from rankwell.models.kernels import tile_kernels
module = ir.Module()
function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 11), "tiles")
builder = ir.IRBuilder(function.append_basic_block())
for make, count in ((tile_kernels.open_tiles, 0), (tile_kernels.int8_tiles, 11)):
    arguments = function.args[:count]
    _, generate = make._defn(None, *arguments)
    generate(type("Context", (), {"get_dummy_value": lambda self: None})(), builder, None, arguments)
builder.ret_void()
binding.initialize_all_targets()
binding.initialize_all_asmprinters()
machine = binding.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(cpu="sapphirerapids", opt=2)
print(machine.emit_assembly(binding.parse_assembly(str(module))))
"""
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    names = ("ldtilecfg", "tileloadd", "tdpbusd", "tilestored")
    counts = {name: len(re.findall(rf"\t{name}\b", printed)) for name in names}
    assert counts == {"ldtilecfg": 1, "tileloadd": 4, "tdpbusd": 4, "tilestored": 4}


def test_a_process_that_compiles_computes_what_later_ones_do(tmp_path: Path) -> None:
    script = """
import hashlib
import numpy as np
from rankwell.models.kernels.int8_kernels import finish
from rankwell.models.int8 import quantise_linear
import torch
torch.manual_seed(0)
linears = [torch.nn.Linear(*shape).requires_grad_(False) for shape in ((384, 384), (384, 768), (768, 384))]
mix, inner, outer = map(quantise_linear, linears)
x, mixed = np.random.default_rng(0).normal(size=(2, 128, 384)).astype(np.float32)
norm = np.ones(384, np.float32), np.zeros(384, np.float32)
print(hashlib.sha256(finish(x[:90], mixed, mix, norm, inner, outer, norm, np.float32(1e-12), False)).hexdigest())
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert first.stdout == second.stdout


def test_a_rule_changes_the_states_as_it_does_exact_ones() -> None:
    encoder = make_encoder()
    full, strm = (states(encoder, sequences(), rule) for rule in ("full", "strm"))
    quantise_encoder(encoder)
    found = states(encoder, sequences(), "strm")
    assert 2 * np.abs(found - strm).mean() < np.abs(found - full).mean()


def test_a_sequence_has_the_same_states_in_any_batch() -> None:
    encoder, batch = make_encoder(), sequences()
    quantise_encoder(encoder)
    together = np.split(states(encoder, batch), batch.ends[:-1])
    for number, expected in enumerate(together):
        alone = states(encoder, slice_sequences(batch, number, number + 1))
        np.testing.assert_array_equal(alone, expected)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_act": "relu"}, "gelu, not relu"),
        ({"intermediate_size": 104}, f"multiples of {INT8_UNIT}, not 104"),
        ({"num_attention_heads": 8}, f"multiples of {INT8_UNIT}, not 8"),
    ],
)
def test_an_encoder_that_the_kernels_cannot_compute_is_refused(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(RankwellError, match=f"{problem}.*; use the precision fp32"):
        quantise_encoder(make_encoder(**changes))


def test_int8_is_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwell.models.compute.chosen_device", lambda name: torch.device("meta"))
    encoder = make_encoder()
    with pytest.raises(RankwellError, match="int8 is for CPUs"):
        Compute(encoder, encoder, device="cuda", dtype="int8")


def test_a_bi_encoder_in_int8_has_a_name_of_its_own(one_head_bi_encoder: Path) -> None:
    exact = BiEncoder.from_pretrained(one_head_bi_encoder, device="cpu", precision="fp32")
    fast = BiEncoder.from_pretrained(one_head_bi_encoder, device="cpu", precision="int8")
    assert (exact.precision, fast.precision) == ("fp32", "int8")
    assert fast.exact_name == exact.name != fast.name
    texts = ["how do bees keep warm", "honey", "the river and the bridge of stone " * 20]
    found = fast.encode_documents(texts)
    assert (found * exact.encode_documents(texts)).sum(axis=1).min() > 0.995
    np.testing.assert_array_equal(fast.encode_documents(texts[1:2]), found[1:2])
