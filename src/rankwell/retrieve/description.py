"""``index.json``: the description of an index, which names its parts in use; replacing it changes the index."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwell.core.checksums import TABLE
from rankwell.core.errors import InputError, folder_error, wrong_version
from rankwell.core.manifest import Manifest, check_seal, file_digest, write_sealed
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.formats.fields import Columns

INDEX_VERSION = 1
_FORMAT = "rankwell-index"
SEGMENT_NAME, DELETED_NAME = re.compile(r"segment-\d{4,}"), re.compile(r"deleted-\d{4,}")


def analyzer_json(analyzer: Analyzer) -> dict[str, Any]:
    """An analyser as ``index.json`` and its manifest hold it."""
    return {**analyzer.model_dump(mode="json"), "stop_words": sorted(analyzer.stop_words)}


def write_description(
    folder: Path,
    analyzer: Analyzer,
    segments: Mapping[str, str],
    *,
    store: bool,
    weighted: bool,
    expanded: bool,
    columns: Mapping[str, Any] | None = None,
    deleted: str | None = None,
) -> dict[str, Any]:
    """Write ``index.json``, which makes these segments of ``folder``, given with their hashes, the index; its manifest.

    ``deleted`` is the name of the folder that marks deleted documents, ``columns`` the fields that were named.
    """
    marks = {} if deleted is None else {"deleted": file_digest(folder / deleted / TABLE)}
    settings = analyzer_json(analyzer)
    config = {"analyzer": settings, "store": store, "weighted": weighted, "expanded": expanded}
    config |= {"columns": columns} if columns else {}
    manifest = Manifest("index", config, {**segments, **marks}).as_dict()
    description = {
        "format": _FORMAT,
        "version": INDEX_VERSION,
        "analyzer": settings,
        "segments": list(segments),
        **({} if deleted is None else {"deleted": deleted}),
        "manifest": manifest,
    }
    write_sealed(folder / "index.json", description)
    return manifest


def stored_columns(folder: Path) -> Columns | None:
    """The fields that an index was built with, if they were named."""
    columns = read_description(folder)["manifest"].get("config", {}).get("columns")
    return Columns(**columns) if isinstance(columns, dict) else None


def read_description(folder: Path) -> dict[str, Any]:
    """What ``index.json`` says. Raises unless it describes an index."""
    path = folder / "index.json"
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        make = "make an index with `rankwell index`"
        raise folder_error(folder, "not an index (it has no index.json)", make) from None
    except (OSError, ValueError, RecursionError):
        raise InputError(path, None, "not the description of an index") from None
    if not isinstance(description, dict) or description.get("format") != _FORMAT:
        raise InputError(path, None, "not the description of an index")
    if (version := description.get("version")) != INDEX_VERSION:
        raise wrong_version(path, "an index", version, INDEX_VERSION, "build it again")
    check_seal(path, description)
    names = description.get("segments")
    if not isinstance(names, list) or not names or not all(SEGMENT_NAME.fullmatch(str(name)) for name in names):
        raise InputError(path, None, "names no segments")
    if not DELETED_NAME.fullmatch(str(description.get("deleted", "deleted-0000"))):
        raise InputError(path, None, "names no folder of deleted documents")
    if not isinstance(description.get("manifest"), dict):
        raise InputError(path, None, "has no manifest")
    return description
