"""``rankwell demo``: the whole way, on the bundled sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankwell.corpus.records import Query, Run
    from rankwell.retrieve.index import Index

MEASURES = "RR(rel=2)@10 nDCG@10 R(rel=2)@100"
QUERY = "what kind of fish is bogue"
DEPTH = 10


def demo(
    out: Annotated[Path, typer.Option("--out", help="Where the demo's index and runs go.")] = Path("out/demo"),
) -> None:
    """Index, search, re-rank and evaluate the bundled sample, and show what came out.

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
    from rankwell.models import names
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
    files = {"BM25, plain words": "bm25-plain", "BM25": "bm25"}
    runs = {"BM25, plain words": words.search(queries), "BM25": stems.search(queries)}
    if names.default_is_usable():
        console.print(f"   {names.DEFAULT} re-ranks the best {DEPTH} of each")
        runs["re-ranked"] = _reranked(runs["BM25"], queries, stems)
        files["re-ranked"] = "reranked"
    elif names.SHIPPED.is_dir():
        console.print(f"   by BM25 alone; {names.DEFAULT} needs pip install 'rankwell[models]'", markup=False)
    for name, file in files.items():
        write_run(runs[name], out / f"{file}.run")
    print("\n" + as_text(comparison_table(compare(qrels, runs, MEASURES))) + "\n")

    console.print("[bold]4. Your own documents[/bold]")
    console.print("   rankwell index collection.tsv --out my-index", markup=False)
    console.print("   rankwell search my-index queries.tsv --out bm25.run", markup=False)
    console.print("   rankwell evaluate qrels.txt bm25.run", markup=False)


def _reranked(run: Run, queries: Sequence[Query], index: Index) -> Run:
    """The first of each ranking in the default model's order, the others below them as they were."""
    from rankwell.corpus.records import Ranking, Run
    from rankwell.rank.ranker import Ranker

    best = Ranker().rerank(run, queries, index, depth=DEPTH)
    whole = {qid: (*best[qid].docids, *ranking.docids[DEPTH:]) for qid, ranking in run.items()}
    return Run({qid: Ranking.of(docids, range(len(docids), 0, -1)) for qid, docids in whole.items()})
