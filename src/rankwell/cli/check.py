"""``rankwell check``: whether the files of an index, a system or a model are as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankwell.cli.options import Result


def check(
    folder: Annotated[Path, typer.Argument(help="An index, a system or a model.", metavar="FOLDER")],
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="FOLDER",
            help="The log of `rankwell serve --log`: add five lines about its last week beside the four before.",
        ),
    ] = None,
) -> Result:
    """Check that no file of an index, a system or a model is damaged, missing or truncated.

    Reads every file and compares its checksums. Exits with code 2 and names the first damaged file. For a system or a
    model, it also says in which precision this machine computes unless --precision says otherwise; for a system with
    relevance, whether so many documents were added or deleted that it should be fitted again.

    Examples:

        rankwell check my-index

        rankwell check my-system --log searches
    """
    from contextlib import suppress

    from rankwell.core.errors import InputError
    from rankwell.corpus.searches import read_searches
    from rankwell.models.devices import chosen_device, describe_precisions
    from rankwell.rank.health import WEEKS, health
    from rankwell.rank.system import System, check_folder
    from rankwell.rank.texts import is_system
    from rankwell.retrieve.index import Index, is_index

    if not folder.is_dir():
        raise InputError(folder, None, "no such folder")
    opened = System.open(folder) if is_system(folder) else Index.open(folder) if is_index(folder) else None
    index = opened.index if isinstance(opened, System) else opened
    lines = []
    if log is not None:
        if index is None:
            raise InputError(folder, None, "a model, expected the system or index whose searches are in --log")
        searches = read_searches(log, days=7 * (WEEKS + 1) + 1)
        searches.check_documents(index.__contains__, folder)
        lines = [searches.describe(), *health(searches, index)]
    if index is not None:
        print(index)
    verified = check_folder(folder, index)
    if index is None and not verified.files:
        raise InputError(folder, None, "has neither an index nor checksums; nothing to check")
    print(f"{verified.files:,} files, {verified.size / 1e6:,.1f} MB: as written")
    result: Result = {"folder": str(folder), "files": verified.files, "bytes": verified.size}
    result |= {"documents": None if index is None else len(index), "without_checksums": verified.without}
    if index is not None and (unused := sorted(path.name for path in index.leftovers())):
        print(f"not in use, removed by the next change: {', '.join(unused)}")
    if isinstance(opened, System) and (rated := opened.relevance) is not None:
        print(rated.stale(len(opened)) or f"relevance: measured on {rated.queries:,} queries")
    if index is None or isinstance(opened, System):  # models compute only where torch is installed
        with suppress(ImportError):
            device = chosen_device(None)
            result["precision"] = describe_precisions(device)
            print(f"precision on this machine ({device}): {result['precision']}")
    if verified.without:
        print(f"{verified.without:,} more files have no checksums")
    print("\n".join(lines), end="\n" * bool(lines))
    return result | ({"log": lines} if lines else {})
