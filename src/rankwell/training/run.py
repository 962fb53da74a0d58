"""Running a recipe: check everything, then run and measure each stage that is not finished yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import TEMPORARY_PREFIX, atomic_text, remove_leftovers
from rankwell.core.locks import lock
from rankwell.core.manifest import write_json
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Run
from rankwell.evaluation.tables import Table, as_markdown, as_text
from rankwell.models.checkpoints.config import (
    HeadKind,
    RankerConfig,
    read_ranker_config,
)
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import DEFAULT, find_model, model_digest
from rankwell.training.data.prepare import Prepared, folder_digest, prepare
from rankwell.training.first_stage import with_first_stage
from rankwell.training.recipe import Recipe, RecipeStage
from rankwell.training.recipe_reader import read_recipe, read_yaml
from rankwell.training.recipe_results import (
    FIRST_STAGE,
    RERANK,
    Row,
    evaluate_split,
    measures_of,
    publish_model,
    stage_table,
)
from rankwell.training.stage import FinishedStage, Work, process_count, process_number, stage_kinds, write_once
from rankwell.training.stage_store import (
    PlannedStage,
    parts_of,
    plan_stages,
    read_finished,
    run_stage,
    stage_folder,
    stage_seconds,
)

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model.int8.safetensors")
_TRAINED = ("mono", "typed", "twin", "nli")
OWN_NAMES = {"recipe.yaml", "data", "stages", "model", "table.md", "results.json", "lock"}

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished recipe: what a further stage would be given, the table, and the model (or None)."""

    work: Work
    table: Table
    model: Path | None

    @property
    def last(self) -> FinishedStage | None:
        """The last stage that ranks documents."""
        return next((done for done in reversed(self.work.done) if done.run is not None), None)

    def summary(self) -> str:
        """The table, where the model is, and the command that re-ranks as the recipe did."""
        lines = [f"\n{as_text(self.table)}"]
        if self.model is not None:
            lines.append(f"\nmodel: {self.model}")
        if self.work.first_stage is not None:
            lines.append(f"\nfirst stage: {self.work.first_stage}")
        if self.work.done and (options := self.work.done[-1].result.figures.get(RERANK)):
            stages = self.work.done[-1].folder.parent
            options = options.replace(f"--encoder {stages.name}/", f"--encoder {stages}/")
            command = f"rankwell rerank RUN --queries Q --collection C --model {self.model} {options}"
            lines.append(f"re-rank with it as above: {command}")
        return "\n".join(lines)


def train(
    recipe: str | Path,
    out: str | Path,
    settings: Sequence[str] = (),
    *,
    device: str | None = None,
    resume: bool = False,
    say: Say = lambda line: None,
) -> Trained:
    """Run a recipe file, as ``rankwell train`` does; ``settings`` are values for ``--set``.

    >>> trained = train("drbert", "drbert", ["data=my-data"])         # doctest: +SKIP
    >>> trained.model                                                              # doctest: +SKIP
    """
    return run_recipe(read_recipe(recipe, settings), Path(out), device=device, resume=resume, say=say)


def run_recipe(
    recipe: Recipe,
    out: Path,
    *,
    pool: Path | None = None,
    device: str | None = None,
    resume: bool = False,
    say: Say = lambda line: None,
) -> Trained:
    """Run ``recipe`` in ``out``; finished stages are not run again. Recipes with one ``pool`` share stages.

    If another process is working in ``out``, raise or, with a ``pool``, wait for it.
    """
    claim(out, recipe, resume=resume)
    if process_number() > 0:
        return _run(recipe, out, pool or out, device, say)
    with lock(out, wait=pool is not None):
        # In a pool, others may be writing; so may the other processes of this run.
        remove_leftovers(out, below=pool is None and process_count() == 1)
        remove_leftovers(out / "data")
        return _run(recipe, out, pool or out, device, say)


def _run(recipe: Recipe, out: Path, pool: Path, device: str | None, say: Say) -> Trained:
    start, plan = plan_recipe(recipe, pool, device=device)
    writes = process_number() == 0
    if writes:
        with atomic_text(out / "recipe.yaml") as file:
            file.write(recipe.as_yaml())
    work, dev = start, start.prepared.dev if start.prepared else None
    measures, depth = measures_of(recipe), recipe.evaluate.depth
    rows = [] if dev is None else [Row(FIRST_STAGE, evaluate_split(dev, dev.run, measures, depth))]
    for planned in plan:
        stage, result = planned.stage, read_finished(stage_folder(pool, planned))
        state = "running" if result is None else "done before"
        say(f"stage {stage.number} of {len(plan)}, {stage.name}: {state}")
        if result is None:
            result = run_stage(pool, planned, work)
        folder = stage_folder(pool, planned)
        run = measured_run(work, stage, folder)
        evaluation = None if run is None or dev is None else evaluate_split(dev, run, measures, depth)
        work = _after(work, FinishedStage(stage, work, folder, result, run))
        rows.append(Row(stage.name, evaluation, stage_seconds(folder), result.figures))
        table = stage_table(recipe, dev, rows)
        if writes:
            with atomic_text(out / "table.md") as file:
                file.write(f"# {recipe.name}\n\n{as_markdown(table)}\n")
            write_json(out / "results.json", table.data)
    model = None
    if work.model != start.model:
        model = out / "model"
        if writes:
            figures = {}
            if rows[-1].evaluation is not None and dev is not None:
                figures = {f"{name} on {dev.name}": value for name, value in rows[-1].evaluation.mean.items()}
            publish_model(work.model, model, work.history, figures)
    return Trained(work, table, model)


