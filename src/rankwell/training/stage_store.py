"""Finished stages, each in a folder named by a hash of all that made it.

A stage is finished when its folder has ``stage.json``, which is written last. The hash holds the stage's kind and
options, the parts of recipe and data it reads, and the hash of the stage before it. So a finished stage is never run
again, an edited one and all after it are, going back to an earlier setting finds the old result, and recipes that
begin alike share their beginnings.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import remove_leftovers
from rankwell.core.locks import lock
from rankwell.core.manifest import Manifest, digest, file_digest, read_object, write_json
from rankwell.models.checkpoints.names import find_model, find_vectors, model_digest
from rankwell.rank.first_stage import VERSION as FIRST_STAGE_VERSION
from rankwell.training.data.prepare import folder_digest
from rankwell.training.options import FIRST_STAGE_ENCODER, RANKER, START, Meaning
from rankwell.training.recipe import Recipe, RecipeStage
from rankwell.training.stage import POLL_SECONDS, StageResult, Work, process_count, process_number, stage_kinds

FORMAT = 1
FINISHED = "stage.json"


@dataclass(frozen=True)
class PlannedStage:
    """A stage with the hash that names its result."""

    stage: RecipeStage[Any]
    key: str

    @property
    def folder_name(self) -> str:
        """``NN-name-HASH``."""
        return f"{self.stage.number:02d}-{self.stage.name}-{self.key}"


def parts_of(recipe: Recipe, start: str, data: Mapping[str, str]) -> dict[str, Any]:
    """What stages may depend on; ``start`` and ``data`` are hashes of the first checkpoint, collection and splits."""
    return {
        "start": start,
        "inputs": recipe.model.model_dump(mode="json", exclude={"start", "adapt", "attention", "attention_layers"}),
        "attention": [recipe.model.attention, recipe.model.attention_layers],
        "seed": recipe.seed,
        "depth": recipe.evaluate.depth,
        **data,
    }


def plan_stages(recipe: Recipe, parts: Mapping[str, Any]) -> list[PlannedStage]:
    """The stages with their hashes, each over the one before it."""
    planned: list[PlannedStage] = []
    before = ""
    for stage in recipe.stages:
        read = {name: parts[name] for name in sorted(stage_kinds()[stage.kind].reads) if name in parts}
        options = _identity(stage, recipe)
        whole = {"format": FORMAT, "kind": stage.kind, "options": options, "parts": read, "before": before}
        if stage_kinds()[stage.kind].finds:
            whole["first stage"] = FIRST_STAGE_VERSION
        before = digest(whole)
        planned.append(PlannedStage(stage, before))
    return planned


def _identity(stage: RecipeStage[Any], recipe: Recipe) -> dict[str, Any]:
    """The options that decide the stage's result; those that name models or files by their contents."""
    marked = stage.options.marked
    options: dict[str, Any] = stage.options.model_dump(mode="json", exclude=set(marked(Meaning.NO_EFFECT)))
    options |= {name: _contents(options[name], find_model, model_digest) for name in marked(Meaning.MODEL)}
    options |= {name: _contents(options[name], find_vectors) for name in marked(Meaning.VECTORS)}
    data = Path(recipe.data.folder)
    return options | {name: _contents(options[name], lambda file: data / file) for name in marked(Meaning.DATA_FILE)}


def _contents(
    name: str | Sequence[str] | None, find: Callable[[str], Path], hash_folder: Callable[[Path], str] = folder_digest
) -> Any:
    """The digest of the file or folder that is named; a missing one stays a name, which the stage's check reports."""
    if isinstance(name, Sequence) and not isinstance(name, str):
        return [_contents(item, find, hash_folder) for item in name]
    if name is None or name in (START, FIRST_STAGE_ENCODER, RANKER):  # parts of their own
        return name
    path = find(name)
    if path.is_file():
        return file_digest(path)
    return hash_folder(path) if path.is_dir() else name


def stage_folder(pool: Path, planned: PlannedStage) -> Path:
    """The folder of a stage in a pool; under another name where a recipe called the same stage otherwise."""
    existing = sorted((pool / "stages").glob(f"*-{planned.key}"))
    return existing[0] if existing else pool / "stages" / planned.folder_name


def run_stage(pool: Path, planned: PlannedStage, work: Work) -> StageResult:
    """Do the stage's work, or continue it; what it left is recorded last.

    If another run is at the same stage, its end is waited for, and its result used. Of several processes (torchrun) all
    do the work, the first records it and the others wait for the record.
    """
    folder, kind = stage_folder(pool, planned), stage_kinds()[planned.stage.kind]
    if process_number() > 0:
        kind.run(work, planned.stage, folder)
        return wait_for(folder)
    with lock(folder, wait=process_count() == 1):
        if (result := read_finished(folder)) is not None:
            if process_count() > 1:  # the others have begun the work and would wait forever
                raise RankwellError(f"another run has just finished {folder}; start again")
            return result
        if process_count() == 1:  # of several, another may have begun to write
            remove_leftovers(folder, below=True)
        begin = time.monotonic()
        result = kind.run(work, planned.stage, folder)
        _record(folder, planned, work, result, time.monotonic() - begin)
    return result


def read_finished(folder: Path) -> StageResult | None:
    """What a finished stage left; None where it is not finished."""
    path = folder / FINISHED
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        produced = dict(record["produced"])
        figures = dict(produced.pop("figures"))
        places = {name: None if at is None else folder / at for name, at in produced.items()}
        result = StageResult(**places, figures=figures)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):
        raise InputError(path, None, "not the record of a stage; remove its folder to run the stage again") from None
    if result.missing is not None:
        raise InputError(path, None, f"{result.missing} is gone; remove {folder} to run the stage again")
    return result


def stage_seconds(folder: Path) -> float:
    """How long the last stretch of a finished stage's work took."""
    return float(read_object(folder / FINISHED)["seconds"])


def _record(folder: Path, planned: PlannedStage, work: Work, result: StageResult, seconds: float) -> None:
    if result.missing is not None:
        raise RankwellError(f"the stage {planned.stage.name} says it left {result.missing}, which is not there")
    # Relative, so that the whole pool may be moved.
    produced = {name: None if path is None else os.path.relpath(path, folder) for name, path in result.places.items()}
    options = planned.stage.options.model_dump(mode="json")
    config = {"name": planned.stage.name, "kind": planned.stage.kind, "options": options, "recipe": work.recipe.name}
    data = {"collection": work.prepared.collection.digest} if work.prepared else {}
    record = {
        **Manifest("stage", config, data, work.seed).as_dict(),
        "key": planned.key,
        "seconds": round(seconds, 3),
        "produced": {**produced, "figures": result.figures},
    }
    write_json(folder / FINISHED, record)


def wait_for(folder: Path) -> StageResult:
    """What the stage left, once the first process has recorded it."""
    while (result := read_finished(folder)) is None:
        time.sleep(POLL_SECONDS)
    return result
