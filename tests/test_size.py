"""The ceiling: what the house may hold, room by room, against the table ``tests/size.tsv``.

Any commit may lower a figure of the table. Raising one takes a commit of its own that says what it bought.
``python tests/test_size.py > tests/size.tsv`` writes the figures of today.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "rankwell"
TABLE = Path(__file__).with_name("size.tsv")


def measure() -> dict[str, int]:
    """Lines, classes and modules of each room, and what users have to choose from."""
    import rankwell
    from rankwell.cli.main import find_verbs
    from rankwell.training.recipe import DataOptions, EvaluateOptions, FirstStageOptions, ModelOptions, Recipe
    from rankwell.training.stage import stage_options

    figures: dict[str, int] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        classes = sum(isinstance(node, ast.ClassDef) for node in ast.walk(ast.parse(text)))
        inside = path.relative_to(PACKAGE).parts
        for room in ("src", inside[0] if len(inside) > 1 else "face"):
            for what, count in (("lines", len(text.splitlines())), ("classes", classes), ("modules", 1)):
                figures[f"{room} {what}"] = figures.get(f"{room} {what}", 0) + count
    groups = [Recipe, DataOptions, EvaluateOptions, FirstStageOptions, ModelOptions, *stage_options().values()]
    parameters = [set(inspect.signature(verb).parameters) - {"context"} for verb in find_verbs()]
    figures["public names"] = len(rankwell.__all__)
    figures["most parameters of a command"] = max(map(len, parameters))
    figures["recipe options"] = sum(len(group.model_fields) for group in groups)
    for folder in ("bench", "tests"):
        files = (ROOT / folder).rglob("*.py")
        figures[f"{folder} lines"] = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    return figures


def test_the_house_is_no_larger_than_its_table_allows() -> None:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    allowed = {name: int(count) for name, count in (line.split("\t") for line in lines)}
    figures = measure()
    assert {name: count for name, count in figures.items() if count > allowed.get(name, 0)} == {}
    assert figures["src modules"] > 100


if __name__ == "__main__":
    print("\n".join(f"{name}\t{count}" for name, count in measure().items()))
