"""``rankwell train``: from a recipe to a model and its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankwell.cli.options import Device, Result, output_folder, resumable


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A recipe: a YAML file, or the name of one that ships, such as listwise."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", callback=output_folder, help="Output folder for the model, its figures and all stages."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change an option of the recipe. `data=FOLDER` sets the data, `stages.NAME=off` skips a stage. "
            "May be repeated.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue in --out even if it holds a recipe of another name.")
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin",
            metavar="MODULE",
            help="Import a module with your own stage kinds or losses. May be repeated.",
        ),
    ] = None,
    device: Device = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the recipe, data and model, and list the stages.")
    ] = False,
) -> Result:
    """Train a ranker with a recipe.

    Finished stages are not run again, unless their options, or those of a stage before them, have changed.
    If interrupted, rerun the command to resume.

    Examples:

        rankwell train drbert --set data=my-data --out my-model

        rankwell train my-recipe.yaml --set data=my-data --set stages.listwise.negatives=15
        --set stages.pretrain=off --out my-model

        torchrun --nproc-per-node 4 $(which rankwell) train monobert --set data=my-data --out my-model
    """
    from rankwell.training.recipe_files import find_recipe

    path = find_recipe(recipe)
    from rankwell.core.registry import load_plugin
    from rankwell.training.recipe_reader import read_recipe

    for module in plugin or ():
        load_plugin(module)
    checked = read_recipe(path, settings or ())  # before what takes long to import
    from rankwell.training.run import check_recipe, run_recipe
    from rankwell.training.stage import process_number

    if check:
        stages = check_recipe(checked, out, device=device, resume=resume)
        print("\n".join(stages))
        return {"out": str(out), "stages": stages}
    say = print if process_number() == 0 else lambda line: None
    with resumable():
        trained = run_recipe(checked, out, device=device, resume=resume, say=say)
        say(trained.summary())
    return {"out": str(out), "model": trained.model, **trained.table.data}
