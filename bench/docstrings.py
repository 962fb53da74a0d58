"""Search in 1,500 docstrings of Python's standard library, beside SQLite's FTS5 with its default tokenizer.

    python bench/docstrings.py [--out docs/results/languages/docstrings.json]

A document is a function's or class's dotted name, as its title, with its docstring less the first sentence, which is
the question of 200 of them. FTS5 gets the question's words, joined by OR.
"""

from __future__ import annotations

import ast
import random
import re
import sqlite3
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from harness import Table, machine, make_parser, write_json
from rankwell import Analyzer, Document, Index, Qrels, Query, Run, evaluate

DOCUMENTS, QUESTIONS = 1500, 200
MEASURED = ["RR@10", "R@10", "R@100"]
LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3"}


def docstrings(folder: Path) -> Iterator[tuple[str, str, str]]:
    """The name, first sentence and rest of every docstring that has more than one sentence."""
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if LEFT_OUT & set(parts):
            continue
        module = ".".join(part for part in parts if part != "__init__")
        stack: list[tuple[str, ast.AST]] = [(module, ast.parse(path.read_bytes()))]
        while stack:
            name, node = stack.pop()
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    stack.append((f"{name}.{child.name}", child))
                    first, _, rest = re.sub(r"\s+", " ", ast.get_docstring(child) or "").partition(". ")
                    if len(first.split()) >= 4 and len(rest.split()) >= 10:
                        yield f"{name}.{child.name}", first, rest


def fts5(documents: list[Document], queries: list[Query]) -> Run:
    """What SQLite finds."""
    table = sqlite3.connect(":memory:")
    table.execute("CREATE VIRTUAL TABLE docs USING fts5(id UNINDEXED, title, text)")
    table.executemany("INSERT INTO docs VALUES (?, ?, ?)", [(d.docid, d.title, d.text) for d in documents])
    found = "SELECT id, -rank FROM docs WHERE docs MATCH ? ORDER BY rank LIMIT 100"
    asked = {query.qid: " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query.text)) for query in queries}
    return Run.from_scores({qid: dict(table.execute(found, [words]).fetchall()) for qid, words in asked.items()})


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    unique = {rest: (name, first) for name, first, rest in docstrings(Path(sysconfig.get_path("stdlib")))}
    drawn = random.Random(1).sample(sorted(unique), DOCUMENTS)
    documents = [Document(str(n), rest, title=unique[rest][0]) for n, rest in enumerate(drawn)]
    queries = [Query(str(n), unique[rest][1]) for n, rest in enumerate(drawn[:QUESTIONS])]
    qrels = Qrels({query.qid: {query.qid: 1} for query in queries})
    runs = {"SQLite FTS5": fts5(documents, queries)}
    for name, analyzer in {
        "rankwell": Analyzer.english(),
        "rankwell --identifiers": Analyzer.of("en", identifiers=True),
        "rankwell --identifiers --weight title=2": Analyzer.of("en", identifiers=True, title_weight=2),
    }.items():
        runs[name] = Index.build(documents, analyzer=analyzer).search(queries, k=100)
    table, records = Table("", *MEASURED), {}
    for name, run in runs.items():
        values = evaluate(qrels, run, MEASURED).values.mean(axis=1).round(3).tolist()
        records[name] = dict(zip(MEASURED, values, strict=True))
        table.row(name, *values)
    write_json(options.out, {"machine": machine("rankwell"), "sqlite": sqlite3.sqlite_version, "figures": records})


if __name__ == "__main__":
    main()
