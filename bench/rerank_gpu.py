"""Re-ranking on one GPU: pairs a second and share of the bf16 matrix rate, beside sentence-transformers' CrossEncoder.

    PYTHONPATH=src python bench/rerank_gpu.py --out rerank_gpu.json
    PYTHONPATH=src python bench/rerank_gpu.py --families --out families.json   # XLM-R and ModernBERT instead of BERT
    TRITON_INTERPRET=1 PYTHONPATH=src python bench/rerank_gpu.py --smoke --out smoke.json   # any machine: does it run?

Models of usual shapes with random weights score the same pairs. Those of BERT are made up, 32 to 180 tokens, 140 in the
mean, and a time runs from stored tokens in the host's memory to scores in the host's memory; the other families read
texts of the bundled sample, from text and from stored tokens. Each step prints what it found and writes ``--out`` anew;
a step that fails is noted and the next one goes on; past ``--limit`` seconds what is left is skipped.

*share* is floating-point operations computed for real tokens over time, relative to an 8192³ bf16 product measured in
the same run: the last layer of BERT counts for ``[CLS]`` alone, as it is computed. CrossEncoder is measured at its
defaults and in bf16: padded, unpadded with torch's attention of variable lengths, and so with compiled layers; the best
of several batch sizes counts. ``attention`` compares that attention with rankwell's kernel: microseconds on the GPU,
and the largest error relative to fp64. ``train_gpu.py`` trains the same models.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AutoModelForSequenceClassification

import tiny_models as tiny
from harness import machine, make_parser
from rankwell import Ranker
from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.attention import attend
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.folders import save_checkpoint
from rankwell.models.encoder import CrossEncoder, Encoder, Layer
from rankwell.models.spec import AttentionRule, EncoderConfig
from rankwell.rank.engines.torch_engine import TorchEngine
from rankwell.sample import FOLDER

# The vocabulary is made up so that text and tokens are each other's exact image: ``w123`` is a word's first piece,
# ``x456`` goes on with it (``##x456``). Peers can so be given the same pairs as text.
VOCABULARY = 30522
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLS, SEP = 2, 3
FIRST_CONTINUATION = 22000
LONGEST = 180
SHAPES = {
    "bert-large": EncoderConfig(VOCABULARY, 1024, 24, 16, 4096),
    "bert-base": EncoderConfig(VOCABULARY, 768, 12, 12, 3072),
    "minilm-l6": EncoderConfig(VOCABULARY, 384, 6, 12, 1536),
    "smoke": EncoderConfig(VOCABULARY, 32, 3, 1, 64),
}
# Pairs of a timed run: two seconds or so on an H200.
PAIRS = {"bert-large": 12_000, "bert-base": 36_000, "minilm-l6": 200_000, "smoke": 4}
PEER_PAIRS = {"bert-large": 1024, "bert-base": 4096, "minilm-l6": 4096, "smoke": 4}
RULES: tuple[AttentionRule, ...] = ("full", "strm")
PEER_BATCHES = (128, 256, 512, 1024)
PREDICT: dict[str, Any] = {"activation_fn": nn.Identity(), "show_progress_bar": False}
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
FAMILIES: dict[str, dict[str, Any]] = {
    "xlm-roberta": BASE,
    "modernbert": {
        **BASE,
        "num_hidden_layers": 22,
        "intermediate_size": 1152,
        "local_attention": 128,
        "classifier_pooling": "mean",
        "initializer_range": 0.04,  # with tiny_models' wide weights, 22 layers would magnify any rounding
    },
}
FAMILY_PAIRS = 16_000


class Bench:
    """The results so far, and what all steps need."""

    def __init__(self, out: Path, limit: float, smoke: bool):
        self.out = out
        self.limit = limit
        self.smoke = smoke
        self.gpu = torch.cuda.is_available()
        self.device = "cuda" if self.gpu else "cpu"
        self.dtype = torch.bfloat16 if self.gpu else torch.float32
        self.begin = time.perf_counter()
        self.results: dict[str, Any] = {}

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        """Do one step; a failure is a result too."""
        spent = time.perf_counter() - self.begin
        found: Any
        if spent > self.limit:
            found = {"skipped": f"after {spent:.0f} s"}
        else:
            try:
                found = work()
            except Exception as error:
                found = {"failed": f"{type(error).__name__}: {error}", "where": traceback.format_exc()[-2000:]}
            if self.gpu:
                torch.cuda.empty_cache()
        self.results[name] = found
        self.results["seconds"] = round(time.perf_counter() - self.begin, 1)
        self.out.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")
        print(f"[{time.perf_counter() - self.begin:5.0f} s] {name}: {json.dumps(found)[:3000]}", flush=True)
        return found

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], Any], repeats: int = 3, warm: int = 1) -> float:
        """The median time of ``work`` by the host's clock, its own waiting included."""
        times = []
        warm, repeats = (0, 1) if self.smoke else (warm, repeats)
        for turn in range(warm + repeats):
            self.wait()
            begin = time.perf_counter()
            work()
            self.wait()
            if turn >= warm:
                times.append(time.perf_counter() - begin)
        return statistics.median(times)

    @property
    def peak(self) -> float:
        """The measured matrix rate in operations a second; 1 where it could not be measured."""
        return float(self.results.get("matrix_rate", {}).get("tflops", 0)) * 1e12 or 1.0


