"""``rankwell demo``: every step, on the bundled sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from rankwell.corpus.records import Query, Ranking, Run
    from rankwell.retrieve.index import Index

MEASURES = "RR(rel=2)@10 nDCG@10 R(rel=2)@100"
QID = "D025"
SHARE = 0.7
DEPTH = 10
SHOWN = 3


def demo(
    out: Annotated[Path, typer.Option("--out", help="Output folder for the index and runs.")] = Path("out/demo"),
) -> None:
    """Index, search, re-rank and evaluate the bundled sample, and show the results.

    **Example**

        rankwell demo
    """
    from rich.console import Console

    from rankwell import sample
    from rankwell.corpus.analyser import Analyzer
    from rankwell.corpus.datasets import open_dataset
    from rankwell.corpus.formats import write_run
    from rankwell.evaluation.compare import compare
    from rankwell.evaluation.tables import as_text, comparison_table
    from rankwell.models.checkpoints.names import DEFAULT, default_lacks
    from rankwell.rank.fusion import Shares
    from rankwell.retrieve.index import Index

    console = Console(highlight=False)
    dataset = open_dataset(sample.FOLDER)
    queries, qrels = dataset.queries("dev"), dataset.qrels("dev")

    console.print("[bold]1. Index[/bold] the bundled sample, with stems, and with its words as they stand")
    stems = Index.build(dataset.documents(), out / "index", overwrite=True)
    words = Index.build(dataset.documents(), out / "index-plain", overwrite=True, analyzer=Analyzer.plain())
    console.print(f"   {len(stems):,} passages, {stems.terms:,} terms in {out / 'index'}\n")

    query = next(query for query in queries if query.qid == QID)
    console.print(f"[bold]2. Search[/bold]  {query.text}")
    files = {"BM25, plain words": "bm25-plain", "BM25": "bm25"}
    runs = {"BM25, plain words": words.search(queries), "BM25": stems.search(queries)}
    _show(console, stems, query, runs["BM25"][QID])

    lacks = default_lacks()
    console.print(f"\n[bold]3. Search by meaning, too[/bold], with {DEFAULT}, the default model")
    if lacks is None:
        from rankwell.models.bi_encoder import BiEncoder
        from rankwell.rank.dense import DenseRanker
        from rankwell.rank.hybrid import search_hybrid
        from rankwell.rank.pipeline import Fuse, Given, Rerank
        from rankwell.rank.ranker import Ranker

        dense = DenseRanker(BiEncoder.from_pretrained(DEFAULT))
        hybrid = runs["hybrid"] = search_hybrid(stems, dense, queries, SHARE)
        _show(console, stems, query, hybrid[QID])
        together = "the same model, reading query and passage together"
        console.print(f"\n[bold]4. Re-rank[/bold] the best {DEPTH} with {together}")
        pipeline = (
            Given(hybrid.head(DEPTH))
            >> Rerank(Ranker(), stems)
            >> Fuse(Shares(model=0.5, first=0.5, normalise="z-score"))
        )
        best = pipeline.run(queries)
        _show(console, stems, query, best[QID])
        runs["hybrid, re-ranked"] = _above(best, hybrid)
        files |= {"hybrid": "hybrid", "hybrid, re-ranked": "reranked"}
    else:
        console.print(f"   left out, and 4. Re-rank: {lacks}", markup=False, soft_wrap=True)

    console.print(f"\n[bold]5. Evaluate[/bold] {len(queries)} queries with graded judgments")
    for name, file in files.items():
        write_run(runs[name], out / f"{file}.run")
    print("\n" + as_text(comparison_table(compare(qrels, runs, MEASURES))) + "\n")

    console.print("[bold]6. Your own documents[/bold]")
    commands = ["index collection.tsv --out my-index", "search my-index queries.tsv --out bm25.run"]
    again = ""
    if lacks is None:
        both = "--fuse 0.5 --normalise z-score"
        commands += [
            f"search my-index queries.tsv --hybrid {SHARE} --k 100 --out hybrid.run",
            f"rerank hybrid.run --queries queries.tsv --collection my-index {both} --out best.run",
        ]
        again = " hybrid.run best.run"
    commands += [
        f"evaluate qrels.txt bm25.run{again}",
        "serve    # the sample as a page; --index and --model serve yours",
    ]
    for command in commands:
        console.print(f"   rankwell {command}", markup=False, soft_wrap=True)


def _show(console: Console, index: Index, query: Query, ranking: Ranking) -> None:
    """The first of a ranking, with the query's words in colour."""
    from rich.padding import Padding
    from rich.text import Text

    wanted = set(index.analyzer.terms(query.text))
    for rank, (docid, score) in enumerate(ranking.head(SHOWN), 1):
        passage = Text(index.text(docid))
        for word in index.analyzer.words(passage.plain):
            if word.term in wanted:
                passage.stylize("bold green", word.begin, word.end)
        passage.truncate(2 * (console.width - 6) - 12, overflow="ellipsis")
        console.print(f"   {rank}. {docid}  {score:.3f}")
        console.print(Padding(passage, (0, 0, 0, 6)))


def _above(best: Run, run: Run) -> Run:
    """The re-ranked documents of each query above its others, which stay in their order."""
    from rankwell.corpus.records import Ranking, Run

    whole = {qid: (*best[qid].docids, *ranking.docids[len(best[qid]) :]) for qid, ranking in run.items()}
    return Run({qid: Ranking.of(docids, range(len(docids), 0, -1)) for qid, docids in whole.items()})
