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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.jsonfile import write_json
from rankwell.core.locks import lock
from rankwell.core.manifest import Manifest, digest, file_digest
from rankwell.models.checkpoints.names import find_model, find_vectors
from rankwell.training.data.prepare import folder_digest
from rankwell.training.options import LABELLED, MODELS, START, WITHOUT_EFFECT
from rankwell.training.recipe import Recipe, Stage
from rankwell.training.stage import Produced, StageKind, Work

FORMAT = 1
FINISHED = "stage.json"
PLACES = ("model", "candidates", "first_stage")
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Planned:
    """A stage with the hash that names its result."""

    number: int
    stage: Stage
    key: str

    @property
    def folder_name(self) -> str:
        """``NN-name-HASH``."""
        return f"{self.number:02d}-{self.stage.name}-{self.key}"


def parts_of(recipe: Recipe, start: str, data: Mapping[str, str]) -> dict[str, Any]:
    """What stages may depend on; ``start`` and ``data`` are hashes of the first checkpoint, collection and splits."""
    model = recipe.model.model_dump(mode="json", exclude={"start", "adapt", "attention", "attention_layers"})
    attention = [recipe.model.attention, recipe.model.attention_layers]
    depth = recipe.evaluate.depth
    return {"start": start, "inputs": model, "attention": attention, "seed": recipe.seed, "depth": depth, **data}


def plan_stages(recipe: Recipe, kinds: Mapping[str, StageKind], parts: Mapping[str, Any]) -> list[Planned]:
    """The stages with their hashes, each over the one before it."""
    planned: list[Planned] = []
    before = ""
    for number, stage in enumerate(recipe.stages, start=1):
        kind = kinds[stage.kind]
        read = {name: parts[name] for name in sorted(kind.reads) if name in parts}
        options = stage.options.model_dump(mode="json", exclude=set(WITHOUT_EFFECT))
        options |= {name: _contents(name, options[name]) for name in MODELS & options.keys()}
        options |= {name: _labelled(recipe, options[name]) for name in LABELLED & options.keys()}
        before = digest({"format": FORMAT, "kind": stage.kind, "options": options, "parts": read, "before": before})
        planned.append(Planned(number, stage, before))
    return planned


def _contents(option: str, names: str | Sequence[str] | None) -> Any:
    """Models and word vectors by what is in them."""
    if isinstance(names, Sequence) and not isinstance(names, str):
        return [_contents(option, name) for name in names]
    if names is None or names == START:  # whose contents are a part of their own
        return names
    path = find_vectors(names) if option == "vectors" else find_model(names)
    if path.is_file():
        return file_digest(path)
    return folder_digest(path) if path.is_dir() else names  # what is not there, the stage's check says best


def _labelled(recipe: Recipe, name: str | None) -> str | None:
    path = None if name is None else Path(recipe.data.folder) / name
    return file_digest(path) if path is not None and path.is_file() else name


class StageStore:
    """The folder ``stages`` of a pool."""

    def __init__(self, pool: Path):
        self.folder = pool / "stages"

    def folder_of(self, planned: Planned) -> Path:
        """The stage's folder; under another name where a recipe called the same stage otherwise."""
        found = sorted(self.folder.glob(f"*-{planned.key}"))
        return found[0] if found else self.folder / planned.folder_name

    def finished(self, planned: Planned) -> Produced | None:
        """What the stage left, or None where it is not finished."""
        return read_finished(self.folder_of(planned))

    def run(self, planned: Planned, kind: StageKind, work: Work) -> Produced:
        """Do the stage's work, or continue it; what it left is recorded last.

        Of several processes (torchrun) all do the work, the first records it and the others wait for the record.
        """
        folder = self.folder_of(planned)
        if process_number() > 0:
            kind.run(work, planned.stage.options, folder)
            return wait_for(folder)
        with lock(folder, wait=False):
            if (found := read_finished(folder)) is not None:
                if process_count() > 1:  # the others have begun the work already and would wait for us in vain
                    raise RankwellError(f"another run has just finished {folder}; start again")
                return found
            begin = time.monotonic()
            produced = kind.run(work, planned.stage.options, folder)
            _record(folder, planned, work, produced, time.monotonic() - begin)
        return produced


def read_finished(folder: Path) -> Produced | None:
    """What a finished stage left; None where it is not finished."""
    path = folder / FINISHED
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        places = {name: record["produced"].get(name) for name in PLACES}
        figures = dict(record["produced"]["figures"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):
        raise InputError(path, None, "not the record of a stage; remove its folder to run the stage again") from None
    found = Produced(**{name: None if at is None else folder / at for name, at in places.items()}, figures=figures)
    for place in (found.model, found.candidates, found.first_stage):
        if place is not None and not place.exists():
            raise InputError(path, None, f"{place} is gone; remove {folder} to run the stage again")
    return found


def stage_seconds(folder: Path) -> float:
    """How long the last stretch of a finished stage's work took."""
    return float(json.loads((folder / FINISHED).read_text(encoding="utf-8"))["seconds"])


def _record(folder: Path, planned: Planned, work: Work, produced: Produced, seconds: float) -> None:
    def place(path: Path | None) -> str | None:
        # Relative, so that the whole pool may be moved.
        return None if path is None else os.path.relpath(path, folder)

    for path in (produced.model, produced.candidates, produced.first_stage):
        if path is not None and not path.exists():
            raise RankwellError(f"the stage {planned.stage.name} says it left {path}, which is not there")
    options = planned.stage.options.model_dump(mode="json")
    config = {"name": planned.stage.name, "kind": planned.stage.kind, "options": options, "recipe": work.recipe.name}
    data = {"collection": work.prepared.collection.digest} if work.prepared else {}
    record = {
        **Manifest("stage", config, data, work.seed).as_dict(),
        "key": planned.key,
        "seconds": round(seconds, 3),
        "produced": {
            **{name: place(getattr(produced, name)) for name in PLACES},
            "figures": produced.figures,
        },
    }
    write_json(folder / FINISHED, record)


def process_number() -> int:
    """This process among those torchrun started; 0 is the one that writes."""
    return int(os.environ.get("RANK", "0"))


def process_count() -> int:
    """How many processes torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def wait_for(folder: Path, timeout: float | None = None) -> Produced:
    """What the stage left, once the first process has recorded it."""
    begin = time.monotonic()
    while (found := read_finished(folder)) is None:
        if timeout is not None and time.monotonic() - begin > timeout:
            raise RankwellError(f"waited {timeout:.0f} s for {folder / FINISHED}")
        time.sleep(POLL_SECONDS)
    return found
