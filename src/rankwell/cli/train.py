"""``rankwell train``: from a recipe to a model and its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankwell.cli.options import Device


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a YAML file such as recipes/drbert.yaml.")],
    out: Annotated[Path, typer.Option("--out", help="Output folder for the model, its figures and all stages.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change an option of the recipe. `data=FOLDER` sets the data, `stages.NAME=off` skips a stage. "
            "May be repeated.",
        ),
    ] = None,
    queries: Annotated[
        str | None,
        typer.Option(
            "--queries",
            metavar="SPLIT",
            help="The split to train on; `generated` is the one that `rankwell expand --queries` writes.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue in --out even if it holds a recipe of another name.")
    ] = False,
    device: Device = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the recipe, data and model, and list the stages.")
    ] = False,
) -> None:
    """Train a ranker with a recipe.

    Finished stages are not run again, unless their options, or those of a stage before them, have changed.
    If interrupted, rerun the command to resume.

    **Examples**

        rankwell train recipes/drbert.yaml --set data=my-data --out my-model

        rankwell train recipes/drbert.yaml --set data=my-data --set stages.listwise.negatives=15
        --set stages.pretrain=off --out my-model

        torchrun --nproc-per-node 4 $(which rankwell) train recipes/monobert.yaml --set data=my-data --out my-model
    """
    from rankwell.evaluation.tables import as_text
    from rankwell.training.processes import process_number
    from rankwell.training.recipe_reader import read_recipe
    from rankwell.training.run import claim, plan_recipe, run_recipe
    from rankwell.training.stage_store import StageStore
    from rankwell.training.stages.blend import RERANK

    changes = [*(settings or ()), *([f"data.train={queries}"] if queries is not None else [])]
    checked = read_recipe(recipe, changes)
    if check:
        claim(out, checked, resume=resume)
        _, plan = plan_recipe(checked, out, device=device)
        for planned in plan:
            state = "to do" if StageStore(out).finished(planned) is None else "done"
            print(f"{planned.folder_name}: {state}")
        return
    say = print if process_number() == 0 else lambda line: None
    trained = run_recipe(checked, out, device=device, resume=resume, say=say)
    say(f"\n{as_text(trained.table)}")
    if trained.model is not None:
        say(f"\nmodel: {trained.model}")
    learned = [done.result.first_stage for done in trained.work.done if done.result.first_stage]
    if learned:
        say(f"\nfirst stage: {learned[-1]}")
    elif trained.last is not None and (found := checked.first_stage.search_options()):
        say(f"candidates as above: rankwell search INDEX QUERIES {found} --out RUN")
    if trained.work.done and (told := trained.work.done[-1].result.figures.get(RERANK)):
        say(f"re-rank with it as above: rankwell rerank RUN --queries Q --collection C --model {trained.model} {told}")
