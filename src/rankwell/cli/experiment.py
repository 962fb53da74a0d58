"""``rankwell experiment``: a recipe in many variants and seeds, and one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankwell.cli.options import Device, Result, output_folder


def experiment(
    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE",
            help="A suite: a YAML file, or the name of one that ships, such as drbert-table1.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", callback=output_folder, help="Output folder for all runs and tables.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change an option of all variants, as for train, or of the suite: `seeds`, `scale`, `baseline`, "
            "`candidates`, `measures`, `test`, `groups`, `evaluate_on`, `start.PATH`. May be repeated.",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="1,2,3", help="Seeds to use instead of the suite's.")
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", min=1, help="Number of variants to run at once, each in its own process, on the same device."
        ),
    ] = 1,
    device: Device = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the suite, data, models and stages, and list the stages.")
    ] = False,
) -> Result:
    """Train every variant of a suite with every seed, and compare them.

    Variants share the stages they have in common. Finished stages are not run again, and a failed variant does not stop
    the others. The tables are written to table.md and results.json, the values of each query to values.*.csv.gz;
    rankings/ has the first 100 documents of each query and training. Two processes may share the output folder: each
    waits for the stages that the other is running.

    Examples:

        rankwell experiment drbert-table1 --set data=my-data --jobs 4 --out table1

        rankwell experiment drbert-figure5 --set data=my-data --set start.data=other-text --seeds 1 --out figure5
    """
    from rankwell.training.recipe_files import find_recipe

    path = find_recipe(suite, "suite")  # before what takes long to import
    from rankwell.evaluation.tables import as_text
    from rankwell.training.experiments.experiment import planned_stages, read_suite, run_experiment
    from rankwell.training.recipe_reader import parse_setting
    from rankwell.training.stage import process_number
    from rankwell.training.stage_store import read_finished, stage_folder

    changes = [*(settings or ()), *([f"seeds=[{seeds}]"] if seeds is not None else [])]
    checked = read_suite(path, [parse_setting(text) for text in changes])
    if check:
        listed: set[str] = set()
        units: list[str] = []
        for unit, stages in planned_stages(checked, out).items():
            for planned in stages:
                if planned.key in listed:
                    state = "shared"
                else:
                    state = "to do" if read_finished(stage_folder(out, planned)) is None else "done"
                listed.add(planned.key)
                units.append(f"{unit}: {planned.folder_name}: {state}")
        print("\n".join(units))
        return {"out": str(out), "stages": units}
    report = print if process_number() == 0 else lambda line: None
    outcome = run_experiment(checked, out, device=device, jobs=jobs, say=report)
    if outcome.claims is not None:
        report(f"\nthe paper's claims\n{as_text(outcome.claims)}")
    result: Result = {"out": str(out), "failures": len(outcome.failures)}
    for place in outcome.compared:
        tables = outcome.table(place), *outcome.group_tables(place)
        result[str(place)] = [table.data for table in tables]
        for table in tables:
            report(f"\n{place}\n{as_text(table)}")
    if outcome.failures:
        raise typer.Exit(1)
    return result
