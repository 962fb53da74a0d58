"""Identifies models by their contents, so that results of one are never taken for another's. Needs no torch."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from rankwell.core.errors import InputError
from rankwell.core.manifest import digest, file_digest

# Weights, graphs of exported models, configurations and tokenizers; a model card changes nothing.
_MODEL_FILES = (
    *("*.safetensors", "*.onnx", "*.onnx.data", "*.xml", "*.bin", "*.json", "vocab.txt", "1_Pooling/*.json"),
    *("*_Dense/*.json", "*_Dense/*.safetensors", "*_Router/*.json", "*_Router/*/*.json", "*_Router/*/*.safetensors"),
)
_ENCODER_FILES = ("*.safetensors", "config.json", "tokenizer.json", "vocab.txt")


def model_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The files that decide what a model computes. Raises if there are none."""
    files = sorted({file for pattern in _MODEL_FILES for file in Path(folder).resolve().glob(pattern)})
    if not files:
        raise InputError(folder, None, "no model here")
    return files


def model_digest(folder: str | os.PathLike[str]) -> str:
    """A hash of everything that decides a model's outputs: weights, configuration and tokenizer.

    It identifies models in score caches, manifests, stages of recipes and resumed work.
    """
    whole = hashlib.blake2b(digest_size=16)
    for file in model_files(folder):
        with file.open("rb") as opened:
            whole.update(file.name.encode() + hashlib.file_digest(opened, hashlib.blake2b).digest())
    return whole.hexdigest()


def encoder_digest(folder: Path) -> str:
    """A hash of what decides the hidden states of a text: weights, shape and tokenizer.

    Stored vectors and features are named by it. They stay valid when only ``rankwell.json`` changes, which says how
    pairs are scored.
    """
    return digest({path.name: file_digest(path) for name in _ENCODER_FILES for path in sorted(folder.glob(name))})
