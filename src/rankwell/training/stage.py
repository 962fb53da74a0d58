"""What a stage is: its kind, what it works with and what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Run
from rankwell.training.data.prepare import Prepared
from rankwell.training.recipe import Recipe, Stage

PARTS = frozenset({"collection", "train", "dev", "start", "inputs", "attention", "seed", "depth"})
"""The parts of a recipe and its data that a stage's result may depend on."""
TRAINING = PARTS - {"depth"}
"""Without ``evaluate.depth``, which is for measuring, and for what tunes shares on what is measured."""


@dataclass(frozen=True)
class Produced:
    """What a stage leaves: a checkpoint folder, the candidates that are kept (a TREC run), a first stage of its own (a
    folder with ``index`` and ``bm25.json``) in whose candidates later stages are trained and measured, figures.

    What is None stays as it was before the stage.
    """

    model: Path | None = None
    candidates: Path | None = None
    first_stage: Path | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """A stage that is finished, the checkpoint it started from and what it left."""

    stage: Stage
    start: Path
    produced: Produced


@dataclass(frozen=True, eq=False)
class Work:
    """What a stage works with: the recipe, the data, and what the stages before it left."""

    recipe: Recipe
    model: Path
    """The checkpoint to start from."""
    candidates: Path | None = None
    """The training candidates an earlier stage kept; None: all of the first stage's."""
    done: tuple[Done, ...] = ()
    prepared: Prepared | None = None
    device: str | None = None

    @property
    def data(self) -> Prepared:
        """Index, queries, judgments and candidates."""
        if self.prepared is None:
            raise RankwellError("this stage needs a collection with queries and judgments, and the recipe has none")
        return self.prepared

    @property
    def seed(self) -> int:
        """Fixes everything that is random."""
        return self.recipe.seed

    @property
    def changes(self) -> dict[str, Any]:
        """The recipe's inputs as :func:`~rankwell.models.checkpoints.folders.load_checkpoint` takes them."""
        model = self.recipe.model
        template = {name: getattr(model, name) for name in ("max_length", "max_query", "markers")}
        template |= {"name": model.template, "mark_unmatched_query": model.mark_unmatched_query}
        return {
            "template": template,
            "attention": model.attention,
            "attention_layers": model.attention_layers,
            "apart": model.apart,
            "similarity": model.similarity,
            **({"head": "score"} if model.similarity else {}),
            "pooler": model.pooler,
            "windows": "cut" if model.long_documents == "cut" else None,
        }

    @property
    def history(self) -> list[dict[str, Any]]:
        """The stages so far, as a checkpoint's ``rankwell.json`` records them."""
        records = []
        for one in self.done:
            options = one.stage.options.model_dump(mode="json", exclude_none=True)
            said = {name: value for name, value in options.items() if value != {}}
            records.append({"stage": one.stage.name, "kind": one.stage.kind, **said})
        return records


@dataclass(frozen=True)
class StageKind:
    """A kind of stage.

    ``run`` does the work in its folder, where it may keep what it needs to resume. ``check`` finds what would make it
    fail, before the first stage begins. ``measure`` gives the run of the dev queries by what the stage made; without
    it, the stage has no row of figures. ``reads`` says on which parts the result depends: the others may change without
    the work being done again. ``ranks``: whether it needs a collection, queries and judgments at all. ``finds``:
    whether it leaves a first stage of its own.
    """

    options: type[BaseModel]
    run: Callable[[Work, Any, Path], Produced]
    check: Callable[[Work, Any], None] | None = None
    measure: Callable[[Work, Produced], Run] | None = None
    reads: frozenset[str] = TRAINING
    ranks: bool = True
    finds: bool = False

    def __post_init__(self) -> None:
        if unknown := self.reads - PARTS:
            raise ValueError(f"no part of a recipe is called {', '.join(sorted(unknown))}")
