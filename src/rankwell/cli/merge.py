"""``rankwell merge``: an index in one segment, without deleted documents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankwell.cli.options import Result


def merge(folder: Annotated[Path, typer.Argument(metavar="INDEX|SYSTEM", help="An index or a system.")]) -> Result:
    """Rewrite an index, or that of a system, as one segment without deleted documents.

    Results stay the same; searches become a little faster, and the folder smaller. Some segments are merged by
    themselves: those of which more than a fifth is deleted, and more than eight of similar size.

    Examples:

        rankwell merge my-index
    """
    from rankwell.core.files import folder_size
    from rankwell.rank.system import open_changeable

    changed = open_changeable(folder)
    before = folder_size(folder)
    changed.merge()
    after = folder_size(folder)
    print(f"{folder}: {len(changed):,} documents, {before / 1e6:,.1f} MB before, {after / 1e6:,.1f} MB now")
    return {"folder": str(folder), "documents": len(changed), "bytes_before": before, "bytes": after}
