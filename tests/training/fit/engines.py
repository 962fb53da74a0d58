"""Search engines that run here: each takes documents, and is then asked for the best 100 of a query.

Where an engine is missing, :class:`MissingError` says what would install it.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankwell.corpus.records import Document, Query, Run
from rankwell.models.bi_encoder import BiEncoder

Search = Callable[[str], Iterable[tuple[str, float]]]


class MissingError(Exception):
    """An engine is not installed."""


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@contextmanager
def sqlite(documents: Sequence[Document]) -> Iterator[Search]:
    """SQLite's full-text search, as docs/your-engine.md exports it."""
    engine = sqlite3.connect(":memory:")
    try:
        engine.execute("CREATE VIRTUAL TABLE docs USING fts5(id UNINDEXED, text, tokenize='porter')")
    except sqlite3.OperationalError:
        raise MissingError("this SQLite has no FTS5") from None
    engine.executemany("INSERT INTO docs VALUES (?, ?)", ((d.docid, d.text) for d in documents))
    found = "SELECT id, -rank FROM docs WHERE docs MATCH ? ORDER BY rank LIMIT 100"
    yield lambda text: engine.execute(found, [" OR ".join(f'"{word}"' for word in words_of(text))])
    engine.close()


@contextmanager
def tantivy(documents: Sequence[Document]) -> Iterator[Search]:
    """tantivy, the library behind Quickwit and ParadeDB."""
    try:
        import tantivy as library
    except ImportError:
        raise MissingError("pip install tantivy") from None
    schema = library.SchemaBuilder()
    schema.add_text_field("id", stored=True, tokenizer_name="raw")
    schema.add_text_field("text", tokenizer_name="en_stem")
    index = library.Index(schema.build())
    writer = index.writer()
    for document in documents:
        writer.add_document(library.Document(id=document.docid, text=document.text))
    writer.commit()
    index.reload()
    searcher = index.searcher()

    def search(text: str) -> list[tuple[str, float]]:
        query = index.parse_query(" ".join(words_of(text)), ["text"])
        return [(searcher.doc(place)["id"][0], score) for score, place in searcher.search(query, 100).hits]

    yield search


@contextmanager
def lancedb(documents: Sequence[Document]) -> Iterator[Search]:
    """LanceDB's full-text search."""
    try:
        import lancedb as library
    except ImportError:
        raise MissingError("pip install lancedb") from None
    with tempfile.TemporaryDirectory() as folder:
        rows = [{"id": document.docid, "text": document.text} for document in documents]
        table = library.connect(folder).create_table("docs", rows)
        table.create_fts_index("text", replace=True)

        def search(text: str) -> list[tuple[str, float]]:
            found = table.search(" ".join(words_of(text)), query_type="fts").limit(100).select(["id"]).to_list()
            return [(row["id"], row["_score"]) for row in found]

        yield search


@contextmanager
def postgres_server() -> Iterator[Any]:
    """A connection to a PostgreSQL server of its own."""
    try:
        import psycopg
    except ImportError:
        raise MissingError("pip install 'psycopg[binary]'") from None
    programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    if not programs:
        raise MissingError("apt-get install postgresql")
    folder = Path(tempfile.mkdtemp())
    # A server refuses to run as root; Debian's package has a user for it.
    user: dict[str, Any] = {"user": "postgres"} if os.geteuid() == 0 else {}
    if user:
        shutil.chown(folder, "postgres")

    def call(program: str, *arguments: str) -> None:
        command = [f"{programs[-1]}/{program}", "-D", f"{folder}/data", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)

    try:
        call("initdb", "--auth=trust", "--username=test", "--encoding=UTF8", "--no-sync")
        call("pg_ctl", "start", "-w", "-l", f"{folder}/log", "-o", f"-k {folder} -c listen_addresses=''")
        with psycopg.connect(host=str(folder), user="test", dbname="postgres", autocommit=True) as connection:
            yield connection
    finally:
        if (folder / "data" / "postmaster.pid").exists():
            call("pg_ctl", "stop", "-w", "-m", "immediate")
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgresql(documents: Sequence[Document]) -> Iterator[Search]:
    """PostgreSQL's full-text search."""
    with postgres_server() as connection:
        connection.execute("CREATE TABLE docs (id text, tsv tsvector)")
        with connection.cursor() as cursor:
            insert = "INSERT INTO docs VALUES (%s, to_tsvector('english', %s))"
            cursor.executemany(insert, [(d.docid, d.text) for d in documents])
        found = (
            "SELECT id, ts_rank_cd(tsv, query) AS score FROM docs, websearch_to_tsquery('english', %s) query "
            "WHERE tsv @@ query ORDER BY score DESC, id LIMIT 100"
        )
        yield lambda text: connection.execute(found, [" or ".join(words_of(text))])


@contextmanager
def pgvector(documents: Sequence[Document]) -> Iterator[Search]:
    """PostgreSQL's full-text search and pgvector's, joined by reciprocal ranks, as docs/your-engine.md does."""
    with postgres_server() as connection:
        try:
            connection.execute("CREATE EXTENSION vector")
        except connection.Error as error:
            if "vector.control" not in str(error) and "is not available" not in str(error):
                raise
            raise MissingError("apt-get install postgresql-15-pgvector, or that of another version") from None
        encoder = BiEncoder.from_pretrained("rankwell-mini", device="cpu")
        connection.execute("CREATE TABLE docs (id text, tsv tsvector, embedding vector(384))")
        with connection.cursor() as cursor:
            insert = "INSERT INTO docs VALUES (%s, to_tsvector('english', %s), %s::vector)"
            vectors = encoder.encode_documents([d.text for d in documents]).tolist()
            cursor.executemany(insert, [(d.docid, d.text, str(own)) for d, own in zip(documents, vectors, strict=True)])

        def values(text: str) -> list[str]:
            [vector] = encoder.encode_queries([text]).tolist()
            return [" or ".join(words_of(text)), str(vector)]

        yield lambda text: connection.execute(RANKS_JOINED, values(text))


RANKS_JOINED = """
WITH words AS (
  SELECT id, row_number() OVER (ORDER BY ts_rank_cd(tsv, query) DESC, id) AS place
  FROM docs, websearch_to_tsquery('english', %s) query WHERE tsv @@ query ORDER BY place LIMIT 100
), meaning AS (
  SELECT id, row_number() OVER (ORDER BY embedding <=> %s::vector, id) AS place FROM docs ORDER BY place LIMIT 100
)
SELECT id, sum(1.0 / (60 + place))::float AS score FROM (TABLE words UNION ALL TABLE meaning) AS both_lists
GROUP BY id ORDER BY score DESC, id LIMIT 100
"""
ENGINES = {
    "SQLite": sqlite,
    "tantivy": tantivy,
    "LanceDB": lancedb,
    "PostgreSQL": postgresql,
    "PostgreSQL with pgvector": pgvector,
}


def run_of(engine: str, documents: Sequence[Document], queries: Sequence[Query]) -> Run:
    """What an engine returns for queries."""
    with ENGINES[engine](documents) as search:
        return Run.from_scores({query.qid: dict(search(query.text)) for query in queries})