def measured_run(work: Work, stage: RecipeStage[Any], folder: Path) -> Run | None:
    """The stage's dev run, computed once and stored in its ``folder``; None if the stage ranks nothing."""
    measure = stage_kinds()[stage.kind].measure
    if measure is None:
        return None
    path = work.dev_run_path(folder)
    return read_run(write_once(path, lambda: write_run(measure(work, stage, folder), path)), name=folder.name)


def plan_recipe(
    recipe: Recipe, pool: Path, *, device: str | None = None, prepared: Prepared | None = None, checked: bool = True
) -> tuple[Work, list[PlannedStage]]:
    """Check recipe, data and model; returns the inputs of the first stage, and all stages. Trains nothing.

    With ``prepared``, the data is not read again. Unless ``checked``, the stages' own checks are left out.
    """
    measures_of(recipe)
    start, kinds = check_start(recipe), stage_kinds()
    if prepared is None and any(kinds[stage.kind].ranks for stage in recipe.stages):
        prepared = prepare(recipe, pool, device=device)
    if prepared is None:
        data = {"collection": folder_digest(Path(recipe.data.folder))}
    else:
        data = {"collection": prepared.collection.digest, "train": prepared.train.digest, "dev": prepared.dev.digest}
    work = Work(recipe, start, prepared=prepared, device=device)
    plan = plan_stages(recipe, parts_of(recipe, model_digest(start), data))
    for planned in plan:
        check = kinds[planned.stage.kind].check
        if checked and check is not None and read_finished(stage_folder(pool, planned)) is None:
            check(work, planned.stage)
    return work, plan


def check_recipe(recipe: Recipe, out: Path, *, device: str | None = None, resume: bool = False) -> list[str]:
    """Check recipe, data and model as :func:`run_recipe` does, and list its stages: ``FOLDER: to do`` or ``done``."""
    claim(out, recipe, resume=resume)
    _, plan = plan_recipe(recipe, out, device=device)
    finished = (read_finished(stage_folder(out, planned)) for planned in plan)
    return [f"{p.folder_name}: {'to do' if done is None else 'done'}" for p, done in zip(plan, finished, strict=True)]


def check_start(recipe: Recipe) -> Path:
    """The folder of the start checkpoint. Raises unless it suits the recipe."""
    wanted = recipe.model
    folder = find_model(wanted.start)
    template = wanted.input_template()
    if template.name not in _TRAINED:
        known = ", ".join(_TRAINED)
        raise RankwellError(f"model.template is {template.name}, which is not for one query and document ({known} are)")
    checkpoint = describe(folder)
    if checkpoint.generates:
        problem = f"model.start is of type {checkpoint.family}, but recipes train encoders only"
        raise InputError(folder / "config.json", None, f"{problem}; language models can re-rank, not be trained")
    encoder = checkpoint.encoder_config() if checkpoint.is_own else None
    if encoder is not None and template.max_length > (limit := encoder.max_position_embeddings):
        raise RankwellError(f"model.max_length is {template.max_length}, but {folder} has {limit} positions")
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise InputError(folder, None, "no model.safetensors; weights are read from safetensors only")
    head: HeadKind = "score" if wanted.similarity else "two_logits"
    layers = RankerConfig(
        head=head, apart=wanted.apart, similarity=wanted.similarity, attention_layers=wanted.attention_layers
    )
    if encoder is not None:
        layers.check_layers(encoder.num_hidden_layers)
    config = read_ranker_config(folder)
    if config is not None and not wanted.adapt and wanted.start != DEFAULT:
        names = ("attention", "attention_layers", "apart", "similarity")
        compared = [(name, getattr(config, name), getattr(wanted, name)) for name in names]
        compared.append(("template", config.template.name, template.name))
        compared.append(("markers", config.template.markers, template.markers))
        for name, actual, expected in compared:
            if actual != expected:
                problem = f"a ranker of {name} {_word(actual)}, but the recipe's model.{name} is {_word(expected)}"
                raise InputError(folder, None, f"{problem}; set one to the other, or model.adapt to true")
    return folder


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _after(work: Work, done: FinishedStage) -> Work:
    """What the next stage is given."""
    prepared, result = work.prepared, done.result
    if prepared is not None and result.first_stage is not None:
        prepared = with_first_stage(prepared, result.first_stage, work.recipe.first_stage.depth, work.device)
    return replace(
        work,
        prepared=prepared,
        model=result.model or work.model,
        candidates=result.candidates or work.candidates,
        done=(*work.done, done),
    )


def claim(out: Path, recipe: Recipe, *, resume: bool) -> None:
    """Raise if ``out`` holds anything but this recipe's training."""
    if out.exists() and not out.is_dir():
        raise InputError(out, None, "is a file, expected a folder")
    if not out.exists():
        return
    if (out / "recipe.yaml").exists():
        name = read_yaml(out / "recipe.yaml").get("name")
        if name != recipe.name and not resume:
            problem = f"holds the recipe {name!r}, not {recipe.name!r}"
            raise InputError(out, None, f"{problem}; choose another folder, or use --resume to continue in this one")
    elif foreign := sorted({p.name for p in out.iterdir() if not p.name.startswith(TEMPORARY_PREFIX)} - OWN_NAMES):
        raise InputError(out, None, f"exists and was not made by training (it has {foreign[0]}); choose another folder")
