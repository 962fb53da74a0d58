"""What a checkpoint is: the encoder's shape, as Hugging Face writes it, and rankwell's four choices beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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

    version: int = 1
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
