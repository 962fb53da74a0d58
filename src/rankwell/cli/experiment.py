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
            "--set", metavar="PATH=VALUE", help="Change an option in all variants; may be repeated. As for train."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="A torch device: cpu, cuda, cuda:1.")] = None,
) -> None:
    """Train every variant of a suite with every seed, and compare them.

    Variants share the stages they have in common. What is finished is not run again, and a variant that fails does not
    stop the others. The tables are in table.md, table.csv and results.json.

    **Examples**

        rankwell experiment recipes/suites/drbert-ablations.yaml --set data=my-data --out ablations

        rankwell experiment recipes/suites/negatives.yaml --set data=my-data --set evaluate.depth=50 --out negatives
    """
    from rankwell.evaluation.tables import as_text
    from rankwell.training.experiment import read_suite, run_experiment
    from rankwell.training.recipe import parse_setting
    from rankwell.training.stage_store import process_number
    from rankwell.training.stages import STAGES

    options = {name: kind.options for name, kind in STAGES.items()}
    checked = read_suite(suite, options, [parse_setting(text) for text in settings or ()])
    say = print if process_number() == 0 else lambda line: None
    outcome = run_experiment(checked, STAGES, out, device=device, say=say)
    for place in outcome.compared:
        say(f"\n{place}\n{as_text(outcome.table(place))}")
    if outcome.failures:
        raise typer.Exit(1)
