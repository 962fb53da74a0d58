"""Manifests: every run and index records the version, configuration, data, seed and machine that made it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from rankwell.core.errors import InputError, system_reason
from rankwell.core.files import open_raw
from rankwell.core.jsonfile import write_json
from rankwell.core.streams import is_stream


def machine() -> dict[str, Any]:
    """What a reader of a result needs to know about the machine; nothing that identifies its owner."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def digest(value: Any) -> str:
    """A short hash of any JSON value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=12)


def write_sealed(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON with a checksum of itself, for :func:`check_seal`."""
    write_json(path, {**record, "checksum": digest(record)})


def check_seal(path: Path, record: dict[str, Any]) -> None:
    """Remove a record's checksum. Raises if it is wrong; records of earlier versions have none."""
    checksum = record.pop("checksum", None)
    if checksum is not None and checksum != digest(record):
        raise InputError(path, None, "damaged: has a wrong checksum")


def file_digest(path: str | os.PathLike[str]) -> str:
    """A short hash of a file's bytes."""
    try:
        with open_raw(path) as file:
            return hashlib.file_digest(cast("io.BufferedReader", file), _hash).hexdigest()
    except OSError as error:
        raise InputError(path, None, system_reason(error)) from None


@dataclass(frozen=True)
class Manifest:
    """The record written beside a run, an index or a model."""

    kind: str
    config: Mapping[str, Any]
    data: Mapping[str, str]
    seed: int | None = None
    version: str = field(default_factory=lambda: version("rankwell"))
    machine: Mapping[str, Any] = field(default_factory=machine)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def as_dict(self) -> dict[str, Any]:
        """The record as JSON, with the hashes of configuration and data."""
        return {**asdict(self), "config_hash": digest(self.config), "data_hash": digest(self.data)}

    def write_beside(self, path: str | os.PathLike[str]) -> None:
        """Write ``PATH.manifest.json`` for the file ``path``; a pipe or a device gets none."""
        if not is_stream(path):
            write_json(Path(f"{os.fspath(path)}.manifest.json"), self.as_dict())