def environment(bench: Bench) -> dict[str, Any]:
    packages = ("torch", "triton", "transformers", "sentence-transformers", "numpy", "numba")
    found: dict[str, Any] = {**machine(*packages), "device": bench.device}
    if bench.gpu:
        properties = torch.cuda.get_device_properties(0)
        found |= {"gpu": properties.name, "memory_gb": round(properties.total_memory / 1e9)}
        found["multiprocessors"] = properties.multi_processor_count
    return found


def matrix_rate(bench: Bench) -> dict[str, float]:
    size, many = (64, 2) if bench.smoke else (8192, 20)
    a, b = (torch.randn(size, size, device=bench.device).to(bench.dtype) for _ in range(2))
    seconds = bench.seconds(lambda: [a @ b for _ in range(many)], repeats=5) / many
    return {"tflops": round(2 * size**3 / seconds / 1e12, 3)}


# Models and pairs


def make_pairs(count: int, seed: int = 0) -> Sequences:
    """``[CLS] Q [SEP] D [SEP]`` of 32 to 180 tokens, 140 in the mean; a piece in five goes on with a word."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.normal(141, 32, count).round(), 32, LONGEST).astype(np.int64)
    queries = np.clip(rng.poisson(8, count), 2, 24)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    positions = (np.arange(ends[-1]) - np.repeat(begins, lengths)).astype(np.int32)
    inner = np.ones(len(positions), np.bool_)
    for special in (begins, begins + queries + 1, ends - 1):
        inner[special] = False
    continues = inner & np.concatenate([[False], inner[:-1]]) & (rng.random(len(inner)) < 0.2)
    starts = np.cumsum(~continues)
    words = (starts - np.repeat(starts[begins], lengths)).astype(np.int32)
    last = np.concatenate([~continues[1:], [True]])
    tokens = np.where(
        continues,
        rng.integers(FIRST_CONTINUATION, VOCABULARY, len(inner)),
        rng.integers(len(SPECIAL), FIRST_CONTINUATION, len(inner)),
    ).astype(np.int32)
    tokens[~inner] = SEP
    tokens[begins] = CLS
    segments = (positions > np.repeat(queries + 1, lengths)).astype(np.int8)
    return Sequences(tokens, segments, positions, words, last, ends)


def pieces() -> list[str]:
    """The vocabulary."""
    words = [f"w{number}" for number in range(len(SPECIAL), FIRST_CONTINUATION)]
    return [*SPECIAL, *words, *(f"##x{number}" for number in range(FIRST_CONTINUATION, VOCABULARY))]


def texts(sequences: Sequences) -> list[tuple[str, str]]:
    """The pairs as text."""
    written = [f" {piece}" if not piece.startswith("##") else piece[2:] for piece in pieces()]
    found = []
    for tokens in np.split(sequences.tokens, sequences.ends[:-1]):
        border = int(np.flatnonzero(tokens == SEP)[0])
        query, document = tokens[1:border].tolist(), tokens[border + 1 : -1].tolist()
        found.append(("".join(written[t] for t in query).strip(), "".join(written[t] for t in document).strip()))
    return found


def random_model(config: EncoderConfig, device: str) -> CrossEncoder:
    """A model whose scores depend on its input: weights that keep the variance, queries and keys that choose."""
    torch.manual_seed(0)
    with torch.device(device):
        model = CrossEncoder(Encoder(config), 1, pooler=True)
    with torch.inference_mode():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
        for layer in model.encoder.layers:
            assert isinstance(layer, Layer)
            layer.qkv.weight[: 2 * config.hidden_size] *= 1.5
        for table in (model.encoder.segments, model.encoder.positions):
            assert isinstance(table, nn.Embedding)
            table.weight *= 0.3
    return model.eval()


def flops(config: EncoderConfig, lengths: NDArray[np.int64]) -> float:
    """Floating-point operations computed for real tokens, in the last layer for ``[CLS]`` alone."""
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    tokens, pairs, squares = float(lengths.sum()), float(len(lengths)), float((lengths**2).sum())
    a_token = 2 * (4 * hidden**2 + 2 * hidden * inner)
    a_layer = a_token * tokens + 4 * hidden * squares
    last = 4 * hidden**2 * tokens + 4 * hidden * tokens + (a_token - 4 * hidden**2) * pairs
    return (layers - 1) * a_layer + last + 2 * hidden**2 * pairs


def save_model(model: CrossEncoder, folder: Path) -> None:
    """Write a folder that CrossEncoder loads, with a tokenizer for the made-up vocabulary."""
    from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

    numbers = {piece: number for number, piece in enumerate(pieces())}
    tokenizer = Tokenizer(BertWordPieceTokenizer(numbers, lowercase=True)._tokenizer)
    save_checkpoint(folder, model.float(), tokenizer, RankerConfig(head="score"))


def load_model(bench: Bench, folder: Path, kind: str) -> Any:
    """transformers' model, which computes "padded", "unpadded" or "compiled", unpadded, too."""
    attention = "sdpa" if kind == "padded" else "varlen"
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation=attention)
    if kind == "compiled":
        compile_layers(model)
    return model.to(bench.device)


