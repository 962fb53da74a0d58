"""``rankwell tune``: k1 and b for a collection, chosen by cross-validation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from rankwell.cli.options import (
    Device,
    EncoderOption,
    IdField,
    PrecisionOption,
    Result,
    TextField,
    Threads,
    needs,
    output_file,
    reports,
)
from rankwell.models.checkpoints.names import DEFAULT


def tune(
    context: typer.Context,
    index: Annotated[
        Path, typer.Argument(metavar="INDEX|SYSTEM", help="An index, or a system, whose index is searched.")
    ],
    queries: Annotated[Path, typer.Argument(metavar="QUERIES", help="Development queries.")],
    qrels: Annotated[Path, typer.Argument(metavar="QRELS", help="Their relevance judgments.")],
    id_field: IdField = None,
    text_field: TextField = None,
    measure: Annotated[str, typer.Option("--measure", metavar="MEASURE", help="Measure to maximise.")] = "RR@10",
    k1: Annotated[
        str,
        typer.Option("--k1", metavar="VALUES", help="Values of k1 to try: FIRST:LAST:STEP, or separated by commas."),
    ] = "0.3:2.1:0.3",
    b: Annotated[
        str, typer.Option("--b", metavar="VALUES", help="Values of b to try, in the same form.")
    ] = "0.1:0.9:0.1",
    weight: Annotated[
        str,
        typer.Option(
            "--weight", metavar="VALUES", help="Weights of titles to try, where documents have titles; 1 tries none."
        ),
    ] = "1,2,3,5",
    folds: Annotated[int, typer.Option("--folds", help="Number of cross-validation folds.")] = 5,
    seed: Annotated[int, typer.Option("--seed", help="Seed for assigning queries to folds.")] = 0,
    threads: Threads = 0,
    hybrid: Annotated[
        bool, typer.Option("--hybrid", help="Also tune the weight of a bi-encoder, for search --hybrid.")
    ] = False,
    encoder: EncoderOption = None,
    device: Device = None,
    precision: PrecisionOption = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", callback=output_file, help="Write all figures to this file as JSON.")
    ] = None,
) -> Result:
    """Tune k1 and b, and with --hybrid a bi-encoder's weight, on development queries.

    Where documents have titles, also tries to build the index with a weight of titles, in a temporary folder.

    Report the cross-validated figure: each fold is measured with the values that did best on the others.

    Examples:

        rankwell tune my-index queries.dev.tsv qrels.dev.txt --measure nDCG@10

        rankwell tune my-index queries.dev.tsv qrels.dev.txt --k1 0.9 --b 0.4 --hybrid
    """
    from rankwell.core.manifest import write_json
    from rankwell.corpus.formats import read_qrels, read_queries
    from rankwell.corpus.formats.fields import Columns
    from rankwell.models.devices import Computing
    from rankwell.rank.rankers import open_encoder
    from rankwell.rank.texts import find_index
    from rankwell.retrieve.bm25_tuning import (
        as_point,
        build_options,
        choose_analyzer,
        grid_table,
        other_analyzers,
        parse_values,
        tune_bm25,
    )
    from rankwell.retrieve.index import Index

    columns = Columns(id_field, text_field)
    needs(context, dict.fromkeys(("encoder", "device", "precision"), "hybrid"))
    bi_encoder = open_encoder(encoder or DEFAULT, Computing(device, precision)) if hybrid else None
    opened, records = Index.open(find_index(index) or index), read_queries(queries, columns)
    judgments = read_qrels(qrels)
    choice: dict[str, Any] = {
        "measure": measure,
        "folds": folds,
        "seed": seed,
        "threads": threads or os.cpu_count() or 1,
    }
    analyzers = other_analyzers(opened, parse_values(weight))
    tuning = tune_bm25(opened, records, judgments, k1=parse_values(k1), b=parse_values(b), **choice)
    print(grid_table(tuning), file=reports(out))
    record = tuning.as_dict(as_point)
    if analyzers:
        builds, _ = choose_analyzer(opened, analyzers, records, judgments, tuning.best, **choice)
        table = builds.table("what the index is built with, searched so", build_options, name=build_options)
        print(f"\n{table}", file=reports(out))
        record["index"] = builds.as_dict(lambda analyzer: {"title_weight": analyzer.title_weight})
    if bi_encoder is not None:
        from rankwell.rank.dense import DenseRanker, share_table, tune_hybrid

        shares = tune_hybrid(opened, DenseRanker(bi_encoder), records, judgments, tuning.best, **choice)
        print("\n" + share_table(shares), file=reports(out))
        record["hybrid"] = shares.as_dict(lambda setting: {"share": setting.similarity})
    if out:
        write_json(out, record)
    return record
