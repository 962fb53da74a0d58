"""The shape of the package: which layer may import which, and what an import costs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import rankwell
from rankwell.papers import PARTS

ROOT = Path(rankwell.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
# From the bottom up. A layer may import itself and what stands before it; layers in one row do not know each other.
ROWS = (
    ("core",),
    ("corpus", "sample"),
    ("inputs", "plots", "evaluation"),
    ("models", "retrieve"),
    ("rank",),
    ("training", "serve", "adapters"),
    ("cli",),
    ("papers",),
    ("__main__",),
)
LEVEL = {layer: level for level, row in enumerate(ROWS) for layer in row}
ONLY_FOR = {"sample": {"cli", "rank"}}  # the bundled data is for the demo and for comparing precisions

KNOWN_TWICE = {"answers", "describe", "engine", "first_stage", "pairs", "tables", "task", "texts"}

SURGERY = r"copy\.copy\(|\bcopy\(self\)|object\.__new__|__dict__\.|vars\([^)]*\)(\[|\.(update|pop)\()"


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every import, those within functions and for type checking too."""
    package = name_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                # `from rankwell import sample` imports a layer, `from rankwell.core.errors import X` a name.
                yield node.lineno, f"{module}.{alias.name}" if module == "rankwell" else module


def test_what_nothing_here_calls_is_written_of_for_its_users() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in MODULES]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {path.stem for path in MODULES if path.parent.name == "cli"}  # a verb is found by the name of its file
    made = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    # A decorator is a use: it registers what it stands on.
    left = {node.name for node in made if not node.decorator_list and not node.name.startswith("__")} - used
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT.parents[1] / "docs").glob("*.md"))
    assert sorted(name for name in left if not re.search(rf"\b{name}\b", pages)) == []


def test_every_folder_has_its_place_among_the_layers() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders <= LEVEL.keys()
    assert {"core", "corpus", "evaluation", "retrieve", "cli"} <= folders


def test_imports_go_down_the_layers_only() -> None:
    wrong, checked = [], 0
    for path in MODULES:
        own = layer_of(name_of(path))
        if own is None:
            continue  # rankwell/__init__.py names what is public, lazily
        for line, module in imports_of(path):
            other = layer_of(module) if module.split(".")[0] == "rankwell" else None
            if other is None or other == own:
                continue
            checked += 1
            commands_only = (own, other) == ("papers", "cli") and path.name != "command.py"
            if commands_only or not LEVEL[other] < LEVEL[own] or own not in ONLY_FOR.get(other, {own}):
                wrong.append(f"{path.relative_to(ROOT)}, line {line}: {own} may not import {module}")
    assert wrong == []
    assert checked > 50


def loaded_by(code: str) -> set[str]:
    """The top-level packages in a fresh interpreter that has run ``code``."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_importing_rankwell_costs_next_to_nothing() -> None:
    loaded = loaded_by("import rankwell, rankwell.cli.main")
    assert "rankwell" in loaded
    assert loaded.isdisjoint({"numpy", "numba", "scipy", "torch", "transformers", "pydantic", "Stemmer"})


def test_the_first_stage_and_evaluation_never_import_torch() -> None:
    names = [
        name_of(path)
        for path in MODULES
        if layer_of(name_of(path)) in ("core", "corpus", "plots", "retrieve", "evaluation", "cli")
    ]
    assert len(names) > 25
    loaded = loaded_by("import importlib\nfor name in " + repr(names) + ": importlib.import_module(name)")
    assert "numba" in loaded
    assert loaded.isdisjoint({"torch", "transformers", "tokenizers", "matplotlib", "ir_datasets"})


def test_recipes_are_read_without_torch_and_numba() -> None:
    code = """
from pathlib import Path
from rankwell.training.recipe_reader import read_recipe
for path in Path("recipes").rglob("*.yaml"):
    if "variants:" not in path.read_text():
        read_recipe(path, ["data=my-data"])
"""
    assert loaded_by(code).isdisjoint({"torch", "transformers", "tokenizers", "numba"})


def test_the_public_names_are_there_and_others_are_not() -> None:
    assert set(rankwell.__all__) <= set(dir(rankwell))
    assert all(getattr(rankwell, name) is not None for name in rankwell.__all__)
    with pytest.raises(AttributeError, match="No rankwell attribute nonsense"):
        rankwell.nonsense  # noqa: B018


def test_no_module_needs_another_that_needs_it() -> None:
    needs = {name_of(path): {module for _, module in imports_of(path)} for path in MODULES}
    left = {name: {other for other in others if other in needs and other != name} for name, others in needs.items()}
    while free := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in free}
    assert left == {}


def test_the_trunk_knows_the_wings_by_the_registry_alone() -> None:
    names = re.compile(r"sdnet|deepct|doc2query|duobert|\bduo\b", re.IGNORECASE)
    wings, allowed = ROOT / "papers", {"drummer duo dynasty"}  # a list of nouns
    lines = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in MODULES
        if wings not in path.parents
        for line in path.read_text(encoding="utf-8").splitlines()
        if names.search(line) and not any(words in line for words in allowed)
    ]
    assert lines == []


def test_the_wings_register_their_own_parts_alone() -> None:
    homes = [home for kind in PARTS.values() for home in kind.values()]
    assert len(homes) > 15
    assert [home for home in homes if not home.startswith("rankwell.papers.")] == []


def test_a_file_is_told_by_its_name() -> None:
    """Verbs and stages are called what users call them, and wings have like parts; other names are a file's own."""
    paths = [path.relative_to(ROOT) for path in MODULES if path.name != "__init__.py"]
    names = Counter(path.stem for path in paths if not {"papers", "cli", "stages"} & set(path.parts))
    assert {name for name, count in names.items() if count > 1} <= KNOWN_TWICE


def test_a_module_is_a_sitting_of_reading() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > 600} == {}


def test_nothing_is_unpickled_evaluated_or_executed() -> None:
    wrong = []
    for path in MODULES:
        wrong += [
            f"{path}, line {line}: {m}" for line, m in imports_of(path) if m in ("pickle", "marshal", "shelve", "dill")
        ]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("eval", "exec", "compile")
            ):
                wrong.append(f"{path}, line {node.lineno}: {node.func.id}")
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and getattr(node.value, "value", True):
                wrong.append(f"{path}, line {node.lineno}: allow_pickle")
    assert wrong == []


def test_init_files_hold_no_logic() -> None:
    for path in ROOT.glob("*/**/__init__.py"):
        kinds = {type(node) for node in ast.parse(path.read_text(encoding="utf-8")).body}
        assert kinds <= {ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign}, path


def test_objects_are_made_by_their_classes_alone() -> None:
    """Values are copied by ``replace``, and what is open is held: nothing is cloned behind the back of its class."""
    lines = [(name_of(path), line) for path in MODULES for line in path.read_text(encoding="utf-8").splitlines()]
    assert not [(name, line.strip()) for name, line in lines if re.search(SURGERY, line)]


def test_one_module_decides_what_precision_auto_is() -> None:
    decides = re.compile(r"(precision|dtype)\S* *(==|!=|is|in) *\(?\"auto\"")
    assert [name_of(path) for path in MODULES if decides.search(path.read_text(encoding="utf-8"))] == [
        "rankwell.models.devices"
    ]