# BERT


def engine_for(bench: Bench, model: CrossEncoder, rule: AttentionRule) -> TorchEngine:
    return TorchEngine(model, rule, device=bench.device, dtype=bench.dtype, packed=bench.gpu)


def rates(bench: Bench, config: EncoderConfig, pairs: Sequences, seconds: float) -> dict[str, float]:
    share = flops(config, pairs.lengths()) / seconds / bench.peak
    return {"pairs_per_s": round(len(pairs) / seconds, 1), "share": round(share, 4)}


def score(bench: Bench, model: CrossEncoder, pairs: Sequences) -> dict[str, Any]:
    """Full attention and STRM in turns, so that a warming chip meets both."""
    config = model.encoder.config
    engines = {rule: engine_for(bench, model, rule) for rule in RULES}
    times: dict[str, list[float]] = {rule: [] for rule in RULES}
    for rule in RULES:
        engines[rule].logits(take_sequences(pairs, np.arange(min(len(pairs), 2_000))))
    for _ in range(1 if bench.smoke else 3):
        for rule, engine in engines.items():
            times[rule].append(bench.seconds(lambda e=engine: e.logits(pairs), repeats=1, warm=0))  # type: ignore[misc]
    return {
        rule: {**rates(bench, config, pairs, statistics.median(taken)), "runs": [len(pairs) / t for t in taken]}
        for rule, taken in times.items()
    }


