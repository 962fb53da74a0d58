"""The contract of a stage kind: what a stage is given, what it produces, and the registry of all kinds.

A kind is one module of ``rankwell.training.stages``, its functions and ``STAGES.register``, and its options in
``rankwell.training.stage_options``, which are read without importing torch. Plugins have kinds of their own.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rankwell.core.errors import RankwellError
from rankwell.core.manifest import digest
from rankwell.core.registry import Registry
from rankwell.training.options import STAGE_OPTIONS, Options

if TYPE_CHECKING:
    from rankwell.corpus.records import Run
    from rankwell.training.data.prepare import Prepared
    from rankwell.training.recipe import Recipe, RecipeStage

T = TypeVar("T", bound=Options)

PARTS = frozenset({"collection", "train", "dev", "start", "inputs", "attention", "seed", "depth"})
"""The parts of a recipe and its data that a stage's result may depend on."""
TRAINING = PARTS - {"depth"}
"""All but ``evaluate.depth``, which matters only to stages that tune on the evaluated candidates."""
FINDING = frozenset({"collection", "train", "start", "seed"})
"""What stages read that learn a first stage."""


@dataclass(frozen=True)
class StageResult:
    """What a stage produces; None leaves what there was before it in place.

    ==================  ===========================================================================================
    ``model``           a checkpoint folder
    ``candidates``      a TREC run of the training candidates that later stages may use
    ``first_stage``     a folder with ``first-stage.json``; later stages train and measure on its candidates
    ``figures``         numbers for the table and the stage's record
    ==================  ===========================================================================================
    """

    model: Path | None = None
    candidates: Path | None = None
    first_stage: Path | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def places(self) -> dict[str, Path | None]:
        """The files and folders, by what they are."""
        return {"model": self.model, "candidates": self.candidates, "first_stage": self.first_stage}

    @property
    def missing(self) -> Path | None:
        """One of them that is not there; None if all are."""
        return next((place for place in self.places.values() if place is not None and not place.exists()), None)


@dataclass(frozen=True, eq=False)
class FinishedStage:
    """A finished stage: its inputs, its folder, its result, and its run of the dev queries (or None)."""

    stage: RecipeStage[Any]
    work: Work
    folder: Path
    result: StageResult
    run: Run | None = None


@dataclass(frozen=True, eq=False)
class Work:
    """What a stage is given: the recipe, the data, and the results of the stages before it."""

    recipe: Recipe
    model: Path
    """The checkpoint to start from."""
    candidates: Path | None = None
    """The training candidates that an earlier stage selected; None: all of the first stage's."""
    done: tuple[FinishedStage, ...] = ()
    prepared: Prepared | None = None
    device: str | None = None

    @property
    def data(self) -> Prepared:
        """Index, queries, judgments and candidates."""
        if self.prepared is None:
            raise RankwellError("this stage needs a collection with queries and judgments, and the recipe has none")
        return self.prepared

    @property
    def first_stage(self) -> Path | None:
        """The folder of the first stage that was learned last; None if none was."""
        return next((done.result.first_stage for done in reversed(self.done) if done.result.first_stage), None)

    @property
    def seed(self) -> int:
        """The recipe's random seed."""
        return self.recipe.seed

    @property
    def engine(self) -> dict[str, Any]:
        """The ``engine`` options of rankers."""
        return {"device": self.device}

    @property
    def computing(self) -> dict[str, Any]:
        """How :func:`~rankwell.training.loop.loop.train` computes: with the recipe's seed, on the given device."""
        return {"seed": self.seed, "device": self.device}

    def dev_run_path(self, folder: Path) -> Path:
        """Where the dev run of the stage in ``folder`` is stored."""
        dev = self.data.dev
        key = digest({"queries": dev.digest, "depth": self.recipe.evaluate.depth})
        return folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', dev.name)}-{key}.run.gz"

    @property
    def changes(self) -> dict[str, Any]:
        """The recipe's inputs as :func:`~rankwell.models.checkpoints.folders.load_checkpoint` takes them."""
        model = self.recipe.model
        return {
            "template": asdict(model.input_template()),
            "attention": model.attention,
            "attention_layers": model.attention_layers,
            "apart": model.apart,
            "similarity": model.similarity,
            **({"head": "score"} if model.similarity else {}),
            "pooler": model.pooler,
            "windows": "truncate" if model.long_documents == "cut" else None,
        }

    @property
    def history(self) -> list[dict[str, Any]]:
        """The stages so far, as a checkpoint's ``rankwell.json`` records them."""
        records = []
        for done in self.done:
            options = done.stage.options.model_dump(mode="json", exclude_none=True)
            non_empty = {name: value for name, value in options.items() if value != {}}
            records.append({"stage": done.stage.name, "kind": done.stage.kind, **non_empty})
        return records


@dataclass(frozen=True)
class StageKind(Generic[T]):
    """A kind of stage. Each function gets the stage of the recipe that it is called for.

    ================  ===============================================================================================
    ``run``           does the work in the stage's folder, where it may also store what it needs to resume
    ``check``         raises for whatever would make ``run`` fail; called before the first stage begins
    ``measure``       ranks the dev queries with the result in the stage's folder; without it, no row of figures
    ``reads``         the parts of recipe and data that the result depends on; changing others repeats no work
    ``ranks``         whether it needs a collection, queries and judgments
    ``finds``         whether it produces a first stage
    ``builds_index``  whether that has an index of its own, without texts
    ================  ===============================================================================================
    """

    options: type[T]
    run: Callable[[Work, RecipeStage[T], Path], StageResult]
    check: Callable[[Work, RecipeStage[T]], None] | None = None
    measure: Callable[[Work, RecipeStage[T], Path], Run] | None = None
    reads: frozenset[str] = TRAINING
    ranks: bool = True
    finds: bool = False
    builds_index: bool = False

    @property
    def leaves_ranker(self) -> bool:
        """Whether there is a ranker after the stage: it is measured, and not as a first stage."""
        return self.measure is not None and not self.finds

    def __post_init__(self) -> None:
        if unknown := self.reads - PARTS:
            raise ValueError(f"no part of a recipe is called {', '.join(sorted(unknown))}")


STAGES: Registry[StageKind[Any]] = Registry("stage kind")


@cache
def stage_kinds() -> Mapping[str, StageKind[Any]]:
    """Every stage kind by name. Those that ship are imported; those of plugins are when they are asked for."""
    _import_all("stages")
    return STAGES


def stage_options() -> Mapping[str, type[Options]]:
    """The options of every stage kind by name. A plugin may leave them to the stage kind itself."""
    _import_all("stage_options")
    others = {name: STAGES[name] for name in STAGES if name not in STAGE_OPTIONS} | dict(STAGES.registered())
    return {**STAGE_OPTIONS, **{name: kind.options for name, kind in others.items()}}


@cache
def _import_all(folder: str) -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).with_name(folder))]):
        importlib.import_module(f"rankwell.training.{folder}.{module.name}")


# The processes that ``torchrun`` starts


POLL_SECONDS = 0.2


def process_number() -> int:
    """The rank of this process; 0 is the one that writes."""
    return int(os.environ.get("RANK", "0"))


def process_count() -> int:
    """How many processes there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def write_once(path: Path, write: Callable[[], object]) -> Path:
    """Call ``write`` in the first process unless ``path`` exists already; the others wait for it. Returns ``path``.

    ``write`` must create ``path`` in one step, so that nobody sees half of it.
    """
    if process_number() == 0:
        if not path.exists():
            write()
    else:
        while not path.exists():
            time.sleep(POLL_SECONDS)
    return path
