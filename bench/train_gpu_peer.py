"""The steps of ``train_gpu.py`` that measure sentence-transformers on the same weights, queries and documents."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankwell.inputs.batching import slice_sequences
from rankwell.models.spec import EncoderConfig
from rankwell.training.data.lists import Lists
from rerank_gpu_models import LONGEST, random_model, save_checkpoint, transformers_model
from rerank_gpu_peer import _padded
from rerank_gpu_steps import Bench
from train_gpu_steps import LISTS, Data, batches, computing, make_lists, make_task, negatives_of, rates

# Where the package `datasets` is missing, this stands in for it: the trainer wants rows of one, and nothing else of it.
DATASETS = """
import torch

__version__ = "9.9.9"


class Dataset(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows, self.column_names, self.features = rows, list(rows[0]), {}

    @classmethod
    def from_list(cls, rows):
        return cls(rows)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]


class _Missing:
    pass


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (dict if name.endswith("Dict") else _Missing,), {})
"""
METADATA = "Metadata-Version: 2.1\nName: datasets\nVersion: 9.9.9\nHome-page: https://github.com/huggingface/datasets\n"


def provide_datasets() -> str:
    """Make ``import datasets`` work; returns which it is."""
    if importlib.util.find_spec("datasets") is None:
        folder = Path(tempfile.mkdtemp())
        (folder / "datasets").mkdir()
        (folder / "datasets" / "__init__.py").write_text(DATASETS, encoding="utf-8")
        (folder / "datasets-9.9.9.dist-info").mkdir()
        (folder / "datasets-9.9.9.dist-info" / "METADATA").write_text(METADATA, encoding="utf-8")
        sys.path.append(str(folder))
        importlib.invalidate_caches()
    datasets = importlib.import_module("datasets")
    return "a list in memory" if datasets.__version__ == "9.9.9" else f"datasets {datasets.__version__}"


def peer(bench: Bench, config: EncoderConfig, data: Data) -> dict[str, Any]:
    """CrossEncoderTrainer with ListNetLoss, the loss of a softmax over a list: as it comes, which computes as many
    pairs at a time as there are lists, and with all pairs of a step at once. Then the model alone, without trainer and
    tokenizer, on padded batches that are ready.
    """
    found: dict[str, Any] = {"datasets": provide_datasets()}
    steps, warm = (1, 1) if bench.smoke else ({24: 12, 12: 25}.get(config.num_hidden_layers, 40), 8)
    lists = make_lists(data, (steps + warm) * (2 if bench.smoke else LISTS), negatives_of(bench), seed=1)
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(transformers_model(random_model(config, "cpu"), "cpu"), Path(folder))
        for label, at_once in (("default", None), ("all pairs at once", -1)):
            try:
                seconds, lengths = _train(bench, Path(folder), data, lists, at_once, steps, warm)
                found[f"trainer, {label}"] = rates(bench, config, lengths, seconds)
            except Exception as error:
                found[f"trainer, {label}"] = f"{type(error).__name__}: {error}"[:500]
    try:
        found["model alone"] = _alone(bench, config, data, lists, steps, warm)
    except Exception as error:
        found["model alone"] = f"{type(error).__name__}: {error}"[:500]
    speeds = {name: result["pairs_per_s"] for name, result in found.items() if isinstance(result, dict)}
    found["default"] = speeds.get("trainer, default")
    found["best"] = max((speed for name, speed in speeds.items() if name.startswith("trainer")), default=None)
    found["without_tokenising"] = speeds.get("model alone")
    return found


def _train(
    bench: Bench, folder: Path, data: Data, lists: Lists, at_once: int | None, steps: int, warm: int
) -> tuple[float, NDArray[np.int64]]:
    """The seconds of ``steps`` steps after ``warm`` others, by a callback, and the lengths of their pairs."""
    from datasets import Dataset  # type: ignore[import-not-found,unused-ignore]
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
        losses,
    )
    from transformers import TrainerCallback

    rows = [
        {
            "query": data.query_texts[query],
            "docs": [data.document_texts[number] for number in documents],
            "labels": labels,
        }
        for query, documents, labels in zip(
            lists.queries.tolist(), lists.documents.tolist(), lists.labels.tolist(), strict=True
        )
    ]
    marks: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in (warm, warm + steps):
                bench.wait()
                marks.append(time.perf_counter())

    class Trainer(CrossEncoderTrainer):
        def add_model_card_callback(self, *_: Any, **__: Any) -> None:
            """No card: it describes the data set at length, which is no part of training."""

    model = CrossEncoder(str(folder), max_length=LONGEST, device=bench.device)
    with tempfile.TemporaryDirectory() as out:
        arguments = CrossEncoderTrainingArguments(
            output_dir=out,
            max_steps=warm + steps,
            per_device_train_batch_size=len(rows) // (steps + warm),
            learning_rate=2e-5,
            bf16=bench.gpu,
            use_cpu=not bench.gpu,
            logging_strategy="no",
            save_strategy="no",
            eval_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        loss = losses.ListNetLoss(model, mini_batch_size=at_once)
        Trainer(
            model=model, args=arguments, train_dataset=Dataset.from_list(rows), loss=loss, callbacks=[Clock()]
        ).train()
    # The order is the sampler's: of the steps that are timed the mean length is all that counts.
    lengths = make_task(data, lists).lay_out(lists).lengths()
    return marks[1] - marks[0], lengths[: len(lengths) * steps // (steps + warm)]


def _alone(bench: Bench, config: EncoderConfig, data: Data, lists: Lists, steps: int, warm: int) -> dict[str, float]:
    """transformers' model under autocast with fused AdamW."""
    theirs = transformers_model(random_model(config, bench.device), bench.device).train()
    optimiser = torch.optim.AdamW(theirs.parameters(), lr=2e-5, fused=bench.gpu or None)
    sequences = make_task(data, lists).lay_out(lists)
    chunks = list(batches(len(sequences), len(sequences) // (steps + warm)))
    padded = [_padded(slice_sequences(sequences, int(own[0]), int(own[-1]) + 1)) for own in chunks]
    short = computing(bench)
    begin = time.perf_counter()
    for number, batch in enumerate(padded):
        if number == warm:
            bench.wait()
            begin = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        with short():
            logits = theirs(**{name: grid.to(bench.device, non_blocking=True) for name, grid in batch.items()}).logits
        scores = logits.float().view(-1, lists.documents.shape[1])
        (torch.logsumexp(scores, 1) - scores[:, 0]).mean().backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimiser.step()
    bench.wait()
    seconds = time.perf_counter() - begin
    timed = np.concatenate(chunks[warm:])
    return rates(bench, config, sequences.lengths()[timed], seconds)
