"""What a checkpoint is: the encoder's shape, as Hugging Face writes it, and rankwell's four choices beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rankwell.core.errors import InputError, RankwellError
from rankwell.inputs.templates import Template
from rankwell.inputs.windows import Windows

AttentionRule = Literal["full", "strm", "strict"]
HeadKind = Literal["two_logits", "score"]


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The numbers of a BERT encoder, from ``config.json``."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (not isinstance(value, int) or value < 1):
                raise RankwellError(f"{field.name} is {value!r}, expected a whole number from 1 on")
        if self.hidden_size % self.num_attention_heads:
            raise RankwellError(f"a width of {self.hidden_size} cannot be split into {self.num_attention_heads} heads")

    @property
    def head_size(self) -> int:
        """The width of one attention head."""
        return self.hidden_size // self.num_attention_heads


class TemplateConfig(BaseModel):
    """:class:`~rankwell.inputs.templates.Template` as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "mono"
    max_length: int = 512
    max_query: int = 64
    markers: bool = False
    mark_unmatched_query: bool = False

    def build(self) -> Template:
        """The template."""
        return Template(**self.model_dump())


class WindowsConfig(BaseModel):
    """:class:`~rankwell.inputs.windows.Windows` as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = 100
    stride: int = 50
    aggregate: str = "max"

    def build(self) -> Windows:
        """The windows."""
        return Windows(**self.model_dump())


class RankerConfig(BaseModel):
    """``rankwell.json``: what makes an encoder a ranker. The defaults are monoBERT."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    template: TemplateConfig = TemplateConfig()
    attention: AttentionRule = "full"
    head: HeadKind = "two_logits"
    pooler: bool = True
    """Whether BERT's pooler (dense + tanh) stands between [CLS] and the head, as in transformers' classifiers."""
    windows: WindowsConfig | None = None
    history: list[dict[str, Any]] = Field(default_factory=list)
    """The training stages that made the model, oldest first."""
    figures: dict[str, Any] = Field(default_factory=dict)
    """Measured figures: name → value, with the data they were measured on."""

    def changed(self, changes: Mapping[str, Any]) -> RankerConfig:
        """This configuration with parts replaced; of a template or windows only the settings that are named."""
        whole = self.model_dump()
        for name, value in changes.items():
            old = whole.get(name)
            whole[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
        try:
            return RankerConfig.model_validate(whole)
        except ValidationError as error:
            raise RankwellError(f"not a ranker's configuration: {_first_problem(error)}") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(path, None, "not JSON") from None
    if not isinstance(found, dict):
        raise InputError(path, None, f"holds a JSON {type(found).__name__}, expected an object")
    return found


def read_encoder_config(folder: Path) -> EncoderConfig:
    """The encoder's numbers from ``config.json``."""
    path = folder / "config.json"
    try:
        found = read_object(path)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(folder, None, "not a checkpoint (it has no config.json)") from None
    if found.get("model_type") not in ("bert", None):
        raise InputError(path, None, f"a {found['model_type']} model; this rankwell reads bert")
    if found.get("position_embedding_type", "absolute") != "absolute":
        raise InputError(path, None, f"positions of the kind {found['position_embedding_type']}; expected absolute")
    known = {field.name for field in fields(EncoderConfig)}
    try:
        return EncoderConfig(**{name: value for name, value in found.items() if name in known})
    except (TypeError, RankwellError) as error:
        raise InputError(path, None, f"not the configuration of a BERT encoder ({error})") from None


def read_ranker_config(folder: Path) -> RankerConfig | None:
    """``rankwell.json``, or None where there is none."""
    path = folder / "rankwell.json"
    try:
        return RankerConfig.model_validate(read_object(path))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InputError(path, None, f"not a ranker's configuration: {_first_problem(error)}") from None


def _first_problem(error: ValidationError) -> str:
    """What is wrong first, in one line."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
