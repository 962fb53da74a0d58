"""Manifests: every index and system records the version, configuration, data, seed and machine that made it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from rankwell.core.errors import InputError, system_reason
from rankwell.core.files import atomic_text, open_raw

MAX_DEPTH = 64
"""Files nested deeper are refused: code that walks over their values recursively would fail later, less clearly."""


def read_json(path: Path) -> Any:
    """The JSON value in a file. Raises ``FileNotFoundError`` if it is missing, for the caller to explain."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if _is_deeper(value, MAX_DEPTH):
            raise RecursionError
        return value
    except ValueError:
        raise InputError(path, None, "not JSON") from None
    except RecursionError:
        raise InputError(path, None, f"lists and objects nested more than {MAX_DEPTH} deep") from None
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise InputError(path, None, system_reason(error)) from None


def _is_deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth + 1):
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _parts(outer)]
        if not level:
            return False
    return True


def _parts(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def read_object(path: Path) -> dict[str, Any]:
    """Like :func:`read_json`, but raises unless the value is an object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(path, None, f"holds a JSON {type(value).__name__}, expected an object")
    return value


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, whole or not at all."""
    with atomic_text(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


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
    """Remove a record's checksum. Raises if it has a wrong one."""
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
    """The record in an index, a system or a model."""

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
