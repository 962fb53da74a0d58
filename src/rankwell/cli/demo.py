"""``rankwell demo``: the whole way, on the bundled sample."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MEASURES = "RR(rel=2)@10 nDCG@10 R(rel=2)@100"
QUERY = "what kind of fish is bogue"


def demo(
    out: Annotated[Path, typer.Option("--out", help="Where the demo's index and runs go.")] = Path("out/demo"),
) -> None:
    """Index, search and evaluate the bundled sample, and show what came out.

    **Example**

        rankwell demo
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from rankwell import sample
    from rankwell.corpus.analyser import Analyzer
    from rankwell.corpus.datasets import open_dataset
    from rankwell.corpus.formats import write_run
    from rankwell.evaluation.compare import compare
    from rankwell.evaluation.tables import as_text, comparison_table
    from rankwell.retrieve.index import Index

    console = Console(highlight=False)
    dataset = open_dataset(sample.FOLDER)
    queries, qrels = dataset.queries("dev"), dataset.qrels("dev")

    console.print("[bold]1. Index[/bold] the bundled sample, with stems, and with its words as they stand")
    stems = Index.build(dataset.documents(), out / "index", overwrite=True)
    words = Index.build(dataset.documents(), out / "index-plain", overwrite=True, analyzer=Analyzer.plain())
    console.print(f"   {len(stems):,} passages, {stems.terms:,} terms in {out / 'index'}\n")

    console.print(f"[bold]2. Search[/bold]  {QUERY}")
    wanted = set(stems.analyzer.terms(QUERY))
    for rank, (docid, score) in enumerate(stems.rank(QUERY, k=3), 1):
        passage = Text(stems.text(docid))
        for word in stems.analyzer.words(passage.plain):
            if word.term in wanted:
                passage.stylize("bold green", word.begin, word.end)
        passage.truncate(2 * (console.width - 6) - 12, overflow="ellipsis")
        console.print(f"   {rank}. {docid}  {score:.3f}")
        console.print(Padding(passage, (0, 0, 0, 6)))

    console.print(f"\n[bold]3. Evaluate[/bold] {len(queries)} queries with graded judgments")
    runs = {"BM25, plain words": words.search(queries), "BM25": stems.search(queries)}
    for name, run in (("bm25-plain", runs["BM25, plain words"]), ("bm25", runs["BM25"])):
        write_run(run, out / f"{name}.run")
    print("\n" + as_text(comparison_table(compare(qrels, runs, MEASURES))) + "\n")

    console.print("[bold]4. Your own documents[/bold]")
    console.print("   rankwell index collection.tsv --out my-index", markup=False)
    console.print("   rankwell search my-index queries.tsv --out bm25.run", markup=False)
    console.print("   rankwell evaluate qrels.txt bm25.run", markup=False)
