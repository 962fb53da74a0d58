"""``rankwell demo``: every step, on the bundled sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwell.cli.answers import show_answers
from rankwell.cli.options import Result, output_folder

if TYPE_CHECKING:
    from rich.console import Console

    from rankwell.corpus.records import Query, Ranking
    from rankwell.retrieve.index import Index

MEASURES = "RR(rel=2)@10 nDCG@10 R(rel=2)@100"
QID = "D025"
SEARCHED, SHOWN = 1000, 3
OUT = Path("out/demo")


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Output folder for the index and runs.")] = OUT,
) -> Result:
    """Index, search and evaluate the bundled sample, and show the results.

    Example:

        rankwell demo
    """
    from rankwell import sample
    from rankwell.cli.answers import make_console
    from rankwell.corpus.datasets import open_dataset
    from rankwell.corpus.formats import write_run
    from rankwell.evaluation.compare import compare
    from rankwell.evaluation.tables import as_text, comparison_table
    from rankwell.models.checkpoints.names import DEFAULT, default_lacks
    from rankwell.rank.defaults import UNFITTED
    from rankwell.rank.system import System
    from rankwell.retrieve.index import Index

    if out != OUT:
        output_folder(out)
    console = make_console()
    dataset = open_dataset(sample.FOLDER)
    queries = dataset.queries("dev")

    console.print("[bold]1. Index[/bold] the bundled sample")
    index = Index.build(dataset.documents(), out / "index", overwrite=True)
    console.print(f"   {len(index):,} passages, {index.terms:,} terms in {out / 'index'}\n")

    query = next(query for query in queries if query.qid == QID)
    console.print(f"[bold]2. Search[/bold]  {query.text}")
    runs = {"BM25": System.of_index(index).search(queries, SEARCHED)}
    write_run(runs["BM25"], out / "bm25.run")
    _show(console, index, query, runs["BM25"][QID])

    lacks = default_lacks()
    console.print(f"\n[bold]3. Search by meaning, too[/bold], with {DEFAULT}, the default model")
    if lacks is None:
        runs["hybrid"] = System.of_index(index, hybrid=UNFITTED.share).search(queries, SEARCHED)
        write_run(runs["hybrid"], out / "hybrid.run")
        _show(console, index, query, runs["hybrid"][QID])
    else:
        console.print(f"   left out: {lacks}", markup=False, soft_wrap=True)

    console.print(f"\n[bold]4. Evaluate[/bold] {len(queries)} queries with graded judgments")
    table = comparison_table(compare(dataset.qrels("dev"), runs, MEASURES))
    print(f"\n{as_text(table)}\n")

    console.print("[bold]5. Your own documents[/bold]")
    for command, about in (
        ("index my-files --out my-index", "a csv, tsv, jsonl or parquet file, or a folder of texts"),
        ('search my-index "a question" --hybrid', "by words and by meaning"),
        ("serve my-index", "a page and an HTTP API; without my-index, this sample"),
        ("fit my-data --out my-system", "with judged queries or clicks: keeps what is better, and says by how much"),
    ):
        console.print(f"   rankwell {command:<40} # {about}", markup=False, soft_wrap=True)
    return {"out": str(out), **table.data}


def _show(console: Console, index: Index, query: Query, ranking: Ranking) -> None:
    """Print the top of a ranking."""
    from rankwell.rank.answers import match_answers, read_answers

    answers = read_answers(ranking.head(SHOWN), index)
    show_answers(console, answers, match_answers(query.text, answers, index), lines=2)
