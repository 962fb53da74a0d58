"""Listwise training on one GPU: pairs a second and share of the bf16 matrix rate, beside sentence-transformers.

    PYTHONPATH=src python bench/train_gpu.py --out train_gpu.json
    TRITON_INTERPRET=1 PYTHONPATH=src python bench/train_gpu.py --smoke --out smoke.json  # any machine: does it run?

Models of three usual shapes with random weights train on lists of one relevant document and five others, 16 lists a
step, AdamW, bf16 with fp32 weights, dropout 0.1. Pairs have at most 180 tokens, some 140 in the mean. Ours begin as
stored tokens and go through the project's own task and step; the peer's CrossEncoderTrainer gets the same queries and
documents as texts, which is what it takes. Its settings are searched: one change after the other, kept if it is faster.
Then both train in turns, three times. Ours are measured as CUDA graphs, recorded beforehand, and without. Each step
prints what it found and writes ``--out`` anew; a step that fails is noted and the next one goes on; past ``--limit``
seconds what is left is skipped. The peer needs ``pip install datasets``.

*share* is floating-point operations for real tokens over time, relative to an 8192³ bf16 product measured in the same
run: three times the forward pass, the last layer for ``[CLS]`` alone, as it is computed, without the gradient cache's
second forward pass.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness import make_parser
from rankwell.inputs.batching import Sequences, slice_sequences, take_sequences
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import Reader
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.templates import SpecialTokens, Template
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models import batch
from rankwell.models.batch import BlockPlacer, Placer, packed_blocks
from rankwell.models.cuda_graphs import GraphedEncoder
from rankwell.models.encoder import CrossEncoder
from rankwell.models.spec import AttentionRule, EncoderConfig
from rankwell.training.data.sampling import Lists, TrainingSet
from rankwell.training.loop.losses import make_loss
from rankwell.training.loop.optimiser import make_optimiser
from rankwell.training.loop.task import RankingTask, Step
from rankwell.training.options import TrainingOptions
from rerank_gpu import (
    CLS,
    LONGEST,
    SEP,
    SHAPES,
    Bench,
    compile_layers,
    environment,
    flattened,
    flops,
    load_model,
    make_pairs,
    matrix_rate,
    modular_peer,
    padded,
    peer_logits,
    random_model,
    save_model,
    texts,
)

LISTS = 16  # of a step
# Without a GPU the kernels need Triton's interpreter.
PACKED = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True, eq=False)
class Data:
    """Queries and documents as pieces, and the same as texts."""

    queries: Pieces
    documents: Pieces
    query_texts: list[str]
    document_texts: list[str]

    def at(self, numbers: NDArray[np.int64]) -> Pieces:
        return self.documents.take(numbers)


def some_pairs(bench: Bench, count: int, seed: int) -> Sequences:
    """Pairs of 32 to 180 tokens; for Triton's interpreter, which takes its time, a few of the shortest."""
    if not bench.smoke:
        return make_pairs(count, seed)
    drawn = make_pairs(4000, seed)
    return take_sequences(drawn, np.argsort(drawn.lengths(), kind="stable")[:2])


def negatives_of(bench: Bench) -> int:
    """How many documents of a list are not relevant."""
    return 1 if bench.smoke else 5


def make_data(bench: Bench) -> Data:
    """Pairs taken apart: lists put them together anew, a little shorter or longer."""
    pairs = some_pairs(bench, 8192, seed=7)
    inner = ~np.isin(pairs.tokens, (CLS, SEP))
    owner = np.repeat(np.arange(len(pairs)), pairs.lengths())
    continues = np.concatenate([[False], ~pairs.last[:-1]])
    fields = []
    for segment in (0, 1):
        own = inner & (pairs.segments == segment)
        ends = np.cumsum(np.bincount(owner[own], minlength=len(pairs)))
        fields.append(Pieces.plain(pairs.tokens[own], continues[own], ends))
    written = texts(pairs)
    return Data(fields[0], fields[1], [query for query, _ in written], [document for _, document in written])


def make_lists(data: Data, count: int, negatives: int, seed: int = 0) -> Lists:
    """Lists of one relevant document and ``negatives`` others."""
    rng = np.random.default_rng(seed)
    documents = rng.integers(0, len(data.documents), (count, 1 + negatives))
    labels = np.zeros(documents.shape, np.float32)
    labels[:, 0] = 1
    return Lists(rng.integers(0, len(data.queries), count), documents, labels)


