"""What a model's folder holds, from ``config.json``, ``rankwell.json``, ``modules.json`` and the files beside them.

Whoever opens a model asks :func:`describe` what it is. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from rankwell.core.errors import InputError, RankwellError, folder_error
from rankwell.core.manifest import read_json, read_object
from rankwell.models.spec import FAMILIES, EncoderConfig

SENTENCE_SETTINGS = "config_sentence_transformers.json"
Kind = Literal["encoder", "language", "modular"]
_HEADS = ("classifier.out_proj.weight", "classifier.weight", "score.weight")
"""The last layer of a classifier, in the families of transformers."""
_WRITERS = ("ForCausalLM", "ForConditionalGeneration")
_OTHER_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
}
"""DistilBERT's names of dimensions."""


@dataclass(frozen=True)
class Checkpoint:
    """A model's folder; ``settings`` are the contents of its ``config.json``. Other files are read when asked for."""

    folder: Path
    settings: Mapping[str, Any]

    @property
    def family(self) -> str:
        """The type of the encoder in transformers' terms."""
        return str(self.settings.get("model_type") or "bert")

    @property
    def architectures(self) -> list[str]:
        """The classes of transformers that the model was saved from."""
        return [str(name) for name in self.settings.get("architectures") or []]

    @property
    def remote_code(self) -> bool:
        """Whether the model is computed by code from its repository."""
        return any(str(name).startswith("AutoModel") for name in self.settings.get("auto_map") or ())

    @property
    def is_own(self) -> bool:
        """Whether rankwell computes the encoder itself, rather than transformers: one with BERT's layers."""
        settings, kind = self.settings, self.family
        if self.remote_code:
            return False
        width = settings.get("hidden_size")
        projected = settings.get("embedding_size", width) != width  # as in small ELECTRAs
        absolute = settings.get("position_embedding_type") in (None, "absolute")
        return kind == "bert" or (kind in FAMILIES and not projected and absolute and not settings.get("is_decoder"))

    @cached_property
    def ranker(self) -> Mapping[str, Any] | None:
        """The contents of ``rankwell.json``; None if there is no such file."""
        path = self.folder / "rankwell.json"
        return read_object(path) if path.is_file() else None

    @cached_property
    def modules(self) -> tuple[tuple[str, str], ...]:
        """The kinds of a sentence-transformers folder's modules and their folders; none without ``modules.json``."""
        path = self.folder / "modules.json"
        try:
            listed = read_json(path) if path.is_file() else []
            return tuple((str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in listed)
        except (KeyError, TypeError):
            raise InputError(path, None, "not a list of modules, each with a type and a path") from None

    @cached_property
    def sentence_settings(self) -> Mapping[str, Any]:
        """The contents of ``config_sentence_transformers.json``; empty if there is no such file."""
        path = self.folder / SENTENCE_SETTINGS
        return read_object(path) if path.is_file() else {}

    @cached_property
    def kind(self) -> Kind:
        """What ranks with the model: an encoder with a head, a language model's answer, or the last of its modules."""
        if (self.folder / "rankwell.json").is_file():
            return "encoder"
        if self.settings and not self.is_own and self.family != "encoder-decoder" and self._is_decoder():
            return "language"
        return "modular" if self._ends_in_scores() else "encoder"

    @property
    def generates(self) -> bool:
        """Whether the model writes text."""
        return any(name.endswith(_WRITERS) for name in self.architectures) or self.family in ("t5", "mt5")

    def _is_decoder(self) -> bool:
        if self.generates:
            return True
        from transformers.models.auto import modeling_auto

        masked = self.family in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
        return self.family in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not masked

    def _ends_in_scores(self) -> bool:
        last = self.folder / self.modules[-1][1] / "config.json" if len(self.modules) > 1 else None
        return last is not None and last.is_file() and read_object(last).get("module_output_name") == "scores"

    @property
    def scores_pairs(self) -> bool:
        """Whether the model scores pairs, rather than giving texts vectors."""
        classifies = any(name.endswith("ForSequenceClassification") for name in self.architectures)
        if classifies or (self.folder / "rankwell.json").is_file():
            return True
        if not self.modules:  # without a pooling, what a language model writes is its answer
            return any(name.endswith(_WRITERS) for name in self.architectures) and self.kind == "language"
        return self.modules[-1][0] == "LogitScore" or self._ends_in_scores()

    @property
    def has_vectors(self) -> bool:
        """Whether texts can be compared by their vectors: those of a bi-encoder, or of a ranker that starts as one."""
        return not self.scores_pairs or bool((self.ranker or {}).get("similarity"))

    @property
    def compares_words(self) -> bool:
        """Whether the model was trained to compare texts word by word, by late interaction."""
        settings = self.sentence_settings
        by_words = settings.get("model_type") == "MultiVectorEncoder" or "query_prefix" in settings
        return by_words or "HF_ColBERT" in self.architectures

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The classes of a transformers classifier of sequences, by output; none if the folder has no such classifier.

        If ``config.json`` names no architecture, the weights decide.
        """
        names = self.settings.get("id2label") or {}
        if self.architectures:
            brought = str((self.settings.get("auto_map") or {}).get("AutoModelForSequenceClassification"))
            ends = ("ForSequenceClassification", brought.rpartition(".")[2])
            found = any(name.endswith(ends[0]) or name == ends[1] for name in self.architectures)
            count = (len(names) or int(self.settings.get("num_labels") or 2)) if found else 0
        else:
            from rankwell.models.checkpoints.tensors import tensor_shapes  # imports torch

            shapes = tensor_shapes(self.folder)
            count = next((shapes[name][0] for name in _HEADS if len(shapes.get(name, ())) == 2), 0)
            count = count if len(names) in (0, count) else 0
        return tuple(str(names.get(str(number), f"LABEL_{number}")) for number in range(count))

    def relevance_column(self, label: str | None = None) -> int | None:
        """The output for the class that means relevant, as ``config.json`` names the classes.

        It is the class ``label``. Without one it is entailment, or None if there is no such class.
        """
        names = self.settings.get("id2label")
        names = names if isinstance(names, dict) else {}
        labels = {str(name).lower(): int(number) for number, name in names.items()}
        if label is not None and label.lower() not in labels:
            known = ", ".join(map(str, names.values()))
            raise InputError(self.folder, None, f"no class is called {label} (known: {known})")
        return labels.get((label or "entailment").lower()) if len(names) > 1 else None

    def encoder_config(self) -> EncoderConfig:
        """The dimensions of an encoder with BERT's layers; raises for others."""
        path, settings = self.folder / "config.json", self.settings
        if not self.is_own:
            kind, known = settings.get("model_type"), ", ".join(FAMILIES)
            raise InputError(path, None, f"a model of the type {kind}, expected one with BERT's layers ({known})")
        if settings.get("position_embedding_type", "absolute") != "absolute":
            kind = settings["position_embedding_type"]
            raise InputError(path, None, f"positions of the kind {kind}; expected absolute")
        return bert_config(settings, path)

    def dimensions(self) -> EncoderConfig:
        """The dimensions of any encoder, to describe it."""
        if self.is_own:
            return self.encoder_config()
        known = {field.name for field in fields(EncoderConfig)}
        named = {_OTHER_NAMES.get(name, name): value for name, value in self.settings.items()}
        try:
            sizes = {name: value for name, value in named.items() if name in known and value}
            return EncoderConfig(**{"intermediate_size": 1, **sizes})
        except (TypeError, RankwellError) as error:
            problem = f"not the configuration of an encoder ({error})"
            raise InputError(self.folder / "config.json", None, problem) from None


def describe(folder: Path) -> Checkpoint:
    """What a folder holds. Raises if it is not a checkpoint."""
    try:
        return Checkpoint(folder, read_object(folder / "config.json"))
    except (FileNotFoundError, NotADirectoryError):
        chain = Checkpoint(folder, {})
        if chain.kind == "modular":  # whose encoder may be in a folder of its own
            return chain
        make = "" if folder.exists() else "a model is a folder, PACKAGE:FOLDER, or OWNER/NAME on the Hugging Face hub"
        raise folder_error(folder, "not a checkpoint (it has no config.json)", make) from None


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
