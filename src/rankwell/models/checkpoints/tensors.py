"""A checkpoint's tensors on disk: safetensors, whole, in shards, or with 8-bit weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from rankwell.core.errors import InputError
from rankwell.core.jsonfile import read_object
from rankwell.models.checkpoints.quantised import WEIGHTS as QUANTISED


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a file that whoever may read the folder may read; safetensors' own are for their owner alone."""
    path.write_bytes(save(dict(tensors), metadata={"format": "pt"}))


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors as they are in ``model.safetensors``, whole or in shards, or in the file with 8-bit weights."""
    tensors: dict[str, Tensor] = {}
    for name in _weight_files(folder):
        if not (folder / name).is_file():
            hint = "; only safetensors are read, never pickle" if (folder / "pytorch_model.bin").exists() else ""
            raise InputError(folder, None, f"no {name}{hint}")
        try:
            tensors |= load_file(folder / name)
        except SafetensorError as error:
            raise InputError(folder / name, None, f"not a safetensors file ({error})") from None
    return tensors


def _weight_files(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        quantised = (folder / QUANTISED).is_file() and not (folder / "model.safetensors").is_file()
        return [QUANTISED if quantised else "model.safetensors"]
    shards = read_object(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise InputError(index, None, "not an index of shards (it has no weight_map of file names)")
    for name in shards.values():
        if Path(name).name != name:
            raise InputError(index, None, f"names a file outside the folder: {name!r}")
    return sorted(set(shards.values()))