def make_task(data: Data, lists: Lists) -> RankingTask:
    task = RankingTask(
        # Candidates are what lists are drawn from; these are drawn.
        TrainingSet(data.queries, None, cast("StoredTokens", data)),
        lambda epoch: lists,
        make_loss("listwise"),
        # A reader lays pairs out with the special tokens alone; these texts are tokens already.
        Reader(
            cast("Tokenizer", SimpleNamespace(special=SpecialTokens(CLS, SEP), frame=None)),
            Template(max_length=LONGEST),
        ),
    )
    task.draw(0)
    return task


def computing(bench: Bench) -> Callable[[], AbstractContextManager[object]]:
    return partial(torch.autocast, "cuda", torch.bfloat16) if bench.gpu else nullcontext


def placer(bench: Bench, model: CrossEncoder, rule: AttentionRule) -> Placer:
    blocks = packed_blocks(model.encoder, rule) if PACKED else None
    return Placer(torch.device(bench.device), rule, blocks, seeded=True)


class Training:
    """The loop's step without its log, its checkpoints and its validation."""

    def __init__(
        self, bench: Bench, model: CrossEncoder, task: RankingTask, rule: AttentionRule, *, graphs: bool = False
    ):
        self.model, self.task, self.budget = model.train(), task, 1 << 18
        self.place, self.computing = placer(bench, model, rule), computing(bench)
        self.graphed: GraphedEncoder | None = None
        if graphs:
            assert self.place.blocks is not None
            self.graphed = GraphedEncoder(model, rule, self.place.blocks)
            self.place = BlockPlacer(self.place.device, rule, self.place.blocks)
        self.optimiser = make_optimiser(model, TrainingOptions(learning_rate=2e-5), torch.device(bench.device))
        self.parameters = list(model.parameters())
        self.number = 0

    def backward(self, items: NDArray[np.int64]) -> Tensor:
        """Leaves the gradient; returns the loss."""
        if self.graphed is None:
            self.optimiser.zero_grad(set_to_none=True)
        else:
            self.graphed.clear_gradients()
        step = Step(self.place, self.budget, self.number, self.computing, lambda loss: loss)
        return self.task.backward(self.graphed or self.model, items, slice(0, len(items)), step)["loss"]

    def step(self, items: NDArray[np.int64]) -> Tensor:
        self.number += 1
        loss = self.backward(items)
        if self.graphed is None:
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
        else:
            self.graphed.gradients.clip(1.0)
        self.optimiser.step()
        return loss

    def record(self, rounds: list[NDArray[np.int64]]) -> dict[str, Any]:
        """Go over the batches until there is a graph for the form of each."""
        if self.graphed is None:
            return {}
        begin, passes = time.perf_counter(), 0
        while passes < 4:
            before, passes = self.graphed.recorded, passes + 1
            for items in rounds:
                self.step(items)
            if passes > 2 and self.graphed.recorded == before:
                break
            if not self.graphed.active:
                break
        seconds = round(time.perf_counter() - begin, 2)
        return {"graphs": self.graphed.recorded, "active": self.graphed.active, "seconds_before": seconds}


def batches(count: int, lists: int) -> Iterator[NDArray[np.int64]]:
    for begin in range(0, count, lists):
        yield np.arange(begin, begin + lists)


def timed(
    bench: Bench, training: Training, lists: int, steps: int, warm: int
) -> tuple[float, NDArray[np.int64], dict[str, Any]]:
    """Seconds of ``steps`` steps after ``warm`` others, the lengths of the pairs in them, and how many graphs there are
    where there are graphs: they are recorded before, as in a run of many steps nearly all are.
    """
    chunks = list(batches((warm + steps) * lists, lists))
    for items in chunks[:warm]:
        training.step(items)
    recorded = training.record(chunks[warm:])
    bench.wait()
    begin = time.perf_counter()
    for items in chunks[warm:]:
        loss = training.step(items)
    bench.wait()
    seconds = time.perf_counter() - begin
    if not bool(torch.isfinite(loss)):
        raise RuntimeError(f"the loss is {float(loss)}")
    timed_lists = training.task.drawn(np.concatenate(chunks[warm:]))
    return seconds, training.task.lay_out(timed_lists).lengths(), recorded


def rates(bench: Bench, config: EncoderConfig, lengths: NDArray[np.int64], seconds: float) -> dict[str, float]:
    """Forward and backward are three times the forward; a second forward of the gradient cache does not count."""
    return {
        "pairs_per_s": round(len(lengths) / seconds, 1),
        "share": round(3 * flops(config, lengths) / seconds / bench.peak, 4),
        "mean_length": round(float(lengths.mean()), 1),
    }


def steps_of(bench: Bench, config: EncoderConfig) -> tuple[int, int]:
    """How many steps are timed, after how many others."""
    return (1, 1) if bench.smoke else ({24: 12, 12: 25}.get(config.num_hidden_layers, 40), 8)