def kernel_seconds(bench: Bench, work: Callable[[], Any], repeats: int = 20) -> float:
    """The time of the kernels that ``work`` starts, without the gaps between them."""
    from torch.profiler import ProfilerActivity, profile

    if not bench.gpu:
        return bench.seconds(work)
    for _ in range(3):
        work()
    bench.wait()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(repeats):
            work()
        bench.wait()
    kernels = (event for event in trace.key_averages() if str(event.device_type).endswith("CUDA"))
    return float(sum(event.self_device_time_total for event in kernels)) * 1e-6 / repeats


def attention(bench: Bench) -> dict[str, Any]:
    """rankwell's kernel without a rule beside torch's attention of variable lengths, whose query, key and value are
    tensors of their own.
    """
    usual = make_pairs(2000).ends
    usual = usual[: np.searchsorted(usual, 1 << 18)]
    lengths = {"a batch of 32 to 180": usual, "96 of 32 to 180": usual[:96], "512": np.arange(1, 257) * 512}
    if bench.smoke:
        lengths = {"20 and 25": np.array([20, 45])}
    return {
        f"{heads} x {size}, {name}": _attention(bench, heads, size, ends)
        for heads, size in (((1, 32),) if bench.smoke else ((12, 32), (12, 64)))
        for name, ends in lengths.items()
    }


