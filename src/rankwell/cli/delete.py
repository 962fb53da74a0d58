"""``rankwell delete``: documents of an index or a system, by their ids."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankwell.cli.options import Result


def delete(
    folder: Annotated[Path, typer.Argument(metavar="INDEX|SYSTEM", help="An index or a system.")],
    ids: Annotated[
        list[str], typer.Argument(metavar="IDS", help="Ids of documents, or - to read them from standard input.")
    ],
) -> Result:
    """Delete documents from an index or a system.

    Ids that are not in the index are counted and otherwise ignored. Scores become those of an index that was built
    without the documents. Their space is freed when segments are merged, which happens by itself when it pays, or with
    `rankwell merge`.

    Examples:

        rankwell delete my-index doc-17 doc-18

        rankwell delete my-system - < outdated.txt
    """
    from rankwell.core.files import read_lines
    from rankwell.rank.system import open_changeable

    wanted: dict[str, None] = {}
    for docid in ids:
        wanted |= dict.fromkeys((line.strip() for _, line in read_lines("-")) if docid == "-" else [docid])
    wanted.pop("", None)
    changed = open_changeable(folder)
    count = changed.delete(wanted)
    missing = f", {len(wanted) - count:,} not in the index" if count < len(wanted) else ""
    print(f"{folder}: {count:,} deleted{missing}, {len(changed):,} documents left")
    return {"folder": str(folder), "deleted": count, "missing": len(wanted) - count, "documents": len(changed)}
