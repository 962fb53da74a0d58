"""The steps of ``rerank_gpu.py`` that measure sentence-transformers' CrossEncoder on the same weights and pairs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.models.encoder import CrossEncoder
from rankwell.models.spec import EncoderConfig
from rerank_gpu_models import save_checkpoint, texts, transformers_model
from rerank_gpu_steps import Bench, engine_for, rates

PEER_BATCHES = (128, 256, 512, 1024)


def peer(bench: Bench, model: CrossEncoder, pairs: Sequences) -> dict[str, Any]:
    """sentence-transformers' CrossEncoder on the same weights and pairs: its defaults, and the best of a sweep."""
    config = model.encoder.config
    theirs = transformers_model(model, bench.device)
    count = 4 if bench.smoke else {24: 1024, 12: 4096}.get(config.num_hidden_layers, 8192)
    some = take_sequences(pairs, np.arange(min(count, len(pairs))))
    many = take_sequences(pairs, np.arange(min(2 * count, len(pairs))))
    found: dict[str, Any] = {}
    try:
        found |= _peer_predict(bench, config, theirs, model, some, many)
    except Exception as error:
        found["predict"] = f"{type(error).__name__}: {error}"[:300]
    # Without tokenising: the model alone, on padded batches of like length that are ready in memory.
    theirs = theirs.to(bench.device, bench.dtype)
    order = np.argsort(-many.lengths(), kind="stable")
    for size in (4,) if bench.smoke else PEER_BATCHES:
        batches = [_padded(take_sequences(many, order[i : i + size])) for i in range(0, len(order), size)]

        @torch.inference_mode()
        def run(batches: Any = batches) -> Any:
            outs = [theirs(**{k: v.to(bench.device, non_blocking=True) for k, v in b.items()}).logits for b in batches]
            return torch.cat(outs).float().cpu()

        found[f"model alone, bf16, batch {size}, sorted"] = rates(
            bench, config, many, bench.seconds(run, repeats=1 if bench.smoke else 2)
        )
    kinds = {"default": "predict, default", "best": "predict, bf16", "best_without_tokenising": "model alone"}
    for label, start in kinds.items():
        speeds = [v["pairs_per_s"] for k, v in found.items() if k.startswith(start) and isinstance(v, dict)]
        found[label] = max(speeds, default=None)
    return found


def _peer_predict(
    bench: Bench, config: EncoderConfig, theirs: Any, model: CrossEncoder, some: Sequences, many: Sequences
) -> dict[str, Any]:
    from sentence_transformers import CrossEncoder as Peer

    found: dict[str, Any] = {}
    identity = torch.nn.Identity()
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(theirs, Path(folder))
        default = Peer(folder, device=bench.device)
    given = texts(some)

    def run_default() -> Any:
        return default.predict(given, activation_fn=identity, show_progress_bar=False)

    exact = np.asarray(run_default())
    found["predict, default: fp32, batch 32"] = rates(
        bench, config, some, bench.seconds(run_default, repeats=1, warm=0)
    )
    ours = engine_for(bench, model, "full").logits(some)[:, 0]
    found["largest_difference_from_ours"] = round(float(np.abs(exact - ours).max()), 5)
    best = default.to(bench.dtype)
    in_order = take_sequences(many, np.argsort(-many.lengths(), kind="stable"))
    sorted_texts = texts(in_order)
    for size in (4,) if bench.smoke else PEER_BATCHES:

        def run(size: int = size) -> Any:
            return best.predict(sorted_texts, batch_size=size, activation_fn=identity, show_progress_bar=False)

        seconds = bench.seconds(run, repeats=1)
        found[f"predict, bf16, batch {size}, sorted"] = rates(bench, config, many, seconds)
    return found


def _padded(batch: Sequences) -> dict[str, torch.Tensor]:
    lengths = batch.lengths()
    shape = len(batch), int(lengths.max())
    real = np.arange(shape[1]) < lengths[:, None]
    names = ("input_ids", "token_type_ids", "attention_mask")
    grids = {name: torch.zeros(shape, dtype=torch.int64, pin_memory=torch.cuda.is_available()) for name in names}
    grids["input_ids"].numpy()[real] = batch.tokens
    grids["token_type_ids"].numpy()[real] = batch.segments
    grids["attention_mask"].numpy()[real] = 1
    return grids