def _attention(bench: Bench, heads: int, size: int, ends: NDArray[np.int64]) -> dict[str, dict[str, float]]:
    from rankwell.models.kernels.triton_attention import blocks_for, make_tiles, pack

    torch.manual_seed(0)
    blocks = blocks_for(size, "full")
    assert blocks is not None
    qkv = torch.randn(int(ends[-1]), 3, heads, size, device=bench.device).to(bench.dtype)
    grad = torch.randn(len(qkv), heads, size, device=bench.device).to(bench.dtype)
    tiles, sequences = (torch.from_numpy(table).to(bench.device) for table in make_tiles(ends, blocks.rows))
    layout = pack(tiles, tiles, tiles, sequences, "full", blocks)

    def packed(given: list[Tensor]) -> Tensor:
        return attend(given[0].flatten(1), layout, heads).view(-1, heads, size)

    bounds = torch.from_numpy(np.append(0, ends)).int()
    on_device, longest = bounds.to(bench.device), int(bounds.diff().max())

    def varlen(given: list[Tensor], bounds: Tensor = on_device) -> Tensor:
        rows = [part.transpose(0, 1)[None] for part in given]
        return unpadded_attention(None, *rows, cu_seq_lens_q=bounds, max_length_q=longest)[0][0]

    few = ends[:4]  # are compared with fp64
    exact = [part.cpu().double().requires_grad_() for part in qkv[: few[-1]].unbind(1)]
    expected = varlen(exact, bounds[:5])
    expected_grads = torch.stack(torch.autograd.grad(expected, exact, grad[: few[-1]].cpu().double()), 1)
    found = {}
    kinds = {"rankwell": (packed, [qkv.clone()]), "varlen": (varlen, [part.contiguous() for part in qkv.unbind(1)])}
    for name, (work, given) in kinds.items():
        with torch.inference_mode():
            forward = kernel_seconds(bench, partial(work, given))
        leaves = [part.requires_grad_() for part in given]
        out = work(leaves)
        backward = kernel_seconds(bench, partial(torch.autograd.grad, out, leaves, grad, retain_graph=True))
        grads = torch.autograd.grad(out, leaves, grad)
        found[name] = {
            "forward_us": round(forward * 1e6, 1),
            "backward_us": round(backward * 1e6, 1),
            "error": relative_error(out, expected),
            "gradient_error": relative_error(grads[0] if len(grads) == 1 else torch.stack(grads, 1), expected_grads),
        }
    return found


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference of the first rows, relative to the largest value expected."""
    difference = found[: len(expected)].cpu().double() - expected
    return float(f"{(difference.abs().max() / expected.abs().max()).item():.2g}")


# The peer


def unpadded_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, dropout: float = 0.0, **given: Any
) -> tuple[Tensor, None]:
    """torch's attention of variable lengths as transformers calls it: three (1, heads, T, size) → (1, T, heads, size).

    On a CPU, where torch has none, it is computed with a mask.
    """
    bounds, longest = given["cu_seq_lens_q"], given["max_length_q"]
    if not query.is_cuda:
        owner = torch.bucketize(torch.arange(query.shape[2]), bounds, right=True)
        mixed = functional.scaled_dot_product_attention(query, key, value, owner[:, None] == owner, dropout)
        return mixed.transpose(1, 2), None
    rows: Any = *(part[0].transpose(0, 1) for part in (query, key, value)), bounds, bounds, longest, longest
    if dropout:  # varlen_attn has none; the operator behind it has
        return torch.ops.aten._flash_attention_forward(*rows, dropout, False, False)[0][None], None
    mixed = cast("Tensor", varlen_attn(*rows))
    return mixed[None], None


AttentionInterface.register("varlen", unpadded_attention)


def modular_peer(
    bench: Bench, folder: Path, *, unpadded: bool, stored: Callable[[Any], Sequences] | None = None
) -> Any:
    """CrossEncoder made of separate modules, which it can compute ``unpadded``; a model with a head it always pads.

    ``stored`` gives the tokens of pairs of texts, which are otherwise tokenised at each call.
    """
    from sentence_transformers import CrossEncoder as Peer
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import DataCollatorWithFlattening

    def flatten(features: list[dict[str, list[int]]]) -> Any:
        """As the library does, with the segments, which it leaves out."""
        collate: Any = DataCollatorWithFlattening(return_flash_attn_kwargs=True)  # type: ignore[no-untyped-call]
        segments = [segment for feature in features for segment in feature["token_type_ids"]]
        return {**collate(features), "token_type_ids": torch.tensor([segments])}

    class Unpadded(Transformer):
        def _can_flatten_inputs(self) -> bool:
            """As it is with flash attention."""
            self.data_collator: Any = flatten
            self._flatten_position_offset = 0
            if self.model_forward_params is not None:
                self.model_forward_params |= {"cu_seq_lens_q", "max_length_q"}
            return unpadded

        def preprocess(self, inputs: Any, *rest: Any, **options: Any) -> Any:
            if stored is None:
                return super().preprocess(inputs, *rest, **options)
            return {**(flattened if unpadded else padded)(stored(inputs)), "modality": "text"}

    head = AutoModelForSequenceClassification.from_pretrained(folder)
    width, attention = head.config.hidden_size, {"attn_implementation": "varlen" if unpadded else "sdpa"}
    first = Unpadded(str(folder), model_kwargs=attention, processor_kwargs={"model_max_length": LONGEST})
    pooler, scores = Dense(width, width), Dense(width, 1, activation_function=None, module_output_name="scores")
    pooler.linear, scores.linear = head.bert.pooler.dense, head.classifier
    return Peer(modules=[first, Pooling(width, "cls"), pooler, scores], device=bench.device)


def flattened(batch: Sequences) -> dict[str, Any]:
    """A batch as transformers takes it without padding."""
    named = {"input_ids": batch.tokens, "token_type_ids": batch.segments, "position_ids": batch.positions}
    rows = {name: torch.from_numpy(values)[None].long() for name, values in named.items()}
    rows["cu_seq_lens_q"] = torch.from_numpy(np.append(0, batch.ends)).int()
    if torch.cuda.is_available():
        rows = {name: values.pin_memory() for name, values in rows.items()}
    return {**rows, "max_length_q": int(batch.lengths().max())}


def peer_logits(bench: Bench, model: Any, batch: dict[str, Any]) -> Tensor:
    """The logits (B, 1) of transformers' model for a batch of :func:`padded` or :func:`flattened`."""
    moved = {k: v.to(bench.device, non_blocking=True) if isinstance(v, Tensor) else v for k, v in batch.items()}
    if "cu_seq_lens_q" not in moved:
        return cast("Tensor", model(**moved).logits)
    firsts = model.bert(**moved).last_hidden_state[0, moved["cu_seq_lens_q"][:-1]]
    return cast("Tensor", model.classifier(model.dropout(model.bert.pooler(firsts[:, None]))))


