"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The public data sets, where they are present."""
    folder = Path(os.environ.get("RANKWELL_DATA", Path(__file__).parents[1].parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("the public data sets are not here; set RANKWELL_DATA to their folder")
    return folder
