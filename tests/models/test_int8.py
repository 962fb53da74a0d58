"""Layers in int8: close to the exact ones, under every attention rule, whatever the batch."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankwell.core.errors import RankwellError
from rankwell.inputs.batching import Sequences, slice_sequences
from rankwell.models.batch import Placer
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.compute import Compute
from rankwell.models.devices import may_use_tiles
from rankwell.models.encoder import Encoder
from rankwell.models.int8 import TILE, quantise_encoder
from rankwell.models.spec import AttentionRule, EncoderConfig

CONFIG = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
CONFIG |= {"intermediate_size": 48, "max_position_embeddings": 64}
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
@pytest.mark.parametrize(("apart", "heads", "width"), [(0, 2, 32), (2, 2, 32), (0, 4, 32), (0, 8, 32), (0, 4, 64)])
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
        encoder = make_encoder(hidden_size=64, intermediate_size=192)  # heads too small for attention in bf16
        quantise_encoder(encoder)
        found.append(states(encoder, sequences(), "strm"))
    np.testing.assert_array_equal(*found)


def _numbers(address: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: type) -> Any:
    """Memory as an array."""
    size = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) + np.dtype(kind).itemsize
    memory = (ctypes.c_uint8 * int(size)).from_address(int(address))
    return np.ndarray(shape, kind, memory, strides=strides)


def _bf16(numbers: Any) -> Any:
    return (numbers.astype(np.uint32) << 16).view(np.float32)


def _multiply_tiles(rows: int, stride: int, columns: int, steps: int, out: int) -> None:
    """What AMX computes: 32 rows and 16 columns of 32 bf16 numbers a step."""
    left = _bf16(_numbers(rows, (32, 32 * steps), (stride, 2), np.uint16))
    right = _bf16(_numbers(columns, (16 * steps, 16, 2), (64, 4, 2), np.uint16))
    _numbers(out, (32, 16), (64, 4), np.float32)[:] = left @ right.transpose(0, 2, 1).reshape(-1, 16)


def _pair(low: np.float32, high: np.float32) -> int:
    low_bits, high_bits = (int(np.float32(value).view(np.int32)) + 0x8000 for value in (low, high))
    return int(np.int64(low_bits >> 16 & 0xFFFF | high_bits & ~0xFFFF).astype(np.int32))


def _pair_rows(source: int, pairs: int, out: int) -> None:
    rows = _numbers(source, (pairs, 2, 16), (128, 64, 4), np.float32)
    packed = [[_pair(*two) for two in row.T] for row in rows]
    _numbers(out, (pairs, 16), (64, 4), np.int32)[:] = packed


def _softmax(scores: int, rows: int, factors: int) -> None:
    numbers = _numbers(scores, (rows, 16), (64, 4), np.float32)
    numbers[:] = np.exp(numbers - numbers.max(0))
    _numbers(factors, (16,), (4,), np.float32)[:] = 1 / numbers.sum(0)


@pytest.mark.parametrize(("heads", "first_only", "masked"), [(2, False, False), (1, True, False), (1, False, True)])
def test_attention_in_bf16_attends_as_in_fp32(
    monkeypatch: pytest.MonkeyPatch, heads: int, first_only: bool, masked: bool
) -> None:
    """The kernel uncompiled, with AMX's instructions computed by numpy, beside the compiled one in fp32."""
    from rankwell.models.kernels import int8_kernels

    lengths = np.array([5, 33, 16, 1])
    begins, random = np.cumsum(lengths) - lengths, np.random.default_rng(0)
    qkv = random.normal(size=(lengths.sum() + 32, 3 * 64)).astype(np.float32)
    qkv[:, :64] /= 8
    mask = random.random((4, 33, 33)) < 0.7 if masked else np.zeros((0, 0, 0), np.bool_)
    mask |= np.eye(33, dtype=np.bool_)[None] if masked else False
    qkv[lengths.sum() :] = np.nan  # rows to spare are never read
    arguments = (qkv, begins, lengths, mask, heads, first_only)
    expected = int8_kernels.attend(*arguments)
    stand_ins = {"bf16_tiles": _multiply_tiles, "bf16_pair": _pair, "softmax_columns": _softmax, "TILE": 16}
    stand_ins["pair_rows"] = _pair_rows
    stand_ins |= {"_close": int8_kernels._close._function, "open_tiles": lambda: None, "close_tiles": lambda: None}
    for name, value in stand_ins.items():
        monkeypatch.setattr(int8_kernels, name, value)
    found = int8_kernels.attend_in_bf16._function(*arguments)
    rows = len(lengths) if first_only else lengths.sum()
    np.testing.assert_allclose(found[:rows], expected[:rows], atol=0.02)


