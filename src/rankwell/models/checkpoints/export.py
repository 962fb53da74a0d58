"""Export: a checkpoint as a graph for ONNX Runtime, which scores without torch, or with 8-bit weights.

The graph holds the same weights in plain operations over a padded grid. Three things make it fast:
the scale of attention is folded into the query's weights, the mask is added as numbers computed once for all layers,
and query, key and value are three products, because splitting a joint one costs copies. As everywhere, the last layer
is computed for ``[CLS]`` alone.
"""

from __future__ import annotations

import logging
import platform
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.core.files import atomic_folder
from rankwell.models.attention import dense_mask
from rankwell.models.checkpoints.config import (
    FIXED,
    GRAPH,
    RECORD,
    ExportPrecision,
    ExportRecord,
    reads_alone,
)
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.folders import load_checkpoint
from rankwell.models.checkpoints.names import find_model, model_digest
from rankwell.models.checkpoints.tensors import QUANTISED, quantise_tensors, read_tensors, write_tensors
from rankwell.models.encoder import CrossEncoder, Layer, add_similarity, cosine
from rankwell.models.foreign import ForeignCrossEncoder
from rankwell.models.spec import AttentionRule

OPSET = 18  # the least that torch's exporter writes
# Added to the scores of masked columns: a weight of e^-60 is nothing in fp32 unless the score is 40 above the best one.
# With much lower values the weights are denormal numbers, on which ONNX Runtime's softmax is ten times slower.
_CLOSED = -60.0
_COPIED_FILES = ("*.json", "*.txt", "*.jinja", "*.py", "README.md")
"""What a checkpoint has beside its weights: configuration, tokenizer, prompts, code and card."""
_MODULES = "[0-9]*_*"
"""The folders of sentence-transformers' modules, such as ``1_Pooling``."""


class GridEncoder(nn.Module):
    """A :class:`CrossEncoder` over a padded grid: (B, L) inputs → logits (B, 1 or 2).

    With ``alone`` the second segment's positions are counted from its own first token.
    """

    def __init__(self, model: CrossEncoder, rule: AttentionRule, *, alone: bool = False):
        super().__init__()
        self.model = model
        self.rule = rule
        self.alone = alone
        self.projections = nn.ModuleList([part for layer in _layers(model) for part in _projections(layer)])

    def forward(
        self, tokens: Tensor, segments: Tensor, seen: Tensor, words: Tensor | None = None, last: Tensor | None = None
    ) -> Tensor:
        """The logits; the inputs are those of :func:`~rankwell.models.checkpoints.config.graph_inputs`."""
        batch, longest = tokens.shape
        real = seen != 0
        free = mask = real[:, None, None, :]
        if words is not None and last is not None:
            mask = dense_mask(words, last, real, self.rule)
        encoder = self.model.encoder
        biases = _biases(encoder.masks(mask, free, segments))
        positions = torch.arange(longest).expand(batch, longest)
        if self.alone:
            before = (real & (segments == 0)).sum(dim=1, keepdim=True)
            positions = torch.where(segments == 0, positions, positions - before)
        x = encoder.embed(tokens.flatten(), segments.flatten(), positions.flatten())
        *layers, final = _layers(self.model)
        both = min(encoder.apart, len(layers)) if self.model.similarity else len(layers)
        for number, layer in enumerate(layers[:both]):
            x = layer.finish(x, self._attend(number, x, x, biases[number], batch))
        alone = x
        for number, layer in enumerate(layers[both:], both):
            x = layer.finish(x, self._attend(number, x, x, biases[number], batch))
        first = x.reshape(batch, -1, x.shape[1])[:, 0]
        first = final.finish(first, self._attend(len(layers), first, x, biases[-1][:, :, :1], batch))
        if self.model.pooler is not None:
            first = self.model.activation(self.model.pooler(first))
        logits: Tensor = self.model.head(first)
        if self.model.similarity:
            biases = _biases(encoder.masks(mask, free, segments, len(layers) + 1))
            for number, layer in enumerate(_layers(self.model)[both:], both):
                alone = layer.finish(alone, self._attend(number, alone, alone, biases[number], batch))
            states = alone.reshape(batch, -1, alone.shape[1])
            # Sums instead of means: the cosine ignores lengths.
            query, document = (
                (states * torch.where(real & part, 1.0, 0.0)[:, :, None]).sum(dim=1)
                for part in (segments == 0, segments != 0)
            )
            logits = logits + add_similarity(cosine(query, document), self.model.similarity)
        return logits

    def _attend(self, number: int, rows: Tensor, x: Tensor, bias: Tensor, batch: int) -> Tensor:
        """Attention of the tokens ``rows`` (R, H) over ``x`` (B · L, H): (R, H)."""
        config = self.model.encoder.config
        query, key, value = (
            self.projections[3 * number + part](states)
            .reshape(batch, -1, config.num_attention_heads, config.head_size)
            .transpose(1, 2)
            for part, states in enumerate((rows, x, x))
        )
        mixed: Tensor = torch.softmax(query @ key.transpose(2, 3) + bias, dim=-1) @ value
        return mixed.transpose(1, 2).reshape(-1, config.hidden_size)


