"""Where a model is: a folder, the one that ships, a folder in an installed package, or a repository on the hub."""

from __future__ import annotations

import hashlib
import os
import re
from importlib.util import find_spec
from pathlib import Path

from rankwell.core.checksums import TABLE
from rankwell.core.errors import InputError, MissingExtraError, RankwellError
from rankwell.core.manifest import digest, file_digest
from rankwell.models.checkpoints.describe import Checkpoint

DEFAULT = "rankwell-mini"
"""The default model, which training starts from, too."""
SHIPPED = Path(__file__).parents[2] / "shipped" / DEFAULT
_IN_PACKAGE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([\w.\-]+(?:/[\w.\-]+)*)?")
_ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*")
_ABSENT = f"{DEFAULT}, the default model, is not part of this installation"
_PACKAGES = ("torch", "safetensors", "tokenizers")
_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt"]
_CODE = ["*.py"]
_OTHER_FILES = ["[!0-9]*/*", "[0-9][!_]*/*"]
"""Files in folders other than those of a bi-encoder's modules, such as ``1_Pooling``."""


def find_model(name: str | Path = DEFAULT, *, code: bool = False) -> Path:
    """The folder of a model, which is downloaded if necessary; with ``code`` together with the repository's code.

    =======================  ======================================================================================
    ``rankwell-mini``        the model that ships with rankwell; a folder of that name is ``./rankwell-mini``
    ``models/mine``          a folder; if it exists, the following forms are not tried
    ``some_package:model``   a folder within an installed package
    ``owner/name``           a repository on the hub: its safetensors, json, jinja and txt files only
    =======================  ======================================================================================

    Any other name is taken for a folder, and its reader reports what is missing there.
    """
    folder = Path(name)
    if name == DEFAULT and (SHIPPED.is_dir() or not os.path.exists(folder)):
        if not SHIPPED.is_dir():
            raise RankwellError(f"{_ABSENT}; name another one")
        return SHIPPED
    if isinstance(name, Path) or os.path.exists(folder):  # Path.exists raises if the name is too long
        return folder
    if match := _IN_PACKAGE.fullmatch(name):
        return _in_package(match[1], match[2] or "")
    if _ON_THE_HUB.fullmatch(name):
        return _from_the_hub(name, _FILES + _CODE if code else _FILES)
    return folder


def published_name(folder: Path) -> str:
    """The name under which a model was published: that of its folder or, in the hub's cache, of its repository."""
    folder = folder.resolve()
    if folder.parent.name != "snapshots":
        return folder.name
    return folder.parents[1].name.removeprefix("models--").replace("--", "/", 1)  # models--owner--name/snapshots/COMMIT


def find_vectors(name: str | Path) -> Path:
    """A file or folder of word vectors; ``PACKAGE:FOLDER`` is one within an installed package."""
    return find_model(name) if isinstance(name, str) and ":" in name else Path(name)


def default_lacks() -> str | None:
    """Why the default model cannot be used, for callers that can do without it; ``None`` if it can."""
    if not SHIPPED.is_dir():
        return _ABSENT
    missing = next((package for package in _PACKAGES if find_spec(package) is None), None)
    return None if missing is None else str(MissingExtraError(missing, "models", f"{DEFAULT}, the default model,"))


def _in_package(package: str, inner: str) -> Path:
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:  # of a dotted name, what stands before the last dot
        spec = None
    if spec is None:
        line = f"pip install --no-deps {package.replace('_', '-')}"
        raise RankwellError(f"{package}:{inner}: no package called {package} is installed ({line})")
    places = [Path(place) / inner for place in spec.submodule_search_locations or []]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None or ".." in Path(inner).parts:
        raise RankwellError(f"{package}:{inner}: the package {package} has no folder {inner}")
    return folder


def _from_the_hub(name: str, files: list[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
    except ImportError:
        raise MissingExtraError("huggingface_hub", "models", f"{name}: no such folder here; the hub") from None
    try:
        return Path(snapshot_download(name, allow_patterns=files, ignore_patterns=_OTHER_FILES))
    except GatedRepoError:
        raise RankwellError(f"{name}: its owner asks you to log in to the Hugging Face hub and accept terms") from None
    except (RepositoryNotFoundError, HFValidationError):
        raise RankwellError(f"{name}: no such folder here, and no such model on the Hugging Face hub") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError):
        problem = "no such folder here, and the Hugging Face hub cannot be reached (nor was it downloaded before)"
        raise RankwellError(f"{name}: {problem}") from None


# Identifies models by their contents, so that results of one are never taken for another's


_BESIDE = {".md", ".jsonl", ".log", ".png", ".html", ".tsv", ".csv", ".gz"}
"""Cards, logs, pictures, pages and runs, which lie beside a model and are no part of it."""
_ENCODER_FILES = [
    *("*.safetensors", "*.py", "*.model", "config.json", "tokenizer*", "vocab*", "merges.txt"),
    *("special_tokens_map.json", "added_tokens.json"),
]


def model_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The files that decide what a model computes: those of its folder and of its modules. Raises if there are none."""
    root = Path(folder).resolve()
    inside = [path for _, place in Checkpoint(root, {}).modules if place for path in (root / place).rglob("*")]
    files = [path for path in {*root.glob("*"), *inside} if path.is_file() and path.suffix not in _BESIDE]
    files = sorted(path for path in files if path.name != TABLE and not path.name.startswith("."))
    if not files:
        raise InputError(folder, None, "no model here")
    return files


def model_digest(folder: str | os.PathLike[str]) -> str:
    """A hash of everything that decides a model's outputs: weights, configuration, tokenizer, templates, code.

    It identifies models in score caches, manifests, stages of recipes and resumed work.
    """
    whole, root = hashlib.blake2b(digest_size=16), Path(folder).resolve()
    for file in model_files(folder):
        with file.open("rb") as opened:
            name = os.path.relpath(file, root)
            whole.update(name.encode() + hashlib.file_digest(opened, hashlib.blake2b).digest())
    return whole.hexdigest()


def encoder_digest(folder: Path) -> str:
    """A hash of what decides the hidden states of a text: weights, shape, tokenizer and code.

    Stored vectors and features are named by it. They stay valid when only ``rankwell.json`` changes, which says how
    pairs are scored.
    """
    return digest({path.name: file_digest(path) for name in _ENCODER_FILES for path in folder.glob(name)})
