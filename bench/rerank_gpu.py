"""Re-ranking on one GPU: pairs a second and share of the bf16 matrix rate, beside sentence-transformers' CrossEncoder.

    PYTHONPATH=src python bench/rerank_gpu.py --out rerank_gpu.json
    PYTHONPATH=src python bench/rerank_gpu.py --families --out families.json   # XLM-R and ModernBERT instead of BERT
    PYTHONPATH=src python bench/rerank_gpu.py --smoke --out smoke.json         # tiny sizes, any machine: does it run?

Models of usual shapes with random weights score the same pairs. Those of BERT are made up, 32 to 180 tokens, 140 in the
mean, and a time runs from stored tokens in the host's memory to scores in the host's memory; the other families read
texts of the bundled sample, from text and from stored tokens. Each step prints what it found and writes ``--out`` anew;
a step that fails is noted and the next one goes on; past ``--limit`` seconds what is left is skipped.

*share* is floating-point operations computed for real tokens over time, relative to an 8192³ bf16 product measured in
the same run: the last layer of BERT counts for ``[CLS]`` alone, as it is computed. *share_of_model* counts the whole
model. CrossEncoder is measured at its defaults and in bf16 on sorted pairs, where the best of several batch sizes
counts. ``train_gpu.py`` trains the same models.
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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import tiny_models as tiny
from harness import machine, make_parser
from rankwell import Ranker
from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.folders import save_checkpoint
from rankwell.models.compute import GPU_BUDGET
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
RULES: tuple[AttentionRule, ...] = ("full", "strm", "strict")
BUDGETS = (1 << 15, 1 << 16, 1 << 17, 1 << 18)
CATEGORIES = {  # part of a kernel's name → what it is
    "attention": ("_attend_kernel",),
    "attention of [CLS]": ("_attend_first_kernel",),
    "residual and norm": ("_add_norm_kernel",),
    "embeddings": ("_embed_norm_kernel",),
    "codes of the mask": ("_codes_kernel",),
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "gemv", "splitk"),
    "gelu": ("Gelu", "gelu"),
    "copies": ("Memcpy", "Memset", "copy_kernel"),
}
PEER_BATCHES = (128, 256, 512, 1024)
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


def flops(config: EncoderConfig, lengths: NDArray[np.int64]) -> tuple[float, float]:
    """Floating-point operations for real tokens: those computed (the last layer for ``[CLS]`` alone), and those of the
    whole model, every layer for every token.
    """
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    tokens, pairs, squares = float(lengths.sum()), float(len(lengths)), float((lengths**2).sum())
    a_token = 2 * (4 * hidden**2 + 2 * hidden * inner)
    a_layer = a_token * tokens + 4 * hidden * squares
    last = 4 * hidden**2 * tokens + 4 * hidden * tokens + (a_token - 4 * hidden**2) * pairs
    head = 2 * hidden**2 * pairs
    return (layers - 1) * a_layer + last + head, layers * a_layer + head


def save_model(model: CrossEncoder, folder: Path) -> Any:
    """Write a folder that CrossEncoder loads, with a tokenizer for the made-up vocabulary; returns its loader."""
    from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer
    from transformers import AutoModelForSequenceClassification

    numbers = {piece: number for number, piece in enumerate(pieces())}
    tokenizer = Tokenizer(BertWordPieceTokenizer(numbers, lowercase=True)._tokenizer)
    save_checkpoint(folder, model.float(), tokenizer, RankerConfig(head="score"))
    return AutoModelForSequenceClassification.from_pretrained(folder)


# BERT


def engine_for(bench: Bench, model: CrossEncoder, rule: AttentionRule, **options: Any) -> TorchEngine:
    options.setdefault("packed", bench.gpu)
    return TorchEngine(model, rule, device=bench.device, dtype=bench.dtype, **options)


def rates(bench: Bench, config: EncoderConfig, pairs: Sequences, seconds: float) -> dict[str, float]:
    computed, whole = flops(config, pairs.lengths())
    return {
        "pairs_per_s": round(len(pairs) / seconds, 1),
        "share": round(computed / seconds / bench.peak, 4),
        "share_of_model": round(whole / seconds / bench.peak, 4),
    }


def best_budget(bench: Bench, model: CrossEncoder, pairs: Sequences) -> dict[str, Any]:
    found: dict[str, Any] = {}
    config = model.encoder.config
    # Enough for several batches of the largest budget.
    part = take_sequences(pairs, np.arange(min(len(pairs), max(8_000, len(pairs) // 3))))
    for budget in (512, 1024) if bench.smoke else BUDGETS:
        engine = engine_for(bench, model, "strm", budget=budget)
        found[str(budget)] = rates(bench, config, part, bench.seconds(lambda e=engine: e.logits(part), repeats=2))  # type: ignore[misc]
    found["best"] = int(max((k for k in found), key=lambda k: found[k]["pairs_per_s"]))
    return found


def score(bench: Bench, model: CrossEncoder, pairs: Sequences, budget: int) -> dict[str, Any]:
    """Full attention, STRM and strict in turns, so that a warming chip meets all."""
    config = model.encoder.config
    engines = {rule: engine_for(bench, model, rule, budget=budget) for rule in RULES}
    times: dict[str, list[float]] = {rule: [] for rule in RULES}
    for rule in RULES:
        engines[rule].logits(take_sequences(pairs, np.arange(min(len(pairs), 2_000))))
    for _ in range(1 if bench.smoke else 3):
        for rule, engine in engines.items():
            times[rule].append(bench.seconds(lambda e=engine: e.logits(pairs), repeats=1, warm=0))  # type: ignore[misc]
    found: dict[str, Any] = {
        rule: rates(bench, config, pairs, statistics.median(taken)) for rule, taken in times.items()
    }
    for rule in ("strm", "strict"):
        found[f"{rule}_slower_by"] = round(statistics.median(times[rule]) / statistics.median(times["full"]) - 1, 4)
    return found


def profile(bench: Bench, model: CrossEncoder, pairs: Sequences, budget: int) -> dict[str, Any]:
    """Where the time goes: the kernels' times by kind, as shares of the wall time; what is left is an idle GPU."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    tokens = 4 * budget
    few = take_sequences(pairs, np.arange(max(1, int(np.searchsorted(pairs.ends, tokens)))))
    engine = engine_for(bench, model, "strm", budget=budget)
    engine.logits(few)
    bench.wait()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.gpu else [])]
    wall = bench.seconds(lambda: engine.logits(few), repeats=1)
    with profiled(activities=activities) as trace:
        engine.logits(few)
        bench.wait()
    kernels: dict[str, float] = {}
    for event in trace.key_averages():
        spent = float(getattr(event, "self_device_time_total", 0) or 0)
        if spent > 0 and str(getattr(event, "device_type", "")).endswith("CUDA"):
            kernels[event.key] = kernels.get(event.key, 0.0) + spent * 1e-6
    shares = dict.fromkeys((*CATEGORIES, "other"), 0.0)
    for kernel, spent in kernels.items():
        kind = next((name for name, parts in CATEGORIES.items() if any(p in kernel for p in parts)), "other")
        shares[kind] += spent / wall
    idle = 1 - sum(kernels.values()) / wall
    return {
        "wall_ms": round(wall * 1e3, 2),
        "idle": round(idle, 4),
        **{name: round(share, 4) for name, share in shares.items()},
    }


