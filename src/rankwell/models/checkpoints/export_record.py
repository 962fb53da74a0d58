"""``export.json``: what an exported graph computes and what made it. Needs no torch, as exported models do not."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from rankwell.core.errors import InputError, RankwellError, folder_error
from rankwell.core.manifest import read_object
from rankwell.models.checkpoints.config import HeadKind, RankerConfig, first_problem, read_ranker_config
from rankwell.models.checkpoints.names import DEFAULT, SHIPPED
from rankwell.models.spec import AttentionRule

Backend = Literal["onnx", "openvino"]
ExportPrecision = Literal["fp32", "int8", "f16"]
RECORD = "export.json"
GRAPHS: dict[Backend, str] = {"onnx": "model.onnx", "openvino": "model.xml"}
FIXED = ("attention", "attention_layers", "apart", "similarity", "head", "pooler")
"""The parts of a ranker's configuration that are fixed in the graph."""
PRECISIONS: dict[Backend, tuple[ExportPrecision, ...]] = {"onnx": ("fp32", "int8"), "openvino": ("fp32", "int8", "f16")}


class ExportRecord(BaseModel):
    """``export.json``: what the graph computes and what made it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    backend: Backend
    precision: ExportPrecision
    attention: AttentionRule
    attention_layers: tuple[int, ...] | None = None
    apart: int = 0
    similarity: float = 0.0
    alone: bool = False
    """Whether the document's positions are counted from its own beginning."""
    head: HeadKind
    pooler: bool
    opset: int
    reduced_range: bool = False
    """Whether int8 weights use 7 bits, for x86 processors without VNNI."""
    source: str
    """A hash of the checkpoint's files."""
    positions: int
    segments: int
    """The encoder's maximum length and its number of segments."""
    packages: dict[str, str]
    """The versions of the packages that made the graph."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the graph's inputs."""
        return graph_inputs(self.attention)


def graph_inputs(rule: AttentionRule) -> tuple[str, ...]:
    """The names of a graph's inputs: a rule other than ``full`` needs the words."""
    return ("tokens", "segments", "real") if rule == "full" else ("tokens", "segments", "real", "words", "last")


def check_precision(backend: str, precision: str) -> None:
    """Raise unless the backend exists and can be exported in that precision."""
    if backend not in get_args(Backend):
        raise RankwellError(f"no model is exported for {backend!r} (known: {', '.join(PRECISIONS)})")
    known = PRECISIONS["onnx" if backend == "onnx" else "openvino"]
    if precision not in known:
        raise RankwellError(f"{backend} is exported in {' or '.join(known)}, not in {precision}")


def read_export(folder: Path, backend: Backend) -> tuple[ExportRecord, RankerConfig]:
    """The record of an export for ``backend``, and the ranker's configuration."""
    path = folder / RECORD
    try:
        record = ExportRecord.model_validate(read_object(path))
    except (FileNotFoundError, NotADirectoryError):
        name = DEFAULT if folder == SHIPPED else str(folder)
        make = f"make one with `rankwell export {name} --backend {backend} --out FOLDER`" if folder.is_dir() else ""
        raise folder_error(folder, f"not an exported model (it has no {RECORD})", make) from None
    except ValidationError as error:
        raise InputError(path, None, f"not the record of an export: {first_problem(error)}") from None
    if record.backend != backend:
        raise InputError(folder, None, f"exported for {record.backend}, not for {backend}")
    config = read_ranker_config(folder)
    if config is None or not (folder / GRAPHS[backend]).is_file():
        missing = "rankwell.json" if config is None else GRAPHS[backend]
        raise InputError(folder, None, f"an exported model without its {missing}")
    return record, config


def reads_alone(config: RankerConfig) -> bool:
    """Whether the template counts a field's positions from its own beginning."""
    return any(field.alone for field in config.template.fields)


def check_unchanged(record: ExportRecord, config: RankerConfig) -> None:
    """Raise if a configuration differs in what is fixed in the graph."""
    for name in FIXED:
        exported, wanted = getattr(record, name), getattr(config, name)
        if exported != wanted:
            raise RankwellError(
                f"the exported graph has {name} {exported}, not {wanted}; export the checkpoint again with the change"
            )
    if record.alone != reads_alone(config):
        problem = f"the exported graph does {'' if record.alone else 'not '}count a document's positions from 0"
        raise RankwellError(f"{problem}, unlike the template {config.template.name}: export the checkpoint with it")
