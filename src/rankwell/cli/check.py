"""``rankwell check``: whether the files of an index, a system or a model are as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankwell.cli.options import Result


def check(
    folder: Annotated[Path, typer.Argument(help="An index, a system or a model.", metavar="FOLDER")],
) -> Result:
    """Check that no file of an index, a system or a model is damaged, missing or truncated.

    Reads every file and compares its checksums. Exits with code 2 and names the first damaged file. For a system or a
    model, it also says in which precision this machine computes unless --precision says otherwise.

    Example:

        rankwell check my-index
    """
    from contextlib import suppress

    from rankwell.core.errors import InputError
    from rankwell.models.devices import chosen_device, describe_precisions
    from rankwell.rank.system import System, check_folder
    from rankwell.rank.texts import is_system
    from rankwell.retrieve.index import Index, is_index

    if not folder.is_dir():
        raise InputError(folder, None, "no such folder")
    opened = System.open(folder) if is_system(folder) else Index.open(folder) if is_index(folder) else None
    index = opened.index if isinstance(opened, System) else opened
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
    if index is None or isinstance(opened, System):  # models compute only where torch is installed
        with suppress(ImportError):
            device = chosen_device(None)
            result["precision"] = describe_precisions(device)
            print(f"precision on this machine ({device}): {result['precision']}")
    if verified.without:
        print(f"{verified.without:,} more files have no checksums")
    return result
