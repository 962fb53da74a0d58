"""The numbers and names an encoder is built from. A module of its own, so that scoring needs torch and numpy alone."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from rankwell.core.errors import RankwellError

AttentionRule = Literal["full", "strm", "strict"]


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
