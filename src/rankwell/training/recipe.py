"""Recipes: a ranker's whole making, from data to model, in a few lines of YAML.

A recipe is read once, checked whole and then never changed. What is wrong is told with the file (or the ``--set``) it
stands in, the path of the key and, where one is near, the key that was probably meant.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, SerializeAsAny, ValidationError

from rankwell.core.errors import InputError, RankwellError, excerpt
from rankwell.models.checkpoints.names import BACKBONE, DEFAULT
from rankwell.models.shape import AttentionRule
from rankwell.training.anchoring import anchored
from rankwell.training.options import Options

DEV_NAMES = ("dev", "valid", "validation", "val")
"""What the split to validate on is called, where the recipe does not say."""
_STAGE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*")


class DataOptions(Options):
    """Documents, queries and judgments."""

    folder: str = Field(description="A folder with a collection, queries and qrels, or an id like irds:beir/scifact.")
    train: str = Field(default="train", description="The split to train on.")
    dev: str | None = Field(
        default=None, description=f"The split to validate on; none: the first of {', '.join(DEV_NAMES)} that is there."
    )
    relevance: int = Field(default=1, ge=1, description="The lowest grade that counts as relevant.")
    types: str = Field(
        default="auto",
        description="The queries' types, where the template has a place for them: auto (the data set's own labels, "
        "else rules), none, rules, a file of labels ({split} stands for the split), or the folder of a classifier.",
    )
    train_queries: int | None = Field(
        default=None, ge=1, description="Use the first so many training queries; none: all."
    )
    dev_queries: int | None = Field(default=None, ge=1, description="Use the first so many dev queries; none: all.")
    train_share: float = Field(
        default=1, gt=0, le=1, description="Use a random share of the training queries; a smaller one is part of it."
    )


class FirstStageOptions(Options):
    """BM25, BM25 and a bi-encoder, or given runs."""

    k1: float = Field(default=0.9, ge=0, description="How slowly a repeated term saturates.")
    b: float = Field(default=0.4, ge=0, le=1, description="How much long documents are discounted.")
    k2: float | None = Field(
        default=None, ge=0, description="How slowly a term repeated in the query saturates; none: it does not."
    )
    hybrid: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="A bi-encoder's share beside BM25; with 1 it searches alone, with none BM25 does.",
    )
    encoder: str = Field(default=DEFAULT, description="The bi-encoder of `hybrid`, named as `model.start` is.")
    depth: int = Field(default=100, ge=1, description="Candidates a query.")
    train_run: str | None = Field(default=None, description="A run of the training queries, used instead of BM25.")
    dev_run: str | None = Field(default=None, description="A run of the dev queries, used instead of BM25.")

    def search_options(self) -> str | None:
        """What ``rankwell search`` is told to find such candidates; None where they were given.

        >>> FirstStageOptions(b=0.9, hybrid=0.7).search_options()
        '--k1 0.9 --b 0.9 --hybrid 0.7 --k 100'
        """
        if self.train_run is not None or self.dev_run is not None:
            return None
        told: dict[str, float | str | None] = {"k1": self.k1, "b": self.b, "k2": self.k2, "hybrid": self.hybrid}
        if self.hybrid is not None and self.encoder != DEFAULT:
            told["encoder"] = self.encoder
        return " ".join(f"--{name} {value}" for name, value in (told | {"k": self.depth}).items() if value is not None)


class ModelOptions(Options):
    """What is trained, and what it reads."""

    start: str = Field(
        default=BACKBONE,
        description="The checkpoint to start from: a folder, PACKAGE:FOLDER, or a name on the Hugging Face hub.",
    )
    template: str = Field(default="mono", description="How texts are put together: mono, typed, twin or nli.")
    attention: AttentionRule = Field(default="full", description="Which token may see which.")
    attention_layers: tuple[int, ...] | None = Field(
        default=None,
        description="The layers that follow this rule, from 0 on, or from the last down, which is -1; in the others a "
        "token sees all.",
    )
    apart: int = Field(
        default=0, ge=0, description="How many of the first layers read query and document apart, as a bi-encoder does."
    )
    similarity: float = Field(
        default=0.0,
        ge=0,
        description="How many times the cosine of the query's and the document's mean states, read apart, is added to "
        "the score. A bi-encoder's weights begin as just that bi-encoder then. Listwise and distillation only.",
    )
    max_length: int = Field(default=180, ge=8, description="Most tokens of a sequence; only the document is cut.")
    max_query: int = Field(default=64, ge=1, description="Most tokens of a query.")
    markers: bool = Field(
        default=False, description="Mark the words that query and document share, as MarkedBERT does."
    )
    mark_unmatched_query: bool = Field(
        default=False, description="Mark query words that the document does not have, too."
    )
    long_documents: Literal["cut", "windows"] = Field(
        default="cut",
        description="How documents over `max_length` are read in use: cut, as in training, or in windows, of which "
        "the best counts.",
    )
    pooler: bool = Field(default=True, description="Put BERT's pooler (dense + tanh) between [CLS] and the head.")
    adapt: bool = Field(
        default=False,
        description="Start from a ranker of another template, attention rule or markers; without it, an error.",
    )


class EvaluateOptions(Options):
    """What is measured on dev after each stage; changing it trains nothing again but SDNets, and tunes shares anew."""

    measures: tuple[str, ...] = Field(
        default=("RR@10", "nDCG@10", "R@100"), description="Measures in ir-measures notation."
    )
    depth: int = Field(default=100, ge=1, description="Candidates a query that are re-ranked.")


class Stage(Options):
    """One step of a recipe: a name, the kind of work and its options."""

    name: str
    kind: str
    options: SerializeAsAny[BaseModel]


class Recipe(Options):
    """A checked recipe."""

    name: str = Field(description="What the recipe is called.")
    seed: int = Field(default=1, ge=0, description="Fixes everything that is random.")
    data: DataOptions = Field(description="Documents, queries and judgments; a plain string is its folder.")
    first_stage: FirstStageOptions = Field(default=FirstStageOptions(), description="Where candidates come from.")
    model: ModelOptions = Field(default=ModelOptions(), description="What is trained.")
    evaluate: EvaluateOptions = Field(default=EvaluateOptions(), description="What is measured.")
    stages: tuple[Stage, ...] = Field(min_length=1, description="The stages by name, in order.")

    def as_dict(self) -> dict[str, Any]:
        """The recipe as YAML holds it, every option written out."""
        whole = self.model_dump(mode="json", exclude={"stages"})
        whole["stages"] = {s.name: {"kind": s.kind, **s.options.model_dump(mode="json")} for s in self.stages}
        return whole

    def as_yaml(self) -> str:
        """The text of a recipe file that reads back as this recipe."""
        return yaml.safe_dump(self.as_dict(), sort_keys=False, allow_unicode=True)


Tree = dict[str, Any]
Kinds = Mapping[str, type[BaseModel]]
Complain = Callable[[str, str], RankwellError]


@dataclass(frozen=True)
class Override:
    """A value put in the place of a recipe's; ``origin`` and ``base``: where it was said, and its files' folder."""

    path: str
    value: Any
    origin: str = "--set"
    base: Path = Path()


def read_recipe(path: str | os.PathLike[str], kinds: Kinds, settings: Sequence[str] = ()) -> Recipe:
    """Read a recipe file; ``kinds`` names each stage kind's options, ``settings`` are ``path=value`` overrides.

    Files named in the recipe are relative to its folder, those of settings to the current one.
    """
    return build_recipe(read_yaml(path), kinds, path, [parse_setting(text) for text in settings])


def build_recipe(
    tree: Mapping[str, Any], kinds: Kinds, source: str | os.PathLike[str], overrides: Sequence[Override] = ()
) -> Recipe:
    """Check a recipe given as plain data and read from ``source``, with ``overrides`` put in one after the other."""
    whole: Tree = anchored(dict(tree), Path(source).parent)
    for override in overrides:
        whole = anchored(_override(whole, override, kinds), override.base, only=override.path)
    return _validate(whole, kinds, source, overrides)


class _UniqueKeys(yaml.SafeLoader):
    """YAML where a key that comes twice is an error instead of silently replacing the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"the key {key.value!r} comes twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: str | os.PathLike[str]) -> Tree:
    """The mapping in a YAML file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(path, None, "no such file") from None
    except UnicodeDecodeError:
        raise InputError(path, None, "not UTF-8 text") from None
    except OSError as error:
        raise InputError(path, None, os.strerror(error.errno or 0).lower()) from None
    try:
        found = yaml.load(text, _UniqueKeys)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InputError(path, line, f"not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InputError(path, None, f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise InputError(path, None, f"expected keys and values, found {excerpt(str(found))}")
    return found


def parse_setting(text: str) -> Override:
    """``a.b=c``, the value in YAML."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise RankwellError(f"--set {text}: expected PATH=VALUE, such as stages.listwise.negatives=15")
    try:
        return Override(path.strip(), yaml.safe_load(value))
    except yaml.YAMLError:
        raise RankwellError(f"--set {text}: the value is not YAML") from None


