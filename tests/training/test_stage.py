"""A stage kind of one's own: one class of options, one function, one line, and a recipe can use it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from docs.option_tables import option_tables
from pydantic import Field
from tests.training import toys

from rankwell.papers import PARTS
from rankwell.training import stages
from rankwell.training.options import STAGE_OPTIONS, Options
from rankwell.training.recipe import RecipeStage
from rankwell.training.recipe_reader import build_recipe
from rankwell.training.run import run_recipe
from rankwell.training.stage import STAGES, StageKind, StageResult, Work, stage_kinds


class StampOptions(Options):
    """`stamp`: writes a word beside the model."""

    word: str = Field(default="hello", description="The word.")


def stamp(work: Work, stage: RecipeStage[StampOptions], folder: Path) -> StageResult:
    model = shutil.copytree(work.model, folder / "model")
    (model / "stamp.json").write_text(json.dumps([stage.name, stage.number, stage.options.word]))
    return StageResult(model, figures={"letters": len(stage.options.word)})


def test_registering_a_kind_is_all_it_takes(
    tmp_path: Path, tiny_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STAGES, "_parts", dict(stage_kinds()))  # forgotten after the test
    STAGES.register("stamp")(StageKind(StampOptions, stamp))

    data = toys.write_data(tmp_path / "data")
    start = toys.write_start(tmp_path / "start", tiny_tokenizer)
    tree = toys.recipe_tree(data, start, first={"kind": "stamp"}, second={"kind": "stamp", "word": "bye"})
    trained = run_recipe(build_recipe(tree, "r.yaml"), tmp_path / "out")
    assert [row["figures"] for row in trained.table.data["rows"][1:]] == [{"letters": 5}, {"letters": 3}]
    assert trained.model is not None
    assert json.loads((trained.model / "stamp.json").read_text()) == ["second", 2, "bye"]
    assert "| `word` | text | hello | The word. |" in option_tables()


def test_every_module_of_stages_is_a_kind_or_shared_by_kinds() -> None:
    modules = {path.stem for path in Path(stages.__path__[0]).glob("*.py")} - {"__init__", "shared", "pairs"}
    assert modules == set(stage_kinds()) - set(STAGES.homes())
    assert set(STAGES.homes()) == set(STAGE_OPTIONS.homes()) == set(PARTS["stage kind"])


def test_an_unknown_part_of_a_recipe_is_a_mistake_in_the_kind() -> None:
    with pytest.raises(ValueError, match="no part of a recipe is called weather"):
        StageKind(StampOptions, stamp, reads=frozenset({"weather"}))