def compile_layers(model: Any) -> None:
    """Compile each layer of transformers' BERT, for any lengths."""
    for layer in getattr(model, "bert", model).encoder.layer:
        layer.compile(dynamic=True)


def peer(
    bench: Bench, config: EncoderConfig, folder: Path, pairs: Sequences, expected: NDArray[np.float32], kind: str
) -> dict[str, Any]:
    """CrossEncoder on the same weights and pairs, and its model alone on batches that are ready in memory.

    The ``kind`` is "default" or one of :func:`load_model`.
    """
    from sentence_transformers import CrossEncoder as Peer

    given, whole = texts(pairs), kind in ("default", "padded")
    model: Any = Peer(str(folder), device=bench.device) if whole else modular_peer(bench, folder, unpadded=True)
    if kind == "default":
        seconds = bench.seconds(lambda: model.predict(given, **PREDICT), repeats=1, warm=0)
        return {"batch 32": rates(bench, config, pairs, seconds)}
    model.to(bench.dtype)
    if kind == "compiled":
        compile_layers(model[0].model)
    alone = load_model(bench, folder, kind).to(bench.dtype).eval()
    together = np.corrcoef(model.predict(given, **PREDICT), expected)
    found: dict[str, Any] = {"correlation with rankwell": round(float(together[0, 1]), 6)}
    for size in (4,) if bench.smoke else PEER_BATCHES:
        numbers = [np.arange(i, min(i + size, len(pairs))) for i in range(0, len(pairs), size)]
        batches = [(padded if kind == "padded" else flattened)(take_sequences(pairs, rows)) for rows in numbers]

        @torch.inference_mode()
        def run(batches: Any = batches) -> Any:
            return torch.cat([peer_logits(bench, alone, batch) for batch in batches]).float().cpu()

        seconds = bench.seconds(partial(model.predict, given, batch_size=size, **PREDICT), repeats=1)
        found[f"batch {size}"] = rates(bench, config, pairs, seconds)
        found[f"model alone, batch {size}"] = rates(bench, config, pairs, bench.seconds(run, repeats=2))
    return found


def padded(batch: Sequences) -> dict[str, Tensor]:
    """A batch as transformers takes it."""
    lengths = batch.lengths()
    shape = len(batch), int(lengths.max())
    real = np.arange(shape[1]) < lengths[:, None]
    names = ("input_ids", "token_type_ids", "attention_mask")
    grids = {name: torch.zeros(shape, dtype=torch.int64, pin_memory=torch.cuda.is_available()) for name in names}
    grids["input_ids"].numpy()[real] = batch.tokens
    grids["token_type_ids"].numpy()[real] = batch.segments
    grids["attention_mask"].numpy()[real] = 1
    return grids


# Other families


def sample_pairs(count: int) -> list[tuple[str, str]]:
    """A query with passages of the bundled sample, the longest first."""
    lines = (FOLDER / "collection.tsv").read_text(encoding="utf-8").splitlines()
    texts = [lines[number % len(lines)].partition("\t")[2] for number in range(count)]
    return [("how do bees keep warm in winter", text) for text in sorted(texts, key=len, reverse=True)]


def laid_out(ranker: Ranker, pairs: list[tuple[str, str]]) -> Sequences:
    """The pairs as stored tokens would be scored."""
    reader = ranker.reader
    queries = reader.encode_queries([pairs[0][0]]).take(np.zeros(len(pairs), np.int64))
    return reader.lay_out({"query": queries, "document": reader.encode([text for _, text in pairs])}).sequences


def operations(shape: dict[str, Any], kind: str, lengths: NDArray[np.int64]) -> float:
    """Floating-point operations of the whole model for real tokens; ModernBERT's inner layer is gated."""
    hidden, inner, layers = shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"]
    a_token = 2 * (4 * hidden**2 + (3 if kind == "modernbert" else 2) * hidden * inner)
    return float(layers * (a_token * lengths.sum() + 4 * hidden * (lengths**2).sum()))


