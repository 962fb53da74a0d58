"""Carrying a recipe out: everything is checked, then stage after stage is done or found done, and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rankwell.core.errors import InputError, MissingExtraError, RankwellError
from rankwell.core.files import TEMPORARY_PREFIX, atomic_text, remove_leftovers
from rankwell.core.jsonfile import write_json
from rankwell.core.locks import lock
from rankwell.corpus.records import Run
from rankwell.evaluation.tables import Table, as_markdown
from rankwell.inputs.templates import Template
from rankwell.models.checkpoints.config import HeadKind, RankerConfig, read_encoder_config, read_ranker_config
from rankwell.models.checkpoints.names import find_model
from rankwell.training.data.prepare import Prepared, folder_digest, prepare
from rankwell.training.log import METRICS, plot_training
from rankwell.training.recipe import Recipe, read_recipe, read_yaml
from rankwell.training.results import (
    FIRST_STAGE,
    Row,
    evaluate_split,
    measured_run,
    measures_of,
    publish_model,
    stage_table,
)
from rankwell.training.stage import Done, Produced, StageKind, Work
from rankwell.training.stage_store import (
    Planned,
    StageStore,
    parts_of,
    plan_stages,
    process_number,
    stage_seconds,
)
from rankwell.training.stages.first import with_first_stage

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model.int8.safetensors")
_TRAINED = ("mono", "typed", "twin", "nli")
OWN_NAMES = {"recipe.yaml", "data", "stages", "model", "table.md", "results.json", "lock"}

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Measured:
    """What ranked the dev queries: the stage's kind, what it worked with, what it left and where."""

    kind: StageKind
    work: Work
    produced: Produced
    folder: Path
    run: Run


@dataclass(frozen=True, eq=False)
class Trained:
    """A recipe carried out; ``last`` is the last stage that could be measured, ``work`` is for a further one."""

    recipe: Recipe
    work: Work
    table: Table
    last: Measured | None
    model: Path | None


@dataclass(frozen=True, eq=False)
class Ready:
    """A recipe whose data, model and stages are checked: what is left is the work."""

    work: Work
    planned: list[Planned]
    store: StageStore


def train(
    recipe: str | Path,
    out: str | Path,
    settings: Sequence[str] = (),
    *,
    device: str | None = None,
    resume: bool = False,
    say: Say = lambda line: None,
) -> Trained:
    """Train by a recipe file, as the command does; ``settings`` are what ``--set`` takes.

    >>> trained = train("recipes/drbert.yaml", "drbert", ["data=my-data"])         # doctest: +SKIP
    >>> trained.model                                                              # doctest: +SKIP
    """
    from rankwell.training.stages.kinds import STAGES

    chosen = read_recipe(recipe, {name: kind.options for name, kind in STAGES.items()}, settings)
    return run_recipe(chosen, STAGES, Path(out), device=device, resume=resume, say=say)


def run_recipe(
    recipe: Recipe,
    kinds: Mapping[str, StageKind],
    out: Path,
    *,
    pool: Path | None = None,
    device: str | None = None,
    resume: bool = False,
    say: Say = lambda line: None,
) -> Trained:
    """Carry ``recipe`` out in ``out``; what is finished is not done again. Recipes with one ``pool`` share stages."""
    claim(out, recipe, resume=resume)
    if process_number() > 0:
        return _run(recipe, kinds, out, pool or out, device, say)
    with lock(out, wait=False):
        remove_leftovers(out)
        return _run(recipe, kinds, out, pool or out, device, say)


def _run(
    recipe: Recipe, kinds: Mapping[str, StageKind], out: Path, pool: Path, device: str | None, say: Say
) -> Trained:
    ready = make_ready(recipe, kinds, pool, device=device)
    writes = process_number() == 0
    if writes:
        with atomic_text(out / "recipe.yaml") as file:
            file.write(recipe.as_yaml())
    work, last = ready.work, None
    dev = work.prepared.dev if work.prepared else None
    measures, depth = measures_of(recipe), recipe.evaluate.depth
    rows = [] if dev is None else [Row(FIRST_STAGE, evaluate_split(dev, dev.run, measures, depth))]
    for planned in ready.planned:
        kind, stage = kinds[planned.stage.kind], planned.stage
        produced = ready.store.finished(planned)
        state = "running" if produced is None else "done before"
        say(f"stage {planned.number} of {len(ready.planned)}, {stage.name}: {state}")
        if produced is None:
            produced = ready.store.run(planned, kind, work)
            if writes:
                _draw_curve(ready.store.folder_of(planned), stage.name)
        folder = ready.store.folder_of(planned)
        evaluation = None
        run = measured_run(work, kind, produced, folder)
        if run is not None and dev is not None:
            last = Measured(kind, work, produced, folder, run)
            evaluation = evaluate_split(dev, run, measures, depth)
        work = _after(work, planned, produced)
        rows.append(Row(stage.name, evaluation, stage_seconds(folder), produced.figures))
        table = stage_table(recipe, dev, rows)
        if writes:
            with atomic_text(out / "table.md") as file:
                file.write(f"# {recipe.name}\n\n{as_markdown(table)}\n")
            write_json(out / "results.json", table.data)
    model = None
    if work.model != ready.work.model:
        model = out / "model"
        if writes:
            figures = {}
            if rows[-1].evaluation is not None and dev is not None:
                figures = {f"{name} on {dev.name}": value for name, value in rows[-1].evaluation.mean.items()}
            publish_model(work.model, model, work.history, figures)
    return Trained(recipe, work, table, last, model)