def _speed(
    bench: Bench,
    config: EncoderConfig,
    data: Data,
    rule: AttentionRule,
    lists: int,
    steps_warm: tuple[int, int],
    *,
    graphs: bool,
    negatives: int | None = None,
    budget: int = 1 << 18,
) -> dict[str, Any]:
    steps, warm = steps_warm
    task = make_task(data, make_lists(data, (steps + warm) * lists, negatives or negatives_of(bench)))
    training = Training(bench, random_model(config, bench.device), task, rule, graphs=graphs)
    training.budget = budget
    if bench.gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds, lengths, recorded = timed(bench, training, lists, steps, warm)
    found: dict[str, Any] = {**rates(bench, config, lengths, seconds), **recorded}
    found["ms_a_step"] = round(seconds / steps * 1e3, 2)
    if bench.gpu:
        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
    return found


def memory(bench: Bench, config: EncoderConfig, data: Data) -> dict[str, Any]:
    """Longer and longer lists with the same bound on the tokens in memory; and with a high one, where they fit."""
    bound, lists, steps = (LONGEST, 1, (1, 0)) if bench.smoke else (6 * LISTS * LONGEST, LISTS, (3, 2))
    plan = [(1, bound)] if bench.smoke else [(5, bound), (15, bound), (63, bound), (15, 1 << 18)]
    return {
        f"{negatives} negatives, at most {budget} tokens in memory": _speed(
            bench, config, data, "strm", lists, steps, graphs=PACKED, negatives=negatives, budget=budget
        )
        for negatives, budget in plan
    }


# The peer


# Tried one after the other: pairs computed at once (as many as lists unless told), workers that load data, tokens
# stored beforehand, no padding, compiled layers. The peer's AdamW is the fused one anyway.
CHANGES = ({"at_once": -1}, {"workers": 4}, {"stored": True}, {"unpadded": True}, {"compiled": True})


