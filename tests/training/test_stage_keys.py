"""What names a stage's result: the contents of all that made it."""

from __future__ import annotations

from pathlib import Path

from rankwell.training.recipe_reader import build_recipe
from rankwell.training.stage_store import plan_stages


def test_models_and_labelled_texts_are_known_by_their_contents(tmp_path: Path) -> None:
    teacher, labelled = tmp_path / "teacher", tmp_path / "data" / "train.tsv"
    teacher.mkdir()
    labelled.parent.mkdir()
    tree = {"data": str(labelled.parent), "stages": {"distil": {"teachers": [str(teacher)]}, "classify": {}}}
    recipe = build_recipe(tree, tmp_path / "r.yaml")
    keys = []
    for weights, label in ((b"one", "a"), (b"two", "a"), (b"two", "b")):
        (teacher / "model.safetensors").write_bytes(weights)
        labelled.write_text(f"{label}\ttext\n")
        keys.append([one.key for one in plan_stages(recipe, {})])
    (one, _), (two, three), (again, four) = keys
    assert one != two == again
    assert three != four