def _draw_curve(folder: Path, stage: str) -> None:
    """The loss and the validation figures of a stage that trained, as a picture beside its log."""
    if (folder / METRICS).is_file():
        with suppress(MissingExtraError, InputError):  # nothing to draw with, or nothing to draw
            plot_training(folder, folder / "training.png", title=stage)


def make_ready(
    recipe: Recipe,
    kinds: Mapping[str, StageKind],
    pool: Path,
    *,
    device: str | None = None,
    prepared: Prepared | None = None,
) -> Ready:
    """Find what is wrong with recipe, data or model before any work begins; ``prepared`` spares reading the data."""
    measures_of(recipe)
    start = check_start(recipe)
    ranks = any(kinds[stage.kind].ranks for stage in recipe.stages)
    if prepared is None and ranks:
        prepared = prepare(recipe, pool, device=device)
    if prepared is None:
        data = {"collection": folder_digest(Path(recipe.data.folder))}
    else:
        data = {"collection": prepared.collection.digest, "train": prepared.train.digest, "dev": prepared.dev.digest}
    work = Work(recipe, start, prepared=prepared, device=device)
    planned = plan_stages(recipe, kinds, parts_of(recipe, folder_digest(start), data))
    store = StageStore(pool)
    for one in planned:
        check = kinds[one.stage.kind].check
        if check is not None and store.finished(one) is None:
            check(work, one.stage.options)
    return Ready(work, planned, store)


def check_start(recipe: Recipe) -> Path:
    """The folder of the checkpoint to start from, which must suit the recipe."""
    chosen = recipe.model
    folder = find_model(chosen.start)
    template = Template(
        chosen.template, chosen.max_length, chosen.max_query, chosen.markers, chosen.mark_unmatched_query
    )
    if template.name not in _TRAINED:
        known = ", ".join(_TRAINED)
        raise RankwellError(f"model.template is {template.name}, which is not for one query and document ({known} are)")
    encoder = read_encoder_config(folder)
    if template.max_length > encoder.max_position_embeddings:
        limit = encoder.max_position_embeddings
        raise RankwellError(f"model.max_length is {template.max_length}, but {folder} has {limit} positions")
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise InputError(folder, None, "no model.safetensors; weights are read from safetensors only")
    head: HeadKind = "score" if chosen.similarity else "two_logits"
    read = RankerConfig(
        head=head, apart=chosen.apart, similarity=chosen.similarity, attention_layers=chosen.attention_layers
    )
    read.check_layers(encoder.num_hidden_layers)
    own = read_ranker_config(folder)
    if own is not None and not chosen.adapt:
        names = ("attention", "attention_layers", "apart", "similarity")
        wanted: dict[str, object] = {name: getattr(chosen, name) for name in names}
        wanted |= {"template": template.name, "markers": template.markers}
        found: dict[str, object] = {name: getattr(own, name) for name in names}
        found |= {"template": own.template.name, "markers": own.template.markers}
        for name, value in wanted.items():
            if found[name] != value:
                problem = f"a ranker of {name} {_word(found[name])}, but the recipe's model.{name} is {_word(value)}"
                raise InputError(folder, None, f"{problem}; set one to the other, or model.adapt to true")
    return folder


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _after(work: Work, planned: Planned, produced: Produced) -> Work:
    """What the next stage works with."""
    prepared = work.prepared
    if prepared is not None and produced.first_stage is not None:
        prepared = with_first_stage(prepared, produced.first_stage, work.recipe.first_stage.depth)
    return replace(
        work,
        prepared=prepared,
        model=produced.model or work.model,
        candidates=produced.candidates or work.candidates,
        done=(*work.done, Done(planned.stage, work.model, produced)),
    )


def claim(out: Path, recipe: Recipe, *, resume: bool) -> None:
    """Refuse a folder that holds something else."""
    if out.exists() and not out.is_dir():
        raise InputError(out, None, "is a file, expected a folder")
    if not out.exists():
        return
    if (out / "recipe.yaml").exists():
        found = read_yaml(out / "recipe.yaml").get("name")
        if found != recipe.name and not resume:
            problem = f"holds the recipe {found!r}, not {recipe.name!r}"
            raise InputError(out, None, f"{problem}; choose another folder, or say --resume to go on in this one")
    elif foreign := sorted(path.name for path in out.iterdir() if not _is_own(path.name)):
        raise InputError(out, None, f"exists and was not made by training (it has {foreign[0]}); choose another folder")


def _is_own(name: str) -> bool:
    return name in OWN_NAMES or name.startswith(TEMPORARY_PREFIX)
