"""What the commands read: an index of the sample, its queries and judgments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from rankwell import sample
from rankwell.corpus.datasets import open_dataset
from rankwell.retrieve.index import Index

if TYPE_CHECKING:
    from tests.training.toys import Toys


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the sample that no test changes."""
    folder = tmp_path_factory.mktemp("cli") / "index"
    Index.build(open_dataset(sample.FOLDER).documents(), folder)
    return folder


@pytest.fixture(scope="session")
def queries() -> Path:
    return sample.FOLDER / "queries.dev.tsv"


@pytest.fixture(scope="session")
def qrels() -> Path:
    return sample.FOLDER / "qrels.dev.txt"


@pytest.fixture
def toys(tmp_path: Path, tiny_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Toys:
    """Stages that take no time, and in the working folder ``recipe.yaml``, which has them, and ``data`` for it."""
    from tests.training.toys import Toys, recipe_tree, write_data, write_start

    tree = recipe_tree(Path("unknown"), write_start(tmp_path / "start", tiny_tokenizer))
    del tree["data"]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    write_data(tmp_path / "data")
    return Toys(monkeypatch)
