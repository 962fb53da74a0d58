"""``rankwell fit``: from documents and judged queries to a search system."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from rankwell.cli.options import Device, IdField, Result, TextFields, TitleField, excludes, needs, resumable


def fit(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A data set: a folder with a collection, queries and qrels, or an id like irds:beir/scifact; or "
            "documents alone, as `rankwell index` takes them.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Output folder for the system.")],
    id_field: IdField = None,
    text_field: TextFields = None,
    title_field: TitleField = None,
    minutes: Annotated[float, typer.Option("--minutes", help="Time limit in minutes.")] = 20.0,
    device: Device = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed.")] = 1,
    measure: Annotated[
        str, typer.Option("--measure", metavar="MEASURE", help="Measure to choose by, in ir-measures notation.")
    ] = "RR@10",
    train: Annotated[
        str | None,
        typer.Option("--train", metavar="SPLIT", help="The split to fit to. Default: train, or the only one."),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(
            "--report",
            metavar="SPLIT",
            help="The split to report on. Default: dev, valid or test; without one, queries are set aside.",
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            "--run",
            metavar="SPLIT=FILE",
            help="What your engine returned for the queries of a split: a run, which is then what has to be beaten. "
            "Default: run.SPLIT.txt of DATA.",
        ),
    ] = None,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="MODEL",
            help="A model to try beside rankwell-mini: a bi-encoder, a cross-encoder or a language model, by its "
            "folder or name on the Hugging Face hub. Training starts from the best bi-encoder. Can be repeated.",
        ),
    ] = None,
    previous: Annotated[
        Path | None,
        typer.Option("--from", metavar="SYSTEM", help="A system to continue from: its models are tried, too."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="FOLDER",
            help="The log of `rankwell serve --log`: fit to its clicks, too, and write --out, which may be the system "
            "of --from, only if it is better on the last week.",
        ),
    ] = None,
    queries_from: Annotated[
        Literal["titles", "headings"] | None,
        typer.Option(
            "--queries-from",
            help="For data without judged queries: take the documents' titles, or Markdown headings, as queries.",
        ),
    ] = None,
) -> Result:
    """Fit a search system to your documents: first stage, re-ranker and weights.

    Tries steps from BM25 to a re-ranker. Each is measured on queries it was not fitted to, and kept only if it is
    significantly better than the cheaper one before it. Steps that do not fit into the time are skipped. The result is
    one folder with everything a search needs and a report. If interrupted, rerun the command to resume.

    With --log, exits with code 3 if nothing is better on the last week than the system of --from, which then stays.

    Examples:

        rankwell fit my-data --out my-system

        rankwell fit my-data --out my-system --minutes 60 --device cuda --measure nDCG@10

        rankwell fit my-data --out my-system --run train=elastic.train.jsonl --run dev=elastic.dev.jsonl

        rankwell fit my-data --out my-system --try BAAI/bge-reranker-base --try sentence-transformers/all-mpnet-base-v2

        rankwell fit my-data --from my-system --log searches --out my-system

        rankwell search my-system "how do bees keep warm"
    """
    needs(context, {"log": "previous"})
    if log is not None:
        excludes(context, "--log", "report", "run", "queries_from")
    with resumable():
        from rankwell.corpus.formats.fields import Columns
        from rankwell.training.fit.fit import fit as fit_system
        from rankwell.training.fit.refit import NotBetterError

        try:
            system = fit_system(
                data,
                out,
                columns=Columns(id_field, text_field, title_field),
                minutes=minutes,
                device=device,
                seed=seed,
                measure=measure,
                train=train,
                report=report,
                tries=tries or (),
                previous=previous,
                queries_from=queries_from,
                runs=run or (),
                log=log,
                say=partial(print, flush=True),  # so that a log shows each step when it is done
            )
        except NotBetterError as reason:
            print(reason)
            return {"out": str(out), "reason": str(reason), "exit_code": 3}
    return {"out": str(out), "describe": system.describe(), **system.card}
