"""Families of encoders with BERT's layers, which rankwell computes itself. Needs no torch.

They differ in the names of their tensors, in the head of their classifier and in where positions begin. transformers
computes all other families (``foreign.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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


def has_remote_code(settings: Mapping[str, Any]) -> bool:
    """Whether the model of a ``config.json`` is computed by code from its repository."""
    return any(str(name).startswith("AutoModel") for name in settings.get("auto_map") or ())


def has_bert_layers(settings: Mapping[str, Any]) -> bool:
    """Whether rankwell computes the model of a ``config.json`` itself."""
    if has_remote_code(settings):
        return False
    width = settings.get("hidden_size")
    projected = settings.get("embedding_size", width) != width  # as in small ELECTRAs
    absolute = settings.get("position_embedding_type") in (None, "absolute")
    kind = settings.get("model_type") or "bert"
    return kind == "bert" or (kind in FAMILIES and not projected and absolute and not settings.get("is_decoder"))