def test_rows_are_packed_as_pairs_of_bf16_numbers() -> None:
    from numba import njit

    from rankwell.models.kernels.tile_kernels import bf16_pair, pair_rows

    rows = np.random.default_rng(0).normal(size=(6, TILE)).astype(np.float32)
    rows[0, :3] = 1, 1.00390625, -1.01171875  # exact; halfway between two, which goes up; and beyond it
    out, single = np.zeros((3, TILE), np.int32), np.zeros((3, TILE), np.int32)

    @njit
    def pack(rows: Any, out: Any, single: Any) -> None:
        pair_rows(rows.ctypes.data, len(out), out.ctypes.data)
        for j in range(len(single)):
            for lane in range(single.shape[1]):
                single[j, lane] = bf16_pair(rows[2 * j, lane], rows[2 * j + 1, lane])

    pack(rows, out, single)
    np.testing.assert_array_equal(out, single)
    np.testing.assert_array_equal(out, [[_pair(*two) for two in pair.T] for pair in rows.reshape(3, 2, TILE)])
    halves = _bf16(out.view(np.uint16).reshape(3, TILE, 2))
    np.testing.assert_array_equal(halves[0, :3, 0], [1, 1.0078125, -1.015625])
    np.testing.assert_allclose(halves.transpose(0, 2, 1).reshape(6, TILE), rows, rtol=2**-8)


def test_tiles_are_compiled_for_a_processor_that_has_them() -> None:
    """The instructions, made here for another processor: at least one product for each tile loaded, or two of three."""
    script = """
from llvmlite import binding, ir
from rankwell.models import devices
devices.DOT_LANES, devices.HAS_TILES = 16, True
from rankwell.models.kernels import tile_kernels
module = ir.Module()
function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 10), "tiles")
builder = ir.IRBuilder(function.append_basic_block())
kernels = (tile_kernels.open_tiles, 0), (tile_kernels.int8_tiles, 10), (tile_kernels.bf16_tiles, 5)
for make, count in kernels:
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
    names = ("ldtilecfg", "tileloadd", "tdpbusd", "tdpbf16ps", "tilestored")
    counts = {name: len(re.findall(rf"\t{name}\b", printed)) for name in names}
    assert counts == {"ldtilecfg": 1, "tileloadd": 4 + 3, "tdpbusd": 4, "tdpbf16ps": 2, "tilestored": 4 + 2}


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
    [({"hidden_act": "relu"}, "gelu, not relu"), ({"intermediate_size": 44}, f"multiples of {TILE}, not 32 and 44")],
)
def test_an_encoder_that_the_kernels_cannot_compute_is_refused(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(RankwellError, match=f"{problem}.*; use the precision fp32"):
        quantise_encoder(make_encoder(**changes))


def test_int8_is_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwell.models.compute.chosen_device", lambda name: torch.device("meta"))
    encoder = make_encoder()
    with pytest.raises(RankwellError, match="int8 is for CPUs"):
        Compute(encoder, encoder, device="cuda", dtype="int8")


def test_a_bi_encoder_in_int8_has_a_name_of_its_own(tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu", precision="fp32")
    fast = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu", precision="int8")
    assert (exact.precision, fast.precision) == ("fp32", "int8")
    assert fast.exact_name == exact.name != fast.name
    texts = ["how do bees keep warm", "honey", "the river and the bridge of stone " * 20]
    found = fast.encode_documents(texts)
    assert (found * exact.encode_documents(texts)).sum(axis=1).min() > 0.995
    np.testing.assert_array_equal(fast.encode_documents(texts[1:2]), found[1:2])
    monkeypatch.setattr("rankwell.models.bi_encoder.is_fast_in_int8", lambda: True)
    assert BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu").name == fast.name
