"""The dimensions an encoder is built from, and its attention rules. Needs no torch, so that exported models do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from rankwell.core.errors import RankwellError, excerpt

if TYPE_CHECKING:  # the command line asks for the names of the rules alone
    from rankwell.inputs.batching import Sequences

PoolingKind = Literal["mean", "first", "max", "last", "weighted"]
"""How the states of a text's tokens become its vector; ``weighted`` is a mean in which later tokens count more."""
AttentionRule = Literal["full", "strm", "strict", "exact_match"]


def under_rule(sequences: Sequences, rule: AttentionRule) -> Sequences:
    """The sequences with the word ids a rule needs: for ``exact_match``, all occurrences of a split word share one.

    Words are the same if their pieces are (after truncation). Whole words, special tokens and markers keep their ids:
    they are last pieces, which every token attends to anyway.
    """
    if rule != "exact_match":
        return sequences
    from rankwell.inputs.kernels import join_equal_words  # imports numba, which the other rules do not need

    words = join_equal_words(sequences.tokens, sequences.words, sequences.ends)
    return replace(sequences, words=words)


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The dimensions of an encoder, from ``config.json``; ``model_type`` is its family in transformers.

    ``max_position_embeddings`` are the positions a sequence can have. Its first token has the row ``positions_from`` of
    the table on disk, which has as many rows before it that are not used.
    """

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
    model_type: str = "bert"
    positions_from: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "positions_from" else 1
            if field.type == "int" and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise RankwellError(f"{field.name} is {excerpt(str(value))}, expected a whole number of at least 1")
            if field.type == "float" and (not isinstance(value, int | float) or not 0 <= value <= 1):
                raise RankwellError(f"{field.name} is {excerpt(str(value))}, expected a number from 0 to 1")
        if self.hidden_size % self.num_attention_heads:
            raise RankwellError(f"a width of {self.hidden_size} cannot be split into {self.num_attention_heads} heads")

    @property
    def head_size(self) -> int:
        """The width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def as_settings(self) -> dict[str, Any]:
        """The entries of ``config.json``."""
        settings = asdict(self)
        if begin := settings.pop("positions_from"):
            settings["max_position_embeddings"] += begin
            settings["pad_token_id"] = begin - 1
        if self.model_type == "electra":  # whose embeddings may be narrower; these are not
            settings["embedding_size"] = self.hidden_size
        return settings


# Families of encoders with BERT's layers, which rankwell computes itself


@dataclass(frozen=True, slots=True)
class Family:
    """The names that transformers gives the parts of a family's classifier.

    ===================  ===========================================================================================
    ``name``             what the names of its classes begin with
    ``prefix``           what the names of the encoder's tensors begin with
    ``dense``            the layer between ``[CLS]`` and the head
    ``activation``       what follows that layer
    ``output``           the head
    ``after_padding``    whether positions are counted from the id after the padding's, as in RoBERTa
    ===================  ===========================================================================================
    """

    name: str
    prefix: str
    dense: str = "classifier.dense"
    activation: str = "tanh"
    output: str = "classifier.out_proj"
    after_padding: bool = False

    @property
    def classifier(self) -> str:
        """The class of the classifier in transformers."""
        return f"{self.name}ForSequenceClassification"

    @property
    def dense_tensors(self) -> str:
        """The dense layer's name among a classifier's tensors; BERT's is part of the encoder."""
        return f"{self.prefix}.{self.dense}" if self.dense.startswith("pooler") else self.dense


FAMILIES: Mapping[str, Family] = {
    "bert": Family("Bert", "bert", "pooler.dense", output="classifier"),
    "electra": Family("Electra", "electra", activation="gelu"),
    "roberta": Family("Roberta", "roberta", after_padding=True),
    "xlm-roberta": Family("XLMRoberta", "roberta", after_padding=True),
    "camembert": Family("Camembert", "roberta", after_padding=True),
}
