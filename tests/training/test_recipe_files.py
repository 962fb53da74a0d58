"""Recipes and suites found by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankwell.core.errors import InputError
from rankwell.training.recipe_files import find_recipe, shipped_recipes

ROOT = Path(__file__).parents[2]


def test_a_recipe_is_found_by_name_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("listwise", "listwise.yaml", "recipes/listwise.yaml"):
        assert find_recipe(name).samefile(ROOT / "recipes" / "listwise.yaml")
    for name in ("drbert-table1", "recipes/suites/drbert-table1.yaml"):
        assert find_recipe(name, "suite").samefile(ROOT / "recipes" / "suites" / "drbert-table1.yaml")
    assert set(shipped_recipes()) >= {path.stem for path in (ROOT / "recipes").glob("*.yaml")}


def test_a_file_goes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("listwise").write_text("name: mine\n")
    assert find_recipe("listwise") == Path("listwise")


def test_a_wrong_name_is_told_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^listwize: no such file, and no recipe .*; did you mean listwise\?"):
        find_recipe("listwize")
    with pytest.raises(InputError, match=r"no such file, and no recipe of that name; known by name: .*listwise"):
        find_recipe(tmp_path / "zzz.yaml")
    with pytest.raises(InputError, match="no such file"):
        find_recipe(tmp_path / "listwise.yaml")  # elsewhere, so another one was meant
    with pytest.raises(InputError, match=r"no suite of that name"):
        find_recipe("listwise", "suite")


@pytest.mark.parametrize("verb", ["train", "experiment"])
def test_a_missing_recipe_is_told_before_anything_heavy_is_imported(verb: str, tmp_path: Path) -> None:
    code = f"""
import sys
from rankwell.cli.main import main
sys.argv = ["rankwell", "{verb}", "nowhere.yaml", "--out", "out"]
try:
    main()
finally:
    print({{"torch", "numba", "numpy"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "set()\n")
    assert done.stderr.startswith("rankwell: nowhere.yaml: no such file")


def test_a_papers_own_settings_are_another_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("papers/drbert", "recipes/papers/drbert.yaml"):
        assert find_recipe(name) == ROOT / "recipes" / "papers" / "drbert.yaml"
    assert find_recipe("drbert") == ROOT / "recipes" / "drbert.yaml"


def test_a_folder_of_a_recipes_name_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("drbert", "drbert-table1", "other"):
        (tmp_path / name).mkdir()
    assert find_recipe("drbert") == ROOT / "recipes" / "drbert.yaml"
    assert find_recipe("drbert-table1", "suite") == ROOT / "recipes" / "suites" / "drbert-table1.yaml"
    with pytest.raises(InputError, match="other: is a folder, expected the file or the name of a recipe"):
        find_recipe("other")
