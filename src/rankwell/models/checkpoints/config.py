"""A ranker's configuration, ``rankwell.json``, and the record of an export, ``export.json``. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rankwell.core.errors import InputError, RankwellError, folder_error
from rankwell.core.manifest import read_object
from rankwell.inputs.templates import Template
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.names import DEFAULT, SHIPPED
from rankwell.models.spec import AttentionRule

HeadKind = Literal["two_logits", "score"]


class ConfigChanges(TypedDict, total=False):
    """Parts of a :class:`RankerConfig` to replace; a template may name only the settings that change."""

    template: Template | Mapping[str, Any]
    attention: AttentionRule
    attention_layers: tuple[int, ...] | None
    apart: int
    similarity: float
    head: HeadKind
    pooler: bool


class RankerConfig(BaseModel):
    """``rankwell.json``: what makes an encoder a ranker. The defaults are monoBERT."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    template: Template = Template()
    attention: AttentionRule = "full"
    attention_layers: tuple[int, ...] | None = None
    """The layers that follow the attention rule, counted from 0, or from -1 for the last; in all other layers a token
    attends to all. None means every layer."""
    apart: int = Field(default=0, ge=0)
    """How many of the first layers read query and document separately, as a bi-encoder does."""
    similarity: float = Field(default=0.0, ge=0)
    """The weight of the cosine that is added to the score: that of the mean states of query and document, read
    separately. If it is not 0, the weights are a bi-encoder and a cross-encoder, which share ``apart`` layers."""
    head: HeadKind = "two_logits"
    pooler: bool = True
    """Whether BERT's pooler (dense + tanh) stands between [CLS] and the head, as in transformers' classifiers."""
    windows: Windows | Literal["truncate"] | None = None
    """How long documents are read: in windows as large as the template allows (None), in windows of a given number of
    words, or truncated."""
    history: list[dict[str, Any]] = Field(default_factory=list)
    """The training stages that made the model, oldest first."""
    figures: dict[str, Any] = Field(default_factory=dict)
    """Measured figures: name → value, with the data they were measured on."""

    @model_validator(mode="after")
    def _score_alone(self) -> RankerConfig:
        if self.similarity and self.head != "score":
            raise ValueError(f"a similarity is added to a score, but the head has {self.head.replace('_', ' ')}")
        return self

    def check_layers(self, layers: int) -> None:
        """Raise unless an encoder with this number of layers can follow the configuration."""
        most = layers if self.similarity else layers - 1
        if self.apart > most:
            raise RankwellError(
                f"apart is {self.apart}, but at most {most} of {layers} layers can read the texts apart"
            )
        wrong = [number for number in self.attention_layers or () if not -layers <= number < layers]
        if wrong:
            raise RankwellError(f"there is no layer {wrong[0]}: the encoder has {layers}, counted from 0")

    @property
    def inference_windows(self) -> Windows | None:
        """The windows documents are read in; None if they are truncated."""
        if self.windows == "truncate":
            return None
        return self.windows or Windows()

    def changed(self, changes: Mapping[str, Any]) -> RankerConfig:
        """This configuration with parts replaced. A template or windows may name only the settings that change."""
        whole = self.model_dump()
        for name, value in changes.items():
            old = whole.get(name)
            whole[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
        try:
            return RankerConfig.model_validate(whole)
        except ValidationError as error:
            raise RankwellError(f"not a ranker's configuration: {first_problem(error)}") from None


def check_length(folder: Path, length: int, positions: int) -> None:
    """Raise unless the encoder of ``folder`` has a position for every token of a sequence."""
    if length > positions:
        raise InputError(folder, None, f"a length of {length}, but the encoder has {positions} positions")


def read_ranker_config(folder: Path) -> RankerConfig | None:
    """The contents of ``rankwell.json``; None if there is no such file."""
    path = folder / "rankwell.json"
    try:
        return RankerConfig.model_validate(read_object(path))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InputError(path, None, f"not a ranker's configuration: {first_problem(error)}") from None
    except RankwellError as error:  # from the template or the windows
        raise error if isinstance(error, InputError) else InputError(path, None, str(error)) from None


def first_problem(error: ValidationError) -> str:
    """The first problem, in one line."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


# What an exported graph computes and what made it


ExportPrecision = Literal["fp32", "int8"]
RECORD = "export.json"
GRAPH = "model.onnx"
FIXED = ("attention", "attention_layers", "apart", "similarity", "head", "pooler")
"""The parts of a ranker's configuration that are fixed in the graph."""


class ExportRecord(BaseModel):
    """``export.json``: what the graph computes and what made it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[2] = 2
    backend: Literal["onnx"] = "onnx"
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
    usual = ("input_ids", "token_type_ids", "attention_mask")  # as everybody calls them
    return usual if rule == "full" else (*usual, "words", "last")


def read_export(folder: Path) -> tuple[ExportRecord, RankerConfig]:
    """The record of an export, and the ranker's configuration."""
    path = folder / RECORD
    try:
        record = ExportRecord.model_validate(read_object(path))
    except (FileNotFoundError, NotADirectoryError):
        name = DEFAULT if folder == SHIPPED else str(folder)
        make = f"make one with `rankwell export {name} --to onnx --out FOLDER`" if folder.is_dir() else ""
        raise folder_error(folder, f"not an exported model (it has no {RECORD})", make) from None
    except ValidationError as error:
        raise InputError(path, None, f"not the record of an export: {first_problem(error)}") from None
    config = read_ranker_config(folder)
    if config is None or not (folder / GRAPH).is_file():
        missing = "rankwell.json" if config is None else GRAPH
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
