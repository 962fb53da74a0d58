"""``rankwell types``: the kind of answer each query asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def types(
    queries: Annotated[Path, typer.Argument(help="Queries: tsv (id, text) or jsonl; .gz too.", metavar="QUERIES")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The types to write: qid, tab, label; without it, they are counted.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A classifier's checkpoint folder; without it, rules on the words.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="Labels you know (qid, tab, label): they win over the others.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option("--check", help="Compare with these labels (qid, tab, label): accuracy, confusion.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="A torch device: cpu, cuda, cuda:1.")] = None,
) -> None:
    """Say what kind of answer each query asks for: location, numeric, person, description or entity.

    A query that the rules cannot tell gets no type, and no line in the file.

    **Examples**

        rankwell types queries.dev.tsv --out types.dev.tsv

        rankwell types queries.dev.tsv --model types-model --labels mine.tsv --out types.dev.tsv

        rankwell types queries.dev.tsv --model types-model --check types.gold.tsv
    """
    from collections import Counter

    from rankwell.core.errors import InputError
    from rankwell.core.manifest import Manifest, file_digest
    from rankwell.corpus.formats import read_queries, read_types, write_types
    from rankwell.corpus.query_types import QUERY_TYPES, rule_types
    from rankwell.evaluation.confusion import NO_LABEL, Confusion

    if out is not None and out.is_dir():
        raise InputError(out, None, "is a folder, expected the file to write")
    asked = read_queries(queries)
    qids = {query.qid for query in asked}

    def known(path: Path) -> dict[str, str]:
        found = {qid: label for qid, label in read_types(path).items() if qid in qids}
        if not found:
            raise InputError(path, None, f"none of its queries is in {queries}")
        return found

    given = known(labels) if labels is not None else {}
    truth = known(check) if check is not None else {}
    # What the user knows need not be computed.
    texts = {query.qid: query.text for query in asked if query.qid not in given}
    order: tuple[str, ...] = QUERY_TYPES
    found: list[str | None]
    if model is None:
        found = rule_types(texts.values())
    else:
        from rankwell.rank.classify import Classifier

        classifier = Classifier.from_pretrained(model, engine={"device": device})
        found, order = [*classifier.predict(list(texts.values()))[0]], classifier.labels
    typed = dict(zip(texts, found, strict=True)) | given
    chosen = {query.qid: label for query in asked if (label := typed[query.qid])}
    if out is not None:
        write_types(chosen, out)
        data = {"queries": file_digest(queries)} | ({"labels": file_digest(labels)} if labels is not None else {})
        Manifest("types", {"model": model}, data).write_beside(out)
    print(f"{out or queries}: {len(chosen):,} of {len(asked):,} queries have a type")
    counts = Counter(typed[query.qid] or NO_LABEL for query in asked)
    width = max(map(len, counts))
    for label in sorted(counts, key=lambda label: order.index(label) if label in order else len(order)):
        print(f"  {label.ljust(width)}  {counts[label]:>9,}  {counts[label] / len(asked):6.1%}")
    if truth:
        print(Confusion.of([*truth.values()], (typed[qid] for qid in truth), order))
