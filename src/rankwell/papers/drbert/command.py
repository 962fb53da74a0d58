"""``rankwell types``: the kind of answer each query asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankwell.cli.options import COMMANDS, Device, IdField, Result, TextField, needs, output_file, reports


@COMMANDS.register("types")
def types(
    context: typer.Context,
    queries: Annotated[
        Path, typer.Argument(help="A file of queries, as `rankwell search` takes it.", metavar="QUERIES")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", callback=output_file, help="Output file (qid, tab, label). Default: only print the counts."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="A classifier's checkpoint folder. Default: rules on the words."),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="Known labels (qid, tab, label), which take precedence.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", help="Gold labels (qid, tab, label); prints the accuracy."),
    ] = None,
    device: Device = None,
    id_field: IdField = None,
    text_field: TextField = None,
) -> Result:
    """Label queries by the kind of answer they ask for: location, numeric, person, description or entity.

    A query that the rules cannot label has no type, and no line in the file.

    Examples:

        rankwell types queries.dev.tsv --out types.dev.tsv

        rankwell types queries.dev.tsv --model types-model --labels mine.tsv --out types.dev.tsv

        rankwell types queries.dev.tsv --model types-model --check types.gold.tsv
    """
    from collections import Counter
    from functools import partial

    from rankwell.core.errors import InputError
    from rankwell.corpus.formats import read_queries, read_types, write_types
    from rankwell.corpus.formats.fields import Columns
    from rankwell.corpus.query_types import QUERY_TYPES, rule_type

    needs(context, {"device": "model"})
    records = read_queries(queries, Columns(id_field, text_field))
    qids = {query.qid for query in records}

    def read_labels(path: Path) -> dict[str, str]:
        matching = {qid: label for qid, label in read_types(path).items() if qid in qids}
        if not matching:
            raise InputError(path, None, f"none of its queries is in {queries}")
        return matching

    known = read_labels(labels) if labels is not None else {}
    gold = read_labels(check) if check is not None else {}
    texts = {query.qid: query.text for query in records if query.qid not in known}
    order: tuple[str, ...] = QUERY_TYPES
    predicted: list[str | None]
    if model is None:
        predicted = [rule_type(text) for text in texts.values()]
    else:
        from rankwell.papers.drbert.query_types import Classifier

        classifier = Classifier.from_pretrained(model, engine={"device": device})
        predicted, order = [*classifier.predict(list(texts.values()))[0]], classifier.labels
    typed = dict(zip(texts, predicted, strict=True)) | known
    labelled = {query.qid: label for query in records if (label := typed[query.qid])}
    if out is not None:
        write_types(labelled, out)
    told = partial(print, file=reports(out))
    told(f"{out or queries}: {len(labelled):,} of {len(records):,} queries have a type")
    counts = Counter(typed[query.qid] or "none" for query in records)
    width = max(map(len, counts))
    for label in sorted(counts, key=lambda label: order.index(label) if label in order else len(order)):
        told(f"  {label.ljust(width)}  {counts[label]:>9,}  {counts[label] / len(records):6.1%}")
    result: Result = {"out": out, "queries": len(records), "types": counts}
    if gold:
        right = sum(typed[qid] == label for qid, label in gold.items())
        result |= {"accuracy": right / len(gold), "judged": len(gold)}
        told(f"accuracy {right / len(gold):.4f} ({len(gold):,} queries)")
    return result
