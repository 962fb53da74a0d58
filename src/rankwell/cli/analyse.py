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
    from rankwell.evaluation.compare import compare
    from rankwell.evaluation.depths import parse_depths, write_depths
    from rankwell.evaluation.tables import as_text

    wanted = None if depths is None else parse_depths(depths)
    names = [path.name.removesuffix(".gz") for path in (baseline, run)]
    if names[0] == names[1]:
        raise RankwellError(f"both runs are called {names[0]}; rename one, so that they can be told apart")
    found = {name: read_run(path, name=name) for name, path in zip(names, (baseline, run), strict=True)}
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
    comparison = compare(judgments, found, measures, baseline=names[0])
    tables = write_analysis(comparison, groups, out)
    if wanted is not None:
        first, reranked = found.values()
        tables.append(write_depths(judgments, first, reranked, comparison.measures, wanted, out))
    for table in tables:
        print(f"{as_text(table)}\n")
