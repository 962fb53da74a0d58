"""Titles or headings as queries, for documents without judged queries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder
from rankwell.corpus.datasets import Dataset
from rankwell.corpus.formats import write_documents, write_qrels, write_queries
from rankwell.corpus.records import Document, Qrels, Query

Kind = Literal["titles", "headings"]
MOST = 20_000
"""Queries that are drawn at most."""
_HEADING = re.compile(r"^#{1,6}\s+(\S.*?)\s*#*$", re.MULTILINE)


def headed(document: Document, kind: Kind) -> tuple[list[str], Document]:
    """A document's title, with ``headings`` also its Markdown headings, and the document without them.

    >>> headed(Document("d", "# Bees\\nThey shiver."), "headings")
    (['Bees'], Document(docid='d', text='They shiver.', title=''))
    """
    titles = [document.title] if document.title.strip() else []
    if kind == "titles":
        return titles, Document(document.docid, document.text)
    rest = " ".join(_HEADING.sub(" ", document.text).split())
    return titles + _HEADING.findall(document.text), Document(document.docid, rest)


def write_headed(dataset: Dataset, kind: Kind, folder: Path, seed: int) -> None:
    """Write documents without titles or headings, and these as judged queries of the split ``train``; made once."""
    if folder.exists():
        return
    queries: list[Query] = []
    grades: dict[str, dict[str, int]] = {}

    def documents() -> Iterator[Document]:
        for document in dataset.documents():
            texts, rest = headed(document, kind)
            for text in texts if rest.text.strip() else []:
                queries.append(Query(f"{kind}-{len(queries) + 1}", text))
                grades[queries[-1].qid] = {document.docid: 1}
            yield rest

    with atomic_folder(folder) as temporary:
        write_documents(documents(), temporary / "corpus.jsonl")
        if not queries:
            other = "`rankwell expand --queries` writes queries for documents, to train with"
            raise RankwellError(f"--queries-from {kind}: no document of {dataset.name} has any; {other}")
        order = np.random.default_rng([seed, len(queries)]).permutation(len(queries))[:MOST]
        drawn = [queries[place] for place in sorted(order.tolist())]
        write_queries(drawn, temporary / "queries.train.jsonl")
        write_qrels(
            Qrels({query.qid: grades[query.qid] for query in drawn}), temporary / "qrels.train.tsv", format="beir"
        )