def family_speed(bench: Bench, folder: Path, kind: str, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    ranker = Ranker(folder, device=bench.device, windows=None, max_length=LONGEST)
    sequences = laid_out(ranker, pairs)
    work = operations(FAMILIES[kind], kind, sequences.lengths())
    found: dict[str, Any] = {
        "precision": ranker.engine.precision,
        "tokens": round(float(sequences.lengths().mean()), 1),
    }
    for name, run in (("text", lambda: ranker.predict(pairs)), ("stored", lambda: ranker.engine.logits(sequences))):
        seconds = bench.seconds(run)
        found[name] = {"pairs_per_s": round(len(pairs) / seconds, 1), "share": round(work / seconds / bench.peak, 4)}
    return found


def family_peer(bench: Bench, folder: Path, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """CrossEncoder from text."""
    from sentence_transformers import CrossEncoder as Peer

    some = pairs[:: 1 if bench.smoke else 4]
    kwargs = {"dtype": bench.dtype, "attn_implementation": "sdpa"}
    model = Peer(str(folder), device=bench.device, max_length=LONGEST, model_kwargs=kwargs)
    found = {}
    for size in (4,) if bench.smoke else PEER_BATCHES:
        work = partial(model.predict, some, batch_size=size, **PREDICT)
        found[f"batch {size}"] = round(len(some) / bench.seconds(work, repeats=1), 1)
    return {**found, "best": max(found.values())}


def measure_families(bench: Bench) -> None:
    """XLM-R and ModernBERT of base size."""
    pairs = sample_pairs(8 if bench.smoke else FAMILY_PAIRS)
    with tempfile.TemporaryDirectory() as place:
        for kind, shape in FAMILIES.items():
            folder = tiny.make(kind, Path(place) / kind, **({} if bench.smoke else shape))
            ours = bench.step(f"{kind}: rankwell", partial(family_speed, bench, folder, kind, pairs))
            theirs = bench.step(f"{kind}: CrossEncoder", partial(family_peer, bench, folder, pairs))
            if "stored" in ours and "best" in theirs:
                times = {name: round(ours[name]["pairs_per_s"] / theirs["best"], 2) for name in ("text", "stored")}
                bench.step(f"{kind}: times CrossEncoder's best", partial(dict, times))


def measure_bert(bench: Bench, names: list[str]) -> None:
    """BERT of the shapes in ``names``."""
    for name in names:
        config, pairs = SHAPES[name], make_pairs(PAIRS[name])
        model = random_model(config, bench.device).to(bench.dtype)
        bench.step(f"{name}: rankwell", partial(score, bench, model, pairs))
        few = take_sequences(pairs, np.arange(PEER_PAIRS[name]))
        few = take_sequences(few, np.argsort(-few.lengths(), kind="stable"))
        expected = engine_for(bench, model, "full").logits(few)[:, 0]
        with tempfile.TemporaryDirectory() as place:
            save_model(model, Path(place) / "model")
            del model
            for kind in ("default", "padded", "unpadded", "compiled"):
                work = partial(peer, bench, config, Path(place) / "model", few, expected, kind)
                bench.step(f"{name}: CrossEncoder, {kind}", work)


def main() -> None:
    """Run all steps."""
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("rerank_gpu.json"))
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=["minilm-l6", "bert-base", "bert-large"])
    parser.add_argument("--families", action="store_true", help="measure XLM-R and ModernBERT instead")
    parser.add_argument("--limit", type=float, default=420.0, help="seconds after which no step begins")
    parser.add_argument("--smoke", action="store_true", help="a tiny model and few pairs, to see that all steps run")
    options = parser.parse_args()
    bench = Bench(options.out, options.limit, options.smoke)
    bench.step("environment", partial(environment, bench))
    bench.step("matrix_rate", partial(matrix_rate, bench))
    if options.families:
        measure_families(bench)
    else:
        bench.step("attention", partial(attention, bench))
        measure_bert(bench, ["smoke"] if options.smoke else options.models)


if __name__ == "__main__":
    main()