def peer(bench: Bench, config: EncoderConfig, pairs: Sequences) -> dict[str, Any]:
    """CrossEncoder on the same weights and pairs: its defaults, the best of a sweep, and its model alone.

    The model alone computes padded batches of like length that are ready in memory.
    """
    from sentence_transformers import CrossEncoder as Peer

    count = 4 if bench.smoke else {24: 1024, 12: 4096}.get(config.num_hidden_layers, 8192)
    some = take_sequences(pairs, np.arange(min(count, len(pairs))))
    many = take_sequences(pairs, np.arange(min(2 * count, len(pairs))))
    many = take_sequences(many, np.argsort(-many.lengths(), kind="stable"))
    with tempfile.TemporaryDirectory() as place:
        model = save_model(random_model(config, bench.device), Path(place) / "model")
        cross_encoder = Peer(str(Path(place) / "model"), device=bench.device)
    alone = model.to(bench.device, bench.dtype).eval()
    options = {"activation_fn": nn.Identity(), "show_progress_bar": False}
    given, sorted_texts = texts(some), texts(many)
    seconds = bench.seconds(lambda: cross_encoder.predict(given, **options), repeats=1, warm=0)
    found: dict[str, Any] = {"default: fp32, batch 32": rates(bench, config, some, seconds)}
    cross_encoder.to(bench.dtype)
    for size in (4,) if bench.smoke else PEER_BATCHES:
        work = partial(cross_encoder.predict, sorted_texts, batch_size=size, **options)
        found[f"best: bf16, batch {size}, sorted"] = rates(bench, config, many, bench.seconds(work, repeats=1))
        numbers = [np.arange(i, min(i + size, len(many))) for i in range(0, len(many), size)]
        batches = [padded(take_sequences(many, rows)) for rows in numbers]

        @torch.inference_mode()
        def run(batches: Any = batches) -> Any:
            outs = [alone(**{k: v.to(bench.device, non_blocking=True) for k, v in b.items()}).logits for b in batches]
            return torch.cat(outs).float().cpu()

        found[f"model alone: batch {size}, sorted"] = rates(bench, config, many, bench.seconds(run, repeats=2))
    for kind in ("default", "best", "model alone"):
        found[kind] = max(rate["pairs_per_s"] for name, rate in found.items() if name.startswith(f"{kind}:"))
    return found


def padded(batch: Sequences) -> dict[str, torch.Tensor]:
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
        work = partial(model.predict, some, batch_size=size, activation_fn=nn.Identity(), show_progress_bar=False)
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
        model, pairs = random_model(SHAPES[name], bench.device).to(bench.dtype), make_pairs(PAIRS[name])
        budget = bench.step(f"{name}: budgets", partial(best_budget, bench, model, pairs)).get("best", GPU_BUDGET)
        ours = bench.step(f"{name}: score", partial(score, bench, model, pairs, budget))
        bench.step(f"{name}: profile", partial(profile, bench, model, pairs, budget))
        del model
        theirs = bench.step(f"{name}: CrossEncoder", partial(peer, bench, SHAPES[name], pairs))
        if "full" in ours and "best" in theirs:
            speed = ours["full"]["pairs_per_s"]
            times = {kind: round(speed / theirs[kind], 2) for kind in ("default", "best", "model alone")}
            bench.step(f"{name}: times CrossEncoder", partial(dict, times))


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
        measure_bert(bench, ["smoke"] if options.smoke else options.models)


if __name__ == "__main__":
    main()