# Putting overrides in


def _override(tree: Tree, override: Override, kinds: Kinds) -> Tree:
    """A copy of ``tree`` with one value changed. Keys are checked later, with all others; stages must be there now."""
    keys, value = override.path.split("."), override.value
    if keys[0] == "stages" and len(keys) > 1:
        stages = tree.get("stages") or {}
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


def _validate(tree: Tree, kinds: Kinds, source: str | os.PathLike[str], overrides: Sequence[Override]) -> Recipe:
    def complain(path: str, problem: str) -> RankwellError:
        for one in reversed(overrides):
            if path == one.path or path.startswith(f"{one.path}.") or one.path.startswith(f"{path}."):
                return RankwellError(f"{one.origin} {path}: {problem}")
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
    stages = _stages(tree.get("stages"), kinds, complain)
    try:
        return Recipe.model_validate({**tree, "stages": stages})
    except ValidationError as error:
        raise complain(*problem_of(error, Recipe)) from None


def _stages(tree: Any, kinds: Kinds, complain: Complain) -> tuple[Stage, ...]:
    if not isinstance(tree, Mapping):
        raise complain("stages", "expected stages by name, such as `pointwise: {epochs: 1}`")
    stages: list[Stage] = []
    for name, given in tree.items():
        path = f"stages.{name}"
        if given is False:  # `off`
            continue
        options = {} if given is None or given is True else given
        if not isinstance(options, Mapping):
            raise complain(path, f"expected options, on or off, found {excerpt(str(given))}")
        if not isinstance(name, str) or not _STAGE_NAME.fullmatch(name):
            raise complain(path, "a stage's name has letters, digits, '_' and '-' only")
        kind = options.get("kind", name)
        if kind not in kinds:
            hint = f"{_nearest(str(kind), kinds)} (known: {', '.join(kinds)})"
            raise complain(f"{path}.kind" if "kind" in options else path, f"no stage kind is called {kind!r}{hint}")
        try:
            checked = kinds[kind].model_validate({key: value for key, value in options.items() if key != "kind"})
        except ValidationError as error:
            below, problem = problem_of(error, kinds[kind])
            others = [other for other, own in kinds.items() if below in own.model_fields]
            if others and below not in kinds[kind].model_fields:
                problem = f"no such key; the stage kinds that have it: {', '.join(others)}"
            raise complain(f"{path}.{below}", problem) from None
        stages.append(Stage(name=name, kind=kind, options=checked))
    if not stages:
        raise complain("stages", "no stage is left")
    return tuple(stages)


def problem_of(error: ValidationError, model: type[BaseModel]) -> tuple[str, str]:
    """The path and the words of what is wrong first; a key nobody knows goes before values that do not fit."""
    found = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")[0]
    keys = [str(key) for key in found["loc"]]
    path = ".".join(keys)
    if found["type"] == "extra_forbidden":
        return path, f"no such key{_nearest(keys[-1], _keys_at(model, keys[:-1]))}"
    if found["type"] == "missing":
        return path, "is not set"
    if found["type"] in ("tuple_type", "list_type"):
        return path, f"expected a list, such as [{excerpt(str(found['input'])).strip(chr(39))}]"
    message = found["msg"].removeprefix("Value error, ")
    return path, f"{message[0].lower()}{message[1:]}, found {excerpt(str(found['input']))}"


def _keys_at(model: type[BaseModel], path: Sequence[str]) -> Iterable[str]:
    for key in path:
        found = model.model_fields.get(key)
        inner = found.annotation if found else None
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
