"""Models for use elsewhere: folders that sentence-transformers loads, and graphs for ONNX Runtime.

Weights that are stored in 8 bits are restored to fp32, adapters become dense layers after the pooling, and two logits
one score. A bi-encoder that maps queries and documents differently becomes two models, ``query`` and ``document``;
if only queries are mapped, ``document`` gives the vectors that the unmapped bi-encoder gave.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.bi_encoder_modules import Modules, save_bi_encoder
from rankwell.models.checkpoints.card import lost_elsewhere
from rankwell.models.checkpoints.config import ExportPrecision, graph_inputs, read_ranker_config
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.export import export_model, graph_packages, lacks_vnni, write_graph
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.models.checkpoints.names import find_model
from rankwell.models.checkpoints.tensors import QUANTISED, read_weights
from rankwell.models.foreign import ForeignEncoder, load_foreign
from rankwell.models.new_heads import start_listwise_head
from rankwell.models.vector_layers import VECTOR

SIDES = ("query", "document")
_NEVER = shutil.ignore_patterns("*.bin", "*.pt", "*.pkl", "*.h5", "*.onnx", "*.msgpack", "checksums*", ".*")
_GRAPH_CARD = f"""
## With ONNX Runtime

`model.onnx` takes `input_ids`, `token_type_ids` and `attention_mask`, whole numbers of 64 bits of the shape (texts,
tokens), and returns `{VECTOR}` (texts, dimensions) and `last_hidden_state` (texts, tokens, width). Put the prompt of
`config_sentence_transformers.json` before each text; the tokenizer knows how long a text may be.
"""


class VectorGrid(nn.Module):
    """A bi-encoder over a padded grid: (B, L) inputs → vectors (B, W), and the states of the tokens (B, L, H)."""

    def __init__(self, encoder: ForeignEncoder, modules: Modules):
        super().__init__()
        encoder.backbone.set_attn_implementation("eager")  # others choose their way by the values of the mask
        self.encoder = encoder
        self.modules_after = modules

    def forward(self, tokens: Tensor, segments: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors as they are compared, and the states."""
        states = self.encoder.run(tokens + 0 * segments, segments, seen)
        vectors = self._pool(states, seen.to(states.dtype))
        if self.modules_after.normalised:
            vectors = functional.normalize(vectors, dim=1)
        for layer in self.modules_after.query:
            vectors = layer(vectors)
        return self.modules_after.finish(vectors), states

    def _pool(self, states: Tensor, seen: Tensor) -> Tensor:
        """What :func:`~rankwell.models.pooling.pool_states` does, on a grid."""
        kind, weights = self.modules_after.pooling, seen
        if kind == "first":
            return states[:, 0]
        if kind == "max":
            return torch.where(seen[:, :, None] > 0, states, -torch.inf).amax(dim=1)
        if kind == "last":  # the token after which none is seen
            weights = seen * (1 - functional.pad(seen, (0, 1))[:, 1:])
        elif kind == "weighted":
            weights = seen.cumsum(dim=1) * seen
        return (states * weights[:, :, None]).sum(dim=1) / weights.sum(dim=1, keepdim=True)


def export_encoder(
    source: str | Path, out: str | Path, target: str, precision: ExportPrecision = "fp32"
) -> tuple[str, ...]:
    """Write a bi-encoder as the folder ``out``, which must not exist; ``target`` is onnx or sentence-transformers.

    Returns the folders in it that are models: none if ``out`` itself is one, or those of the :data:`SIDES`.
    """
    source, out = find_model(source), Path(out)
    if out.exists():
        raise RankwellError(f"{out} exists already")
    encoder = BiEncoder.from_pretrained(source, device="cpu", precision="fp32")
    modules = encoder.modules
    if encoder.late is not None:
        raise RankwellError(f"{source} compares texts word by word: it has no vectors of texts to export")
    if target == "onnx":
        graph_packages()  # raises if one is missing
    write = _write_graph if target == "onnx" else _write_modules
    if [layer.name for layer in modules.query] == [layer.name for layer in modules.document]:
        write(source, out, encoder, modules, precision)
        return ()
    with atomic_folder(out, checksums=False) as temporary:  # each model has its own
        for side in SIDES:
            layers = getattr(modules, side)
            write(source, temporary / side, encoder, replace(modules, query=layers, document=layers), precision)
    return SIDES


def _write_modules(
    source: Path, out: Path, encoder: BiEncoder, modules: Modules, precision: ExportPrecision = "fp32"
) -> None:
    """Write a folder that sentence-transformers loads."""
    kinds = {kind for kind, _ in describe(source).modules}
    if kinds and "Router" not in kinds and not (source / QUANTISED).exists():  # it is one
        with atomic_folder(out) as temporary:
            shutil.copytree(source, temporary, ignore=_NEVER, dirs_exist_ok=True)
        return
    if modules.similarity != "cosine" or modules.truncate is not None:
        problem = "compares by the dot product" if modules.similarity != "cosine" else "truncates its vectors"
        raise RankwellError(f"{source} {problem}, which is not exported with 8-bit weights or an adapter")
    ranker = read_ranker_config(source)
    save_bi_encoder(
        out,
        encoder.encoder,
        encoder.tokenizer,
        modules,
        max_length=encoder.reader.template.max_length,
        prompts=(encoder.query_prompt, encoder.document_prompt),
        history=() if ranker is None else ranker.history,
    )


def _write_graph(source: Path, out: Path, encoder: BiEncoder, modules: Modules, precision: ExportPrecision) -> None:
    """Write the graph of the vectors, beside the tokenizer, the prompts and the card."""
    backbone = load_foreign(describe(source), read_weights(source), causal=True)
    with atomic_folder(out) as temporary:
        _write_modules(source, temporary / "modules", encoder, modules)
        for file in [*temporary.glob("modules/*.json"), temporary / "modules" / "README.md"]:
            if file.exists() and file.name not in ("modules.json", "model.safetensors.index.json"):
                file.rename(temporary / file.name)
        shutil.rmtree(temporary / "modules")
        encoder.tokenizer.save(temporary, encoder.reader.template.max_length)
        names = {"inputs": graph_inputs("full"), "outputs": (VECTOR, "last_hidden_state")}
        write_graph(VectorGrid(backbone, modules), temporary, precision, lacks_vnni(), **names)
        with (temporary / "README.md").open("a", encoding="utf-8") as card:
            card.write(_GRAPH_CARD)


def export_ranker(
    source: str | Path, out: str | Path, target: str, precision: ExportPrecision = "fp32", **changes: Any
) -> None:
    """Write a ranker as the folder ``out``, which must not exist; ``changes`` are those of ``load_checkpoint``.

    For sentence-transformers it has one score, whose sigmoid is p(relevant).
    """
    if target == "onnx":
        export_model(source, out, precision, **changes)
        return
    source = find_model(source)
    if (kind := describe(source).kind) != "encoder":
        uses = "sentence-transformers loads it as it is" if kind == "modular" else "there is nothing to fold into it"
        raise RankwellError(f"{source} is a {kind} model, which is not exported: {uses}")
    model, tokenizer, ranker = load_checkpoint(source, **changes)
    if lost := lost_elsewhere(ranker):
        raise RankwellError(f"{source}: sentence-transformers knows nothing of {', '.join(lost)}; --to onnx keeps it")
    if model.outputs == 2:
        start_listwise_head(model)
        ranker = ranker.changed({"head": "score"})
    save_checkpoint(out, model, tokenizer, ranker)
