"""Recipe files: reading YAML, putting overrides in, and checking all of it.

An error names the file (or the ``--set``) and the path of the key and, where one is close, the key that was probably
meant.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rankwell.core.errors import InputError, RankwellError, excerpt
from rankwell.core.files import open_raw
from rankwell.core.yamlfile import YamlError, parse_yaml
from rankwell.corpus.datasets import IRDS_PREFIXES
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.training.options import FIRST_STAGE_ENCODER, START, Meaning
from rankwell.training.recipe import Recipe, RecipeStage
from rankwell.training.recipe_files import find_recipe
from rankwell.training.stage import stage_options

TYPE_SOURCES = ("auto", "none", "rules")
_STAGE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*")

Tree = dict[str, Any]
Complain = Callable[[str, str], RankwellError]


@dataclass(frozen=True)
class Override:
    """A value that replaces one of the recipe; ``origin`` is where it was given, ``base`` the folder of its files."""

    path: str
    value: Any
    origin: str = "--set"
    base: Path = Path()


def read_recipe(path: str | os.PathLike[str], settings: Sequence[str] = ()) -> Recipe:
    """Read a recipe, a file or one that ships by its name; ``settings`` are ``path=value`` overrides.

    Files named in the recipe are relative to its folder, those of settings to the current one.
    """
    path = find_recipe(path)
    return build_recipe(read_yaml(path), path, [parse_setting(text) for text in settings])


def build_recipe(tree: Mapping[str, Any], source: str | os.PathLike[str], overrides: Sequence[Override] = ()) -> Recipe:
    """Check a recipe given as plain data, read from ``source``, after applying ``overrides`` in order."""
    whole: Tree = anchored(dict(tree), Path(source).parent)
    for override in overrides:
        whole = anchored(_override(whole, override), override.base, only=override.path)
    return _validate(whole, source, overrides)


def read_yaml(path: str | os.PathLike[str]) -> Tree:
    """The mapping in a YAML file."""
    with open_raw(path) as file:
        data = file.read()
    try:
        tree = parse_yaml(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(path, None, "not UTF-8 text") from None
    except YamlError as error:
        raise InputError(path, error.line, f"not YAML: {error}") from None
    if not isinstance(tree, dict):
        raise InputError(path, None, f"expected keys and values, found {excerpt(str(tree))}")
    return tree


def parse_setting(text: str) -> Override:
    """``a.b=c``, the value in YAML."""
    path, equals, value = text.partition("=")
    shown = text if text.isprintable() and len(text) <= 100 else excerpt(text, 100)
    if not equals or not path.strip():
        raise RankwellError(f"--set {shown}: expected PATH=VALUE, such as stages.listwise.negatives=15")
    if not path.isprintable():
        raise RankwellError(f"--set {shown}: expected a path of keys before the '='")
    try:
        return Override(path.strip(), parse_yaml(value))
    except YamlError as error:
        raise RankwellError(f"--set {shown}: the value is not YAML ({error})") from None


# Files


def anchored(tree: Tree, base: Path, only: str | None = None) -> Tree:
    """The recipe with absolute paths in place of those relative to ``base``; ``only``: of the option at this path."""
    if isinstance(tree.get("data"), str):
        tree = {**tree, "data": {"folder": tree["data"]}}
    for section, key in (
        ("data", "folder"),
        ("data", "types"),
        ("first_stage", "train_run"),
        ("first_stage", "dev_run"),
        ("first_stage", "encoder"),
        ("model", "start"),
    ):
        if only is not None and only not in (section, f"{section}.{key}"):
            continue
        options = tree.get(section)
        value = options.get(key) if isinstance(options, Mapping) else None
        if isinstance(options, Mapping) and isinstance(value, str) and _is_file(key, value, base):
            tree = {**tree, section: {**options, key: os.path.abspath(base / value)}}
    if isinstance(stages := tree.get("stages"), Mapping):
        tree = {**tree, "stages": {name: _anchored_stage(name, stage, base, only) for name, stage in stages.items()}}
    return tree


def _anchored_stage(name: str, options: Any, base: Path, only: str | None) -> Any:
    known = stage_options().get(str(options.get("kind", name))) if isinstance(options, Mapping) else None
    if known is None:  # the check that follows reports it
        return options

    def absolute(value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(item) for item in value]
        if not isinstance(value, str) or value in (START, FIRST_STAGE_ENCODER, DEFAULT):
            return value
        return os.path.abspath(base / value) if os.path.exists(base / value) else value

    files = set(known.marked(Meaning.MODEL, Meaning.VECTORS))
    if only not in (None, "stages", f"stages.{name}"):
        files = {key for key in files if only == f"stages.{name}.{key}"}
    return {key: absolute(value) if key in files else value for key, value in options.items()}


def _is_file(key: str, value: str, base: Path) -> bool:
    if key in ("start", "encoder"):  # may be a name instead
        return os.path.isdir(base / value)  # Path.is_dir raises if the name is too long
    if key == "types":
        return value not in TYPE_SOURCES
    return not value.startswith(IRDS_PREFIXES)


# Overrides


def _override(tree: Tree, override: Override) -> Tree:
    """A copy of ``tree`` with one value changed. Keys are checked later, with all others; stages must be there now."""
    keys, value = override.path.split("."), override.value
    if keys[0] == "stages" and len(keys) > 1:
        stages, kinds = tree.get("stages") or {}, stage_options()
        if keys[1] not in stages and not isinstance(value, Mapping):
            hint = _nearest(keys[1], [*stages, *kinds])
            if keys[1] in kinds:
                hint = f"; add it with --set 'stages.{keys[1]}={{}}'"
            known = ", ".join(stages) or "none"
            problem = f"the recipe has no stage {keys[1]!r}{hint} (stages: {known})"
            raise RankwellError(f"{override.origin} {override.path}: {problem}")
    if keys == ["data"] and isinstance(value, str):
        keys = ["data", "folder"]
    changed: Tree = _put(tree, keys, value)
    return changed


def _put(tree: Any, keys: Sequence[str], value: Any) -> Any:
    if not keys:
        return value
    # What is no mapping yet (`data: FOLDER`, a stage that is off or has no options) becomes one.
    if isinstance(tree, str):
        tree = {"folder": tree}
    branch = dict(tree) if isinstance(tree, Mapping) else {}
    branch[keys[0]] = _put(branch.get(keys[0]), keys[1:], value)
    return branch


# Checking


def _validate(tree: Tree, source: str | os.PathLike[str], overrides: Sequence[Override]) -> Recipe:
    def complain(path: str, problem: str) -> RankwellError:
        for override in reversed(overrides):
            if f"{path}.".startswith(f"{override.path}.") or override.path.startswith(f"{path}."):
                return RankwellError(f"{override.origin} {path}: {problem}")
        return InputError(source, None, f"{path}: {problem}")

    if "variants" in tree:
        raise InputError(source, None, "this is a suite, whose variants `rankwell experiment` trains")
    for key in tree:
        if key not in Recipe.model_fields:
            raise complain(str(key), f"no such key{_nearest(str(key), Recipe.model_fields)}")
    if "name" not in tree:
        tree = {**tree, "name": Path(source).stem}
    if not isinstance(tree.get("data"), Mapping) or "folder" not in tree["data"]:
        raise complain("data.folder", "is not set; name the folder of documents, queries and qrels: --set data=FOLDER")
    stages = _stages(tree.get("stages"), complain)
    try:
        return Recipe.model_validate({**tree, "stages": stages})
    except ValidationError as error:
        raise complain(*problem_of(error, Recipe)) from None


def _stages(tree: Any, complain: Complain) -> tuple[RecipeStage[Any], ...]:
    if not isinstance(tree, Mapping):
        raise complain("stages", "expected stages by name, such as `pointwise: {epochs: 1}`")
    stages: list[RecipeStage[Any]] = []
    kinds = stage_options()
    for name, given in tree.items():
        path = f"stages.{name}"
        if given is False:  # `off`
            continue
        options = {} if given is None or given is True else given
        if not isinstance(options, Mapping):
            raise complain(path, f"expected options, on or off, found {excerpt(str(given))}")
        if not isinstance(name, str) or not _STAGE_NAME.fullmatch(name):
            raise complain(path, "a stage's name has letters, digits, '_' and '-' only")
        kind = str(options.get("kind", name))
        if kind not in kinds:
            hint = f"{_nearest(str(kind), kinds)} (known: {', '.join(sorted(kinds))})"
            raise complain(f"{path}.kind" if "kind" in options else path, f"no stage kind is called {kind!r}{hint}")
        known = kinds[kind]
        try:
            checked = known.model_validate({key: value for key, value in options.items() if key != "kind"})
        except ValidationError as error:
            below, problem = problem_of(error, known)
            others = [other for other, its in sorted(kinds.items()) if below in its.model_fields]
            if others and below not in known.model_fields:
                problem = f"no such key; the stage kinds that have it: {', '.join(others)}"
            raise complain(f"{path}.{below}", problem) from None
        stages.append(RecipeStage(name, kind, checked, len(stages) + 1))
    if not stages:
        raise complain("stages", "no stage is left")
    return tuple(stages)


def problem_of(error: ValidationError, model: type[BaseModel]) -> tuple[str, str]:
    """The path and message of the first problem; unknown keys come before invalid values."""
    first = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")[0]
    keys = [str(key) for key in first["loc"]]
    path = ".".join(keys)
    if first["type"] == "extra_forbidden":
        return path, f"no such key{_nearest(keys[-1], _keys_at(model, keys[:-1]))}"
    if first["type"] == "missing":
        return path, "is not set"
    if first["type"] in ("tuple_type", "list_type"):
        return path, f"expected a list, such as [{excerpt(str(first['input'])).strip(chr(39))}]"
    message = first["msg"].removeprefix("Value error, ")
    return path, f"{message[0].lower()}{message[1:]}, found {excerpt(str(first['input']))}"


def _keys_at(model: type[BaseModel], path: Sequence[str]) -> Iterable[str]:
    for key in path:
        field = model.model_fields.get(key)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return ()
        model = inner
    return model.model_fields


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def value_at(recipe: Recipe, path: str) -> Any:
    """The value of an option by its path, such as ``stages.listwise.negatives``."""
    value: Any = recipe.as_dict()
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise RankwellError(f"{path}: the recipe {recipe.name} has no such key")
        value = value[key]
    return value