def in_turns(bench: Bench, config: EncoderConfig, data: Data, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """rankwell and the peer at its best, three times each."""
    found: dict[str, list[float]] = {"rankwell": [], "trainer": []}
    for _ in range(1 if bench.smoke else 3):
        lists, graphs = (1, False) if bench.smoke else (LISTS, True)
        ours = _speed(bench, config, data, "full", lists, steps_of(bench, config), graphs=graphs)
        found["rankwell"].append(ours["pairs_per_s"])
        found["trainer"].append(_train(bench, config, data, folder, **settings)["pairs_per_s"])
    medians = [statistics.median(speeds) for speeds in found.values()]
    return {**found, "times": round(medians[0] / (medians[1] or 1), 2)}


def peer_lists(bench: Bench, config: EncoderConfig, data: Data) -> Lists:
    return make_lists(data, sum(steps_of(bench, config)) * (2 if bench.smoke else LISTS), negatives_of(bench), seed=1)


def _train(
    bench: Bench,
    config: EncoderConfig,
    data: Data,
    folder: Path,
    *,
    at_once: int | None = None,
    workers: int = 0,
    unpadded: bool = False,
    stored: bool = False,
    compiled: bool = False,
) -> dict[str, float]:
    """The speed of some steps after others, by a callback."""
    from datasets import Dataset
    from sentence_transformers import cross_encoder as peers
    from transformers import TrainerCallback

    (steps, warm), lists = steps_of(bench, config), peer_lists(bench, config, data)
    columns = lists.queries.tolist(), lists.documents.tolist(), lists.labels.tolist()
    rows = [
        {"query": data.query_texts[query], "docs": [data.document_texts[d] for d in documents], "labels": labels}
        for query, documents, labels in zip(*columns, strict=True)
    ]
    marks: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in (warm, warm + steps):
                bench.wait()
                marks.append(time.perf_counter())

    class Trainer(peers.CrossEncoderTrainer):
        def add_model_card_callback(self, *_: Any, **__: Any) -> None:
            """No card: it describes the data set at length, which is no part of training."""

    sequences = make_task(data, lists).lay_out(lists)
    pairs = [(row["query"], document) for row in rows for document in row["docs"]]
    numbers = {pair: number for number, pair in enumerate(pairs)}

    def tokens(given: list[tuple[str, str]]) -> Sequences:
        return take_sequences(sequences, np.array([numbers[pair] for pair in given]))

    model: Any = (
        modular_peer(bench, folder, unpadded=unpadded, stored=tokens if stored else None)
        if unpadded or stored
        else peers.CrossEncoder(str(folder), max_length=LONGEST, device=bench.device)
    )
    if compiled:
        compile_layers(model[0].model)
    quiet: dict[str, Any] = {f"{name}_strategy": "no" for name in ("logging", "save", "eval")}
    with tempfile.TemporaryDirectory() as out:
        arguments = peers.CrossEncoderTrainingArguments(
            output_dir=out,
            max_steps=warm + steps,
            per_device_train_batch_size=len(rows) // (steps + warm),
            learning_rate=2e-5,
            dataloader_num_workers=workers,
            bf16=bench.gpu,
            use_cpu=not bench.gpu,
            report_to="none",
            disable_tqdm=True,
            **quiet,
        )
        loss, given = peers.losses.ListNetLoss(model, mini_batch_size=at_once), Dataset.from_list(rows)
        Trainer(model=model, args=arguments, train_dataset=given, loss=loss, callbacks=[Clock()]).train()
    # The order is the sampler's: of the steps that are timed the mean length is all that counts.
    lengths = sequences.lengths()
    return rates(bench, config, lengths[: len(lengths) * steps // (steps + warm)], marks[1] - marks[0])


def _alone(bench: Bench, config: EncoderConfig, data: Data, folder: Path, kind: str) -> dict[str, float]:
    """transformers' model under autocast with fused AdamW, on batches that are ready."""
    theirs = load_model(bench, folder, kind).train()
    (steps, warm), lists = steps_of(bench, config), peer_lists(bench, config, data)
    optimiser = torch.optim.AdamW(theirs.parameters(), lr=2e-5, fused=bench.gpu or None)
    sequences = make_task(data, lists).lay_out(lists)
    chunks = list(batches(len(sequences), len(sequences) // (steps + warm)))
    lay_out = padded if kind == "padded" else flattened
    ready = [lay_out(slice_sequences(sequences, int(own[0]), int(own[-1]) + 1)) for own in chunks]
    short = computing(bench)
    begin = time.perf_counter()
    for number, grids in enumerate(ready):
        if number == warm:
            bench.wait()
            begin = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        with short():
            logits = peer_logits(bench, theirs, grids)
        scores = logits.float().view(-1, lists.documents.shape[1])
        (torch.logsumexp(scores, 1) - scores[:, 0]).mean().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimiser.step()
    bench.wait()
    seconds = time.perf_counter() - begin
    return rates(bench, config, sequences.lengths()[np.concatenate(chunks[warm:])], seconds)


def measure(bench: Bench, name: str, data: Data, folder: Path) -> None:
    """Lists of 1 + 5, 16 a step as the peer has them; ours also with more a step, for what the hardware can do.

    The peer is CrossEncoderTrainer with ListNetLoss, the loss of a softmax over a list: as it comes, then with one
    change after the other.
    """
    config = SHAPES[name]
    steps, warm = steps_of(bench, config)
    wanted: list[tuple[AttentionRule, int, bool]] = [("strm", 1, False)]
    if not bench.smoke:
        wanted = [("full", LISTS, True), ("strm", LISTS, True), ("strm", 4 * LISTS, True), ("full", LISTS, False)]
    for rule, lists, graphs in wanted:
        own = max(4, steps * LISTS // lists) if not bench.smoke else steps
        work = partial(_speed, bench, config, data, rule, lists, (own, warm), graphs=graphs)
        bench.step(f"{name}: {rule}, {lists} lists, {'graphs' if graphs else 'eager'}", work)
    settings: dict[str, Any] = {}
    speed = 0.0
    for change in ({}, *CHANGES):
        tried = settings | change
        found = bench.step(f"{name}: trainer, {tried}", partial(_train, bench, config, data, folder, **tried))
        if found.get("pairs_per_s", 0) > speed or bench.smoke:
            settings, speed = tried, found["pairs_per_s"]
    bench.step(f"{name}: in turns, {settings}", partial(in_turns, bench, config, data, folder, settings))
    for kind in ("padded", "unpadded", "compiled"):
        bench.step(f"{name}: model alone, {kind}", partial(_alone, bench, config, data, folder, kind))


def main() -> None:
    """Run all steps."""
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("train_gpu.json"))
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=["minilm-l6", "bert-base", "bert-large"])
    parser.add_argument("--limit", type=float, default=480.0, help="seconds after which no step begins")
    parser.add_argument("--smoke", action="store_true", help="a tiny model and few pairs, to see that all steps run")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    bench = Bench(options.out, options.limit, options.smoke)
    if options.smoke:
        batch.LEAST = 32
    data = make_data(bench)
    bench.step("environment", partial(environment, bench))
    bench.step("matrix_rate", partial(matrix_rate, bench))
    names = ["smoke"] if options.smoke else options.models
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            save_model(random_model(SHAPES[name], "cpu"), Path(place) / "model")
            measure(bench, name, data, Path(place) / "model")
    for name in names:
        bench.step(f"{name}: memory", partial(memory, bench, SHAPES[name], data))


if __name__ == "__main__":
    main()
