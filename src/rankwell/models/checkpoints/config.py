"""A checkpoint's configuration: the encoder's dimensions (``config.json``) and the ranker's (``rankwell.json``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rankwell.core.errors import InputError, RankwellError, folder_error
from rankwell.core.manifest import read_object
from rankwell.inputs.templates import Template
from rankwell.inputs.windows import Windows
from rankwell.models.spec import FAMILIES, AttentionRule, EncoderConfig, has_bert_layers

HeadKind = Literal["two_logits", "score"]
_OTHER_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
}
"""DistilBERT's names of dimensions."""


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

    @field_validator("windows", mode="before")
    @classmethod
    def _ignore_old_default(cls, windows: object) -> object:
        # Recipes used to write "cut" into every model by default, so it was not a choice.
        return None if windows == "cut" else windows

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


def read_model_type(folder: Path) -> str:
    """The type of the encoder in transformers' terms, from ``config.json``."""
    return str(read_description(folder).get("model_type") or "bert")


def read_language_model(folder: Path) -> str | None:
    """The type of a model that writes text, from ``config.json``; None for encoders."""
    settings = read_description(folder)
    architectures = [str(name) for name in settings.get("architectures") or []]
    kind = str(settings.get("model_type") or "bert")
    written = any(name.endswith(("ForCausalLM", "ForConditionalGeneration")) for name in architectures)
    return kind if written or kind in ("t5", "mt5") else None


def read_description(folder: Path) -> dict[str, Any]:
    """The contents of ``config.json``. Raises if the folder has none."""
    try:
        return read_object(folder / "config.json")
    except (FileNotFoundError, NotADirectoryError):
        raise not_a_checkpoint(folder) from None


def not_a_checkpoint(folder: Path) -> InputError:
    """The error for a folder without ``config.json``, and for a name that stands for no model."""
    make = "" if folder.exists() else "a model is a folder, PACKAGE:FOLDER, or OWNER/NAME on the Hugging Face hub"
    return folder_error(folder, "not a checkpoint (it has no config.json)", make)


def is_own(folder: Path) -> bool:
    """Whether rankwell computes the encoder of a folder itself, rather than transformers."""
    return has_bert_layers(read_description(folder))


def read_encoder_config(folder: Path) -> EncoderConfig:
    """The dimensions of an encoder with BERT's layers from ``config.json``."""
    path = folder / "config.json"
    settings = read_description(folder)
    if not has_bert_layers(settings):
        kind, known = settings.get("model_type"), ", ".join(FAMILIES)
        raise InputError(path, None, f"a model of the type {kind}, expected one with BERT's layers ({known})")
    if settings.get("position_embedding_type", "absolute") != "absolute":
        raise InputError(path, None, f"positions of the kind {settings['position_embedding_type']}; expected absolute")
    return bert_config(settings, path)


def read_dimensions(folder: Path) -> EncoderConfig:
    """The dimensions of any encoder, to describe it."""
    if is_own(folder):
        return read_encoder_config(folder)
    settings = read_description(folder)
    known = {field.name for field in fields(EncoderConfig)}
    named = {_OTHER_NAMES.get(name, name): value for name, value in settings.items()}
    try:
        sizes = {name: value for name, value in named.items() if name in known and value}
        return EncoderConfig(**{"intermediate_size": 1, **sizes})
    except (TypeError, RankwellError) as error:
        raise InputError(folder / "config.json", None, f"not the configuration of an encoder ({error})") from None


def bert_config(settings: Mapping[str, Any], path: Path, half: str = "encoder") -> EncoderConfig:
    """The dimensions of an encoder or decoder with BERT's layers among the settings of ``path``."""
    kind = settings.get("model_type") or "bert"
    known = {field.name for field in fields(EncoderConfig)} - {"positions_from"}
    numbers = {name: value for name, value in settings.items() if name in known}
    try:
        config = EncoderConfig(**{**numbers, "model_type": kind})
        padding = settings.get("pad_token_id", 1)
        if not FAMILIES[kind].after_padding or not isinstance(padding, int):
            return config
        positions = config.max_position_embeddings - padding - 1
        return replace(config, positions_from=padding + 1, max_position_embeddings=positions)
    except (TypeError, RankwellError) as error:
        raise InputError(path, None, f"not the configuration of a BERT {half} ({error})") from None


def check_length(folder: str | Path, length: int, encoder: EncoderConfig) -> None:
    """Raise unless the encoder of ``folder`` has a position for every token of a sequence."""
    limit = encoder.max_position_embeddings
    if length > limit:
        raise InputError(folder, None, f"a length of {length}, but the encoder has {limit} positions")


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


def relevance_column(folder: Path, label: str | None = None) -> int | None:
    """The output for the class that means relevant, as ``config.json`` names the classes.

    It is the class ``label``. Without one it is entailment, or None if there is no such class.
    """
    try:
        names = read_object(folder / "config.json").get("id2label")
    except (OSError, InputError):
        return None  # loading the folder says what is wrong with it
    names = names if isinstance(names, dict) else {}
    labels = {str(name).lower(): int(number) for number, name in names.items()}
    if label is not None and label.lower() not in labels:
        raise InputError(folder, None, f"no class is called {label} (known: {', '.join(map(str, names.values()))})")
    return labels.get((label or "entailment").lower()) if len(names) > 1 else None
