"""Recipes: what a file may say, what an override changes, and what is said about mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from docs.option_tables import option_rows, option_tables
from pydantic import BaseModel

from rankwell.core.errors import InputError, RankwellError
from rankwell.training.experiments.variants import Suite
from rankwell.training.recipe import DataOptions, ModelOptions, Recipe
from rankwell.training.recipe_reader import build_recipe, parse_setting, read_recipe, value_at
from rankwell.training.stage import stage_kinds

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))

STAGE_OPTIONS = [kind.options for kind in stage_kinds().values()]
MINIMAL = """
name: small
data: {folder: here, dev: valid}
stages:
  pointwise: {epochs: 2, learning_rate: 1e-5}
  listwise:
"""


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(MINIMAL, encoding="utf-8")
    return path


def read(path: Path, *settings: str) -> Recipe:
    return read_recipe(path, settings)


def test_a_recipe_has_its_own_values_and_defaults_for_the_rest(recipe_file: Path) -> None:
    recipe = read(recipe_file)
    assert recipe.name == "small"
    assert [stage.name for stage in recipe.stages] == ["pointwise", "listwise"]
    assert value_at(recipe, "stages.pointwise.epochs") == 2
    # YAML 1.1 takes 1e-5 for a text.
    assert value_at(recipe, "stages.pointwise.learning_rate") == 1e-5
    assert value_at(recipe, "stages.listwise.negatives") == 5
    assert value_at(recipe, "stages.listwise.loss") == "listwise"
    assert recipe.first_stage.k1 == 0.9


def test_files_are_relative_to_the_recipe_and_those_of_settings_to_where_one_is(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert read(recipe_file).data.folder == str(tmp_path / "here")
    assert read(recipe_file, "data=there").data.folder == str(elsewhere / "there")
    assert read(recipe_file, "data.folder=there", "data.types=t.tsv").data.types == str(elsewhere / "t.tsv")
    assert read(recipe_file, "data=irds:beir/scifact").data.folder == "irds:beir/scifact"
    assert read(recipe_file, "data.types=rules").data.types == "rules"


def test_models_and_vectors_of_stages_are_relative_alike(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    for folder in (tmp_path, elsewhere):
        for name in ("models/one", "start", "rankwell-mini"):
            (folder / name).mkdir(parents=True)
        (folder / "glove.txt").touch()
    monkeypatch.chdir(elsewhere)
    with recipe_file.open("a") as file:
        file.write("  distil: {teachers: [models/one, owner/name]}\n  sdnet: {vectors: glove.txt}\n")
        file.write("  tune: {encoder: start}\nfirst_stage: {encoder: models/one}\n")
    recipe = read(recipe_file)
    assert value_at(recipe, "stages.distil.teachers") == [str(tmp_path / "models/one"), "owner/name"]
    assert value_at(recipe, "stages.sdnet.vectors") == str(tmp_path / "glove.txt")
    assert value_at(recipe, "stages.tune.encoder") == "start"
    assert recipe.first_stage.encoder == str(tmp_path / "models/one")
    said = read(recipe_file, "stages.distil.teachers=[models/one]", "stages.tune.encoder=rankwell-mini")
    assert value_at(said, "stages.distil.teachers") == [str(elsewhere / "models/one")]
    assert value_at(said, "stages.tune.encoder") == "rankwell-mini"
    assert value_at(said, "stages.sdnet.vectors") == str(tmp_path / "glove.txt")
    whole = read(recipe_file, "stages.tune={encoder: models/one}")
    assert value_at(whole, "stages.tune.encoder") == str(elsewhere / "models/one")


def test_a_name_too_long_for_a_file_is_a_name(recipe_file: Path) -> None:
    name = "m" * 5000
    settings = [f"model.start={name}", f"stages.listwise.start={name}"]
    with pytest.raises(RankwellError, match="start"):
        read(recipe_file, *settings)
    assert read(recipe_file, settings[0]).model.start == name


def test_a_plain_text_for_data_changes_the_folder_alone(recipe_file: Path) -> None:
    recipe = read(recipe_file, "data=/data")
    assert (recipe.data.folder, recipe.data.dev) == ("/data", "valid")
    recipe_file.write_text(MINIMAL.replace("{folder: here, dev: valid}", "/data"), encoding="utf-8")
    assert read(recipe_file).data.folder == "/data"
    assert read(recipe_file, "data.relevance=2").data.folder == "/data"


def test_settings_change_values_in_their_order(recipe_file: Path) -> None:
    recipe = read(recipe_file, "stages.listwise.negatives=15", "stages.listwise.negatives=31", "seed=7")
    assert value_at(recipe, "stages.listwise.negatives") == 31
    assert recipe.seed == 7
    assert read(recipe_file, "evaluate.measures=[AP, P@5]").evaluate.measures == ("AP", "P@5")
    margin = read(recipe_file, "stages.listwise.loss_options.margin=0.5")
    assert value_at(margin, "stages.listwise.loss_options.margin") == 0.5


@pytest.mark.parametrize("setting", ["first_stage.hybrid=yes", "stages.pointwise.negatives=on", "seed=true"])
def test_a_word_is_no_number(recipe_file: Path, setting: str) -> None:
    with pytest.raises(RankwellError, match="expected a number, found 'True'"):
        read(recipe_file, setting)


def test_a_stage_to_add_is_told_how(recipe_file: Path) -> None:
    for setting in ("stages.tune=on", "stages.tune.step=0.2"):
        with pytest.raises(RankwellError, match=r"add it with --set 'stages.tune=\{\}'"):
            read(recipe_file, setting)
    assert [stage.name for stage in read(recipe_file, "stages.tune={}").stages][-1] == "tune"


def test_a_stage_is_switched_off_and_on(recipe_file: Path) -> None:
    assert [stage.name for stage in read(recipe_file, "stages.pointwise=off").stages] == ["listwise"]
    recipe_file.write_text(MINIMAL.replace("pointwise: {", "pretrain: off\n  pointwise: {"), encoding="utf-8")
    assert [stage.name for stage in read(recipe_file).stages] == ["pointwise", "listwise"]
    switched = read(recipe_file, "stages.pretrain=on")
    assert [stage.name for stage in switched.stages] == ["pretrain", "pointwise", "listwise"]
    added = read(recipe_file, "stages.again={kind: listwise, epochs: 1}")
    assert (added.stages[-1].name, added.stages[-1].kind) == ("again", "listwise")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["stages.listwise.negativs=15"], "--set stages.listwise.negativs: no such key; did you mean negatives?"),
        (["stages.listwize.negatives=15"], "--set stages.listwize.negatives: the recipe has no stage 'listwize'"),
        (["frist_stage.k1=1"], "frist_stage: no such key; did you mean first_stage?"),
        (["first_stage.dept=1"], "--set first_stage.dept: no such key; did you mean depth?"),
        (["first_stage.b=2"], "--set first_stage.b: input should be less than or equal to 1, found '2'"),
        (["seed=x"], "--set seed: input should be a valid integer"),
        (["seed"], "--set seed: expected PATH=VALUE"),
        (["seed=[1"], "--set seed=[1: the value is not YAML"),
        (["stages.listwise=3"], "--set stages.listwise: expected options, on or off, found '3'"),
        (["stages.pointwise=off", "stages.listwise=off"], "stages: no stage is left"),
        (["stages.x={kind: pointwize}"], "--set stages.x.kind: no stage kind is called 'pointwize'; did you mean"),
        (["model.attention=strn"], "--set model.attention: input should be 'full'"),
    ],
)
def test_a_wrong_setting_is_named_with_its_path(recipe_file: Path, settings: list[str], expected: str) -> None:
    with pytest.raises(RankwellError) as caught:
        read(recipe_file, *settings)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("epochs: 2", "epoch: 2", "small.yaml: stages.pointwise.epoch: no such key; did you mean epochs?"),
        ("dev: valid", "dve: valid", "small.yaml: data.dve: no such key; did you mean dev?"),
        ("epochs: 2", "epochs: many", "small.yaml: stages.pointwise.epochs: input should be a valid number"),
        ("  listwise:", "  listwize:", "small.yaml: stages.listwize: no stage kind is called 'listwize'"),
        ("{folder: here, dev: valid}", "{dev: valid}", "small.yaml: data.folder: is not set"),
        ("stages:", "stage:", "small.yaml: stage: no such key; did you mean stages?"),
        ("name: small", "name: [small", "small.yaml, line"),
        ("name: small", "name: small\nname: big", "small.yaml, line 3: not YAML: the key 'name' comes twice"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_file_and_path(
    recipe_file: Path, old: str, new: str, expected: str
) -> None:
    recipe_file.write_text(MINIMAL.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read(recipe_file)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["pretrain", "deepct"])
@pytest.mark.parametrize("option", ["evaluate_every: 0.5", "patience: 2", "dev_queries: 10", "best: last"])
def test_a_stage_that_is_not_measured_while_it_trains_has_no_option_for_it(
    recipe_file: Path, kind: str, option: str
) -> None:
    recipe_file.write_text(MINIMAL.replace("  listwise:", f"  {kind}: {{{option}}}"), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read(recipe_file)
    name = option.partition(":")[0]
    message = str(caught.value)
    assert f"small.yaml: stages.{kind}.{name}: no such key; the stage kinds that have it: " in message
    assert "listwise" in message


@pytest.mark.parametrize("kind", ["classify", "doc2query"])
def test_a_stage_that_is_not_measured_on_dev_has_no_dev_queries(recipe_file: Path, kind: str) -> None:
    with pytest.raises(RankwellError, match=rf"--set stages\.{kind}\.dev_queries: no such key"):
        read(recipe_file, f"stages.{kind}={{patience: 2, evaluate_every: 0.5, dev_queries: 5}}")
    assert read(recipe_file, f"stages.{kind}={{patience: 2, evaluate_every: 0.5, best: last}}").stages


def test_a_classifier_is_best_by_its_accuracy(recipe_file: Path) -> None:
    with pytest.raises(RankwellError, match=r"stages\.classify\.best: input should be 'accuracy' or 'last'"):
        read(recipe_file, "stages.classify={best: RR@10}")


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(InputError, match="expected keys and values"):
        read(tmp_path / "list.yaml")


def test_the_resolved_recipe_reads_back_as_itself(recipe_file: Path, tmp_path: Path) -> None:
    recipe = read(recipe_file, "stages.again={kind: pointwise}")
    (tmp_path / "resolved.yaml").write_text(recipe.as_yaml(), encoding="utf-8")
    assert read(tmp_path / "resolved.yaml") == recipe


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_that_come_along_are_right(path: Path) -> None:
    recipe = read(path, "data=/data")
    assert recipe.name == path.stem
    text = path.read_text(encoding="utf-8")
    assert f"rankwell train recipes/{path.name} --set data=" in text


def test_drbert_has_the_papers_four_stages() -> None:
    recipe = read(ROOT / "recipes" / "drbert.yaml", "data=/data")
    assert [stage.kind for stage in recipe.stages] == ["pretrain", "pointwise", "denoise", "listwise"]
    assert (recipe.model.template, recipe.model.attention, recipe.model.max_length) == ("typed", "strm", 180)
    expected = {"batch": 16, "positives": 1, "loss": "listwise", "best": "RR@10"}
    assert {name: value_at(recipe, f"stages.listwise.{name}") for name in expected} == expected
    assert value_at(recipe, "stages.denoise.threshold") == 0.9


@pytest.mark.parametrize("model", [Recipe, DataOptions, ModelOptions, Suite, *STAGE_OPTIONS])
def test_every_option_says_what_it_is_and_means(model: type[BaseModel]) -> None:
    rows = option_rows(model)
    assert len(rows) == len(model.model_fields)
    assert [name for name, kind, _, meaning in rows if not kind or not meaning.endswith((".", ")"))] == []


def test_the_reference_has_a_table_for_every_part_of_a_recipe() -> None:
    tables = option_tables()
    assert {f"### Stage `{name}`" for name in stage_kinds()} <= set(tables.splitlines())
    assert "| `max_steps` | whole number | none |" in tables


def test_the_tables_say_kind_default_and_meaning() -> None:
    rows = {name: rest for name, *rest in option_rows(stage_kinds()["listwise"].options)}
    assert rows["negatives"] == ["whole number", "5", "Non-relevant documents per list, drawn anew each epoch."]
    assert rows["labels"][:2] == ["relevance, grade", "relevance"]
    assert rows["patience"][:2] == ["whole number", "none"]


def test_value_at_names_a_path_that_is_not_there(recipe_file: Path) -> None:
    with pytest.raises(RankwellError, match=r"stages\.duo\.epochs: the recipe small has no such key"):
        value_at(read(recipe_file), "stages.duo.epochs")


def test_a_recipe_is_plain_data_too() -> None:
    recipe = build_recipe(yaml.safe_load(MINIMAL), "/x/r.yaml", [parse_setting("seed=3")])
    assert (recipe.seed, recipe.data.folder) == (3, "/x/here")
