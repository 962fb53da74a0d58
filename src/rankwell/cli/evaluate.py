"""``rankwell evaluate``: the figures of one run or system, or the comparison of several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rankwell.cli.options import output_file

if TYPE_CHECKING:
    from rankwell.corpus.records import Qrels, Run

DEPTH = 1000


def evaluate(
    qrels: Annotated[Path, typer.Argument(help="Relevance judgments: TREC, BEIR, or csv.", metavar="QRELS")],
    runs: Annotated[
        list[Path], typer.Argument(help="Runs (TREC or MS MARCO files), systems or indexes.", metavar="RUN")
    ],
    queries: Annotated[
        Path | None, typer.Option(help="The queries for systems and indexes. Default: the words in QRELS.")
    ] = None,
    measures: Annotated[
        str, typer.Option("--measures", "-m", help="Measures in ir-measures notation, separated by spaces.")
    ] = "RR@10 nDCG@10 AP",
    baseline: Annotated[
        Path | None, typer.Option(help="The run to compare the others with. Default: the first.")
    ] = None,
    floor: Annotated[
        str | None, typer.Option(help="Least figures, such as 'RR@10 0.70'. Below them, the exit code is 1.")
    ] = None,
    rel: Annotated[
        int | None, typer.Option(min=0, help="Lowest relevant grade, for measures that do not state one.")
    ] = None,
    ignore_identical_ids: Annotated[
        bool,
        typer.Option("--ignore-identical-ids", help="Leave out documents with the query's own id, as BEIR does."),
    ] = False,
    average: Annotated[
        Literal["qrels", "both"], typer.Option(help="Average over all judged queries, or those that also have results.")
    ] = "qrels",
    test: Annotated[
        Literal["t", "wilcoxon", "randomisation"], typer.Option(help="Significance test for comparisons.")
    ] = "t",
    per_query: Annotated[bool, typer.Option("--per-query", help="Print the values of each query.")] = False,
    format: Annotated[
        Literal["text", "markdown", "csv", "latex", "json"], typer.Option(help="Output format.")
    ] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
    out: Annotated[Path | None, typer.Option(callback=output_file, help="Output file. Default: the terminal.")] = None,
) -> None:
    """Evaluate runs against relevance judgments.

    One run gives its figures; several are compared with the baseline, with Holm-corrected significance tests.
    A judged query without results counts as 0. A system or an index is searched first, 1,000 deep.

    Examples:

        rankwell evaluate qrels.txt bm25.run --measures "RR@10 nDCG@10 R@1000"

        rankwell evaluate qrels.txt mono.run listwise.run --baseline bm25.run --test randomisation

        rankwell evaluate judgments.csv my-system --floor "RR@10 0.70"

        rankwell evaluate qrels.dl19.txt bm25.run mono.run --measures "AP P@10" --rel 2 --format latex --out table.tex
    """
    from rankwell.core.files import atomic_text
    from rankwell.corpus.formats import read_qrels
    from rankwell.evaluation.compare import Comparison, compare, names_of_runs
    from rankwell.evaluation.evaluate import Evaluation
    from rankwell.evaluation.evaluate import evaluate as evaluate_run
    from rankwell.evaluation.floors import fallen_below, parse_floors
    from rankwell.evaluation.notation import parse_measures
    from rankwell.evaluation.tables import report
    from rankwell.evaluation.validate import validate

    floors = parse_floors(floor, rel=rel) if floor is not None else ()
    parsed = parse_measures([*parse_measures(measures, rel=rel), *(floor.measure for floor in floors)])
    paths = list(dict.fromkeys(runs if baseline is None or baseline in runs else [baseline, *runs]))
    doubts = [f"{path} was given {runs.count(path)} times; it is shown once" for path in paths if runs.count(path) > 1]
    judgments = read_qrels(qrels)
    names = dict(zip(paths, names_of_runs(paths), strict=True))
    named = {name: _run(path, name, qrels, judgments, queries) for path, name in names.items()}
    if ignore_identical_ids:
        named = {name: run.without_identical_ids() for name, run in named.items()}
    for name, run in named.items():
        doubts += [f"{name}: {problem.message}" for problem in validate(judgments, run, parsed)]

    result: Evaluation | Comparison
    if len(paths) == 1:
        (run,) = named.values()
        result = evaluate_run(judgments, run, parsed, average=average)
        evaluations = {run.name: result}
    else:
        against = None if baseline is None else names[baseline]
        result = compare(judgments, named, parsed, baseline=against, test=test, average=average)
        evaluations = dict(result.evaluations)
    text = report(result, "json" if as_json else format, per_query=per_query)
    if out is None:
        typer.echo(text)
    else:
        with atomic_text(out) as file:
            file.write(text + "\n")
    for doubt in doubts:
        typer.echo(f"warning: {doubt}", err=True)
    if fallen := list(fallen_below(floors, evaluations, None if baseline is None else evaluations[names[baseline]])):
        typer.echo("\n".join(fallen), err=True)
        raise typer.Exit(1)


def _run(path: Path, name: str, qrels: Path, judgments: Qrels, queries: Path | None) -> Run:
    """A run from a file, or what a system or an index finds for the judged queries."""
    from rankwell.core.errors import InputError
    from rankwell.corpus.formats import read_queries, read_run
    from rankwell.corpus.formats.pairs import judged_queries
    from rankwell.corpus.records import Run
    from rankwell.rank.system import System
    from rankwell.rank.texts import is_system
    from rankwell.retrieve.index import Index

    if not path.is_dir():
        return read_run(path, name=name)
    asked = read_queries(queries) if queries is not None else judged_queries(qrels)
    if asked is None:
        raise InputError(qrels, None, f"judgments without the words of queries; to search {path}, use --queries FILE")
    judged = [query for query in asked if query.qid in judgments]
    found = System.open(path).search(judged, k=DEPTH) if is_system(path) else Index.open(path).search(judged, k=DEPTH)
    return Run(found, name=name)
