"""``rankwell check``: whether the files of an index, a system or a model are as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def check(
    folder: Annotated[Path, typer.Argument(help="An index, a system or a model.", metavar="FOLDER")],
) -> None:
    """Check that no file of an index, a system or a model is damaged, missing or truncated.

    Reads every file and compares its checksums. Exits with code 2 and names the first damaged file.

    Example:

        rankwell check my-index
    """
    from rankwell.core.errors import InputError
    from rankwell.rank.system import System, check_folder
    from rankwell.rank.texts import is_system
    from rankwell.retrieve.index import Index, is_index

    if not folder.is_dir():
        raise InputError(folder, None, "no such folder")
    index = None
    if is_system(folder):
        index = System.open(folder).index
    elif is_index(folder):
        index = Index.open(folder)
    if index is not None:
        print(index)
    verified = check_folder(folder, index)
    if index is None and not verified.files:
        raise InputError(folder, None, "has neither an index nor checksums; nothing to check")
    print(f"{verified.files:,} files, {verified.size / 1e6:,.1f} MB: as written")
    if verified.without:
        print(f"{verified.without:,} more files have no checksums")
