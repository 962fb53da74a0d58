"""``rankwell analyse``: on which queries one run is better than another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwell.cli.options import IdField, Result, TextField, output_folder

if TYPE_CHECKING:
    from rankwell.corpus.formats.fields import Columns


def analyse(
    qrels: Annotated[Path, typer.Argument(help="Relevance judgments.", metavar="QRELS")],
    baseline: Annotated[Path, typer.Argument(help="The baseline run.", metavar="RUN")],
    run: Annotated[Path, typer.Argument(help="The run to compare with it.", metavar="RUN2")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", callback=output_folder, help="Output folder for tables, differences and pictures."),
    ],
    queries: Annotated[Path | None, typer.Option(help="The queries; adds tables by query length and type.")] = None,
    id_field: IdField = None,
    text_field: TextField = None,
    types: Annotated[
        Path | None, typer.Option(help="Query types (qid, tab, type). Default: assigned by rules.")
    ] = None,
    measures: Annotated[
        str, typer.Option("--measures", "-m", help="Measures in ir-measures notation; the first is broken down.")
    ] = "RR@10 nDCG@10 AP",
) -> Result:
    """Break down the difference between two runs by query, query length and query type.

    Example:

        rankwell analyse qrels.dev.txt base.run marked.run --queries queries.dev.tsv --out analysis
    """
    from rankwell.core.errors import RankwellError
    from rankwell.corpus.formats import read_qrels, read_run
    from rankwell.corpus.formats.fields import Columns
    from rankwell.evaluation.breakdowns import differences_file, query_differences, write_analysis
    from rankwell.evaluation.compare import compare, names_of_runs
    from rankwell.evaluation.tables import as_text
    from rankwell.plots.pictures import draw_differences, need_matplotlib

    unzipped = [Path(str(path).removesuffix(".gz")) for path in (baseline, run)]
    if unzipped[0] == unzipped[1]:
        raise RankwellError(f"both runs are {unzipped[0]}; expected a baseline and another run")
    need_matplotlib("rankwell analyse")
    named = zip((baseline, run), names_of_runs(unzipped), strict=True)
    first, second = (read_run(path, name=name) for path, name in named)
    groups = _groups_from_files(queries, types, Columns(id_field, text_field))
    judgments = read_qrels(qrels)
    comparison = compare(judgments, {first.name: first, second.name: second}, measures, baseline=first.name)
    measure = comparison.measures[0]
    tables = write_analysis(comparison, groups, out)
    gaps = [gap for _, gap in query_differences(comparison, second.name, measure)]
    picture = (out / differences_file(second.name)).with_suffix(".png")
    draw_differences(gaps, picture, title=f"{second.name} against {first.name}", measure=str(measure))
    for table in tables:
        print(f"{as_text(table)}\n")
    return {"out": str(out), "tables": [table.data for table in tables]}


def _groups_from_files(
    queries: Path | None, types: Path | None, columns: Columns | None = None
) -> dict[str, dict[str, frozenset[str]]]:
    """Group the queries by length and by type, if the files with these are given."""
    from rankwell.corpus.formats import read_queries, read_types
    from rankwell.corpus.query_types import rule_types
    from rankwell.evaluation.breakdowns import length_groups, type_groups

    groups = {}
    labels = {} if types is None else read_types(types)
    if queries is not None:
        texts = read_queries(queries, columns)
        groups["length"] = dict(length_groups(texts))
        if types is None:
            labels = rule_types(texts)
    if labels:
        groups["type"] = dict(type_groups(labels))
    return groups
