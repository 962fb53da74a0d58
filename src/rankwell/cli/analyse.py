"""``rankwell analyse``: on which queries one run is better than another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def analyse(
    qrels: Annotated[Path, typer.Argument(help="The judgments.", metavar="QRELS")],
    baseline: Annotated[Path, typer.Argument(help="The run to compare with.", metavar="RUN")],
    run: Annotated[Path, typer.Argument(help="The run that is compared.", metavar="RUN2")],
    out: Annotated[Path, typer.Option("--out", help="The folder for tables, differences and their picture.")],
    queries: Annotated[
        Path | None, typer.Option(help="The queries: adds the figures by their length and type.")
    ] = None,
    types: Annotated[Path | None, typer.Option(help="The queries' types; without it, by rules.")] = None,
    measures: Annotated[
        str, typer.Option("--measures", "-m", help="Measures in ir-measures notation; the first is taken apart.")
    ] = "RR@10 nDCG@10 AP",
    depths: Annotated[
        str | None,
        typer.Option(help="Where RUN2 re-ranks RUN: its figures had only so many candidates been re-ranked."),
    ] = None,
) -> None:
    """Take the difference between two runs apart: query by query, by query length, by query type and by depth.

    **Examples**

        rankwell analyse qrels.dev.txt base.run marked.run --queries queries.dev.tsv --out analysis

        rankwell analyse qrels.dev.txt bm25.run bert.run --depths 10,20,50,100 --out analysis
    """
    from rankwell.core.errors import RankwellError
    from rankwell.corpus.formats import read_qrels, read_queries, read_run, read_types
    from rankwell.corpus.query_types import rule_types
    from rankwell.evaluation.breakdowns import Groups, length_groups, type_groups, write_analysis
    from rankwell.evaluation.compare import compare, names_of_runs
    from rankwell.evaluation.depths import compare_depths, parse_depths, write_depths
    from rankwell.evaluation.pictures import need_matplotlib
    from rankwell.evaluation.tables import as_text

    wanted = None if depths is None else parse_depths(depths)
    unzipped = [Path(str(path).removesuffix(".gz")) for path in (baseline, run)]
    if unzipped[0] == unzipped[1]:
        raise RankwellError(f"both runs are {unzipped[0]}; expected the run to compare with, then another")
    need_matplotlib("rankwell analyse")
    named = zip((baseline, run), names_of_runs(unzipped), strict=True)
    first, second = (read_run(path, name=name) for path, name in named)
    groups: dict[str, Groups] = {}
    labels = {} if types is None else read_types(types)
    if queries is not None:
        asked = read_queries(queries)
        groups["length"] = length_groups(asked)
        if types is None:
            guessed = zip(asked, rule_types(query.text for query in asked), strict=True)
            labels = {query.qid: label for query, label in guessed if label is not None}
    if labels:
        groups["type"] = type_groups(labels)
    judgments = read_qrels(qrels)
    comparison = compare(judgments, {first.name: first, second.name: second}, measures, baseline=first.name)
    # Before anything is written, so that runs that do not fit leave nothing half done.
    by_depth = wanted and compare_depths(judgments, first, second, comparison.measures, wanted)
    tables = write_analysis(comparison, groups, out)
    if by_depth:
        tables.append(write_depths(by_depth, second.name, out))
    for table in tables:
        print(f"{as_text(table)}\n")
