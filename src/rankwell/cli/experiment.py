"""``rankwell experiment``: a recipe in many variants and seeds, and one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def experiment(
    suite: Annotated[Path, typer.Argument(help="A suite: a YAML file such as recipes/suites/losses.yaml.")],
    out: Annotated[Path, typer.Option("--out", help="The folder for all runs and the tables.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change an option in all variants, as for train, or one of the suite: `seeds`, `baseline`, "
            "`candidates`, `measures`, `test`, `groups`, `evaluate_on`; may be repeated.",
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", metavar="1,2,3", help="Other seeds than the suite's.")] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="Variants at once, each in a process of its own, on the same device.")
    ] = 1,
    device: Annotated[str | None, typer.Option("--device", help="A torch device: cpu, cuda, cuda:1.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check suite, data, model and stages, and print the stages.")
    ] = False,
) -> None:
    """Train every variant of a suite with every seed, and compare them.

    Variants share the stages they have in common. What is finished is not run again, and a variant that fails does not
    stop the others. The tables are in table.md, table.csv, results.json and, query by query, queries.dev.csv.

    **Examples**

        rankwell experiment recipes/suites/table1.yaml --set data=my-data --out table1

        rankwell experiment recipes/suites/negatives.yaml --set data=my-data --seeds 1 --jobs 4 --out negatives
    """
    from rankwell.evaluation.tables import as_text
    from rankwell.training.experiments.experiment import planned_stages, read_suite, run_experiment
    from rankwell.training.processes import process_number
    from rankwell.training.recipe_reader import parse_setting
    from rankwell.training.stage_store import StageStore

    asked = [f"seeds=[{seeds}]"] if seeds is not None else []
    checked = read_suite(suite, [parse_setting(text) for text in (*(settings or ()), *asked)])
    if check:
        told: set[str] = set()
        for unit, stages in planned_stages(checked, out).items():
            for planned in stages:
                if planned.key in told:
                    state = "shared"
                else:
                    state = "to do" if StageStore(out).finished(planned) is None else "done"
                told.add(planned.key)
                print(f"{unit}: {planned.folder_name}: {state}")
        return
    say = print if process_number() == 0 else lambda line: None
    outcome = run_experiment(checked, out, device=device, jobs=jobs, say=say)
    for place in outcome.compared:
        for table in (outcome.table(place), *outcome.group_tables(place)):
            say(f"\n{place}\n{as_text(table)}")
    if outcome.failures:
        raise typer.Exit(1)