class ForeignGrid(nn.Module):
    """A model that transformers computes, over a padded grid: (B, L) inputs → logits (B, 1 or 2)."""

    rule: AttentionRule = "full"

    def __init__(self, model: ForeignCrossEncoder):
        super().__init__()
        model.model.set_attn_implementation("eager")  # others choose their way by the values of the mask
        self.model = model

    def forward(self, tokens: Tensor, segments: Tensor, seen: Tensor) -> Tensor:
        """The logits; the inputs are those of :func:`~rankwell.models.checkpoints.config.graph_inputs`."""
        # Where there are no segments, this keeps the input in the graph.
        return self.model.run(tokens + 0 * segments, segments, seen)


def _biases(masks: Sequence[Tensor]) -> list[Tensor]:
    """The numbers added to the attention scores of each layer; computed once for layers with the same mask."""
    made: dict[int, Tensor] = {}
    for mask in masks:
        if id(mask) not in made:
            made[id(mask)] = torch.where(mask, 0.0, _CLOSED)
    return [made[id(mask)] for mask in masks]


def _layers(model: CrossEncoder) -> list[Layer]:
    return [layer for layer in model.encoder.layers if isinstance(layer, Layer)]


def _projections(layer: Layer) -> list[nn.Linear]:
    """Query, key and value of a layer apart, the query scaled by 1 / √(head size)."""
    hidden = layer.qkv.in_features
    parts = []
    for number, factor in enumerate(((hidden // layer.heads) ** -0.5, 1.0, 1.0)):
        part = nn.Linear(hidden, hidden)
        rows = slice(number * hidden, (number + 1) * hidden)
        part.load_state_dict({name: value[rows] * factor for name, value in layer.qkv.state_dict().items()})
        parts.append(part)
    return parts


def export_model(
    source: str | Path,
    out: str | Path,
    precision: ExportPrecision = "fp32",
    *,
    reduced_range: bool | None = None,
    **changes: Any,
) -> ExportRecord:
    """Write the checkpoint ``source`` as the folder ``out``, which must not exist yet.

    In int8, large products have int8 weights, one scale per column, and activations quantised as they come.
    ``reduced_range`` limits int8 weights to 7 bits, which x86 processors without VNNI need; ``None`` decides by this
    machine's processor.
    ``changes`` are those of :func:`~rankwell.models.checkpoints.folders.load_checkpoint`.
    """
    packages = graph_packages()
    source, out = find_model(source), Path(out)
    if out.exists():
        raise RankwellError(f"{out} exists already")
    model, tokenizer, config = load_checkpoint(source, **changes)
    if reduced_range is None:
        reduced_range = lacks_vnni()
    alone = reads_alone(config)
    record = ExportRecord(
        precision=precision,
        **{name: getattr(config, name) for name in FIXED},
        alone=alone,
        opset=OPSET,
        reduced_range=reduced_range and precision == "int8",
        source=model_digest(source),
        packages=packages,
        positions=model.encoder.config.max_position_embeddings,
        segments=model.encoder.config.type_vocab_size,
    )
    grid = GridEncoder(model, config.attention, alone=alone) if isinstance(model, CrossEncoder) else ForeignGrid(model)
    with atomic_folder(out) as temporary:
        write_graph(grid, temporary, precision, reduced_range, inputs=record.inputs, outputs=("logits",))
        tokenizer.save(temporary, config.template.max_length)
        shutil.copyfile(source / "config.json", temporary / "config.json")
        (temporary / "rankwell.json").write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (temporary / RECORD).write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return record


def export_weights(source: str | Path, out: str | Path) -> None:
    """Write the checkpoint ``source``, of any kind, with its weights in 8 bits as the folder ``out``.

    ``out`` must not exist yet. rankwell loads it like ``source`` (``tensors.py``).
    """
    source, out = find_model(source), Path(out)
    if out.exists():
        raise RankwellError(f"{out} exists already")
    describe(source)  # raises unless it is a checkpoint
    tensors = quantise_tensors(read_tensors(source))
    index = source / "model.safetensors.index.json"  # of the shards, which become one file
    files = {file for pattern in _COPIED_FILES for file in source.glob(pattern)} - {index}
    with atomic_folder(out) as temporary:
        write_tensors(tensors, temporary / QUANTISED)
        for file in sorted(files):
            shutil.copyfile(file, temporary / file.name)
        for module in sorted(source.glob(_MODULES)):
            shutil.copytree(module, temporary / module.name)
        with (temporary / "README.md").open("a", encoding="utf-8") as card:
            card.write(f"\n## Weights\n\nIn 8 bits on disk (`{QUANTISED}`), which rankwell reads and others do not.\n")


def write_graph(
    grid: nn.Module,
    folder: Path,
    precision: ExportPrecision,
    reduced_range: bool,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> None:
    """Write the graph of a module over a padded grid with free batch and length."""
    # Any batch will do if its sizes differ from all other dimensions and no two inputs are one tensor.
    example = tuple(torch.ones(3, 7, dtype=torch.bool if name == "last" else torch.int64) for name in inputs)
    example[inputs.index("token_type_ids")].zero_()
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with _silent_exporter(), torch.no_grad():
        torch.onnx.export(
            grid.eval(),
            example,
            folder / GRAPH,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=(free,) * len(inputs),
            opset_version=OPSET,
            external_data=False,  # unless the graph is larger than a file of its kind may be
            dynamo=True,
            verbose=False,
        )
    if precision == "int8":
        quantised = folder / "quantised.onnx"
        _quantise(grid, folder / GRAPH, quantised, reduced_range)
        quantised.replace(folder / GRAPH)


@contextmanager
def _silent_exporter() -> Iterator[None]:
    """torch's exporter logs what it skips and warns of its own parts, which is nothing a user could change."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _quantise(model: nn.Module, traced: Path, path: Path, reduced_range: bool) -> None:
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    graph = onnx.load(traced)
    # The exporter's shapes of intermediate values contradict those the quantiser infers.
    del graph.graph.value_info[:]
    # Marks the graph as prepared; otherwise the quantiser sets up logging to recommend a preparation.
    onnx.helper.set_model_props(graph, {"onnx.quant.pre_process": "onnxruntime.quant"})
    _transpose_weights(graph)
    # Products for [CLS] alone cost little in fp32 too. The quantiser turns each Gemm into a _MatMul.
    exact = [f"{node.name}_MatMul" for node in graph.graph.node if set(node.input) & _cls_weights(model)]
    quantize_dynamic(
        graph,
        path,
        op_types_to_quantize=["MatMul"],
        nodes_to_exclude=exact,
        per_channel=True,
        reduce_range=reduced_range,
    )


def _transpose_weights(graph: Any) -> None:
    """Transpose the weights of each product beforehand.

    The quantiser would do so for each product, and therefore twice for weights that two products share.
    """
    from onnx import numpy_helper

    weights = {tensor.name: tensor for tensor in graph.graph.initializer}
    turned: set[str] = set()
    for node in graph.graph.node:
        way = next((attribute for attribute in node.attribute if attribute.name == "transB"), None)
        if node.op_type != "Gemm" or way is None or not way.i:
            continue
        way.i = 0
        name = node.input[1]
        if name not in turned:
            turned.add(name)
            whole = numpy_helper.to_array(weights[name]).T.copy()
            weights[name].CopyFrom(numpy_helper.from_array(whole, name))


def _cls_weights(model: nn.Module) -> set[str]:
    """The names of the weights that are applied to one token per sequence: the last query and what follows it."""
    if isinstance(model, ForeignGrid):
        return {name for name, _ in model.named_parameters() if name.startswith(f"model.{model.model.head_prefix}")}
    if not isinstance(model, GridEncoder):  # the vectors of texts need every token
        return set()
    final = len(model.model.encoder.layers) - 1
    prefixes: tuple[str, ...] = ("model.head.", "model.pooler.")
    if not model.model.similarity:  # the similarity needs the last layer of every token
        prefixes += (f"model.encoder.layers.{final}.", f"projections.{3 * final}.")
    return {name for name, _ in model.named_parameters() if name.startswith(prefixes)}


def graph_packages() -> dict[str, str]:
    """The versions of the packages that make the graph. Raises if one is missing."""
    import importlib.util

    names = ("onnx", "onnxruntime", "onnxscript")
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(name, "onnx", "exporting for onnx")
    return {name: version(name) for name in ("rankwell", "torch", *names)}


def lacks_vnni() -> bool:
    """Whether this is an x86 processor on which sums of two products of 8 bits may overflow 16."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        return "vnni" not in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
