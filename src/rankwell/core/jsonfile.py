"""JSON files: read with errors that name the file, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, system_reason
from rankwell.core.files import atomic_text

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
