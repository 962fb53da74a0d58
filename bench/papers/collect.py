"""Merges the folders of trained arms into the files from which a page's tables are computed.

Each arm's folder has ``result.json`` and ``dev.csv.gz``. For each study and data set this writes a file per measure,
with a row for each dev query and a column ``ROW/seed N`` for each arm, and ``runs.json``: recipes and stage figures.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import write_json
from papers.results import MEASURES, MODELS
from rankwell.core.errors import InputError
from rankwell.corpus.datasets import FolderDataset
from rankwell.corpus.query_types import rule_types

Columns = dict[str, list[str]]
PRETRAINING = "pretrain"
"""A study without rankings: its stages report all there is."""
FILES = {"rank": "rules"}
"""Studies whose files have another name."""


def collect(arms: Sequence[Path], out: Path, only: Sequence[str] | None = None, repeated: bool = False) -> None:
    """Write the results of ``arms`` to ``out``, or those of some measures. What is there of other arms stays.

    Arms that are ``repeated`` were trained a second time, and get columns of their own beside those of the first.
    """
    groups: dict[tuple[str, str], list[tuple[Path, dict[str, Any]]]] = defaultdict(list)
    for folder in arms:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        result["arm"]["repeated"] = repeated
        groups[result["arm"]["study"], result["arm"]["data"]].append((folder, result))
    out.mkdir(parents=True, exist_ok=True)
    path = out / "runs.json"
    runs: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for (study, data), group in groups.items():
        group.sort(key=lambda member: (member[1]["arm"]["row"], member[1]["arm"]["seed"]))
        measures = only or group[0][1]["arm"].get("measures", MEASURES)
        for measure in measures if study != PRETRAINING else ():
            name = f"{FILES.get(study, study)}.{data}.{measure.replace('@', '')}.csv.gz"
            _write_values(out / name, measure, group)
        described = _describe([result for _, result in group])
        names = {(run["data"], run["row"]) for run in described}
        others = [run for run in runs.get(study, []) if (run["data"], run["row"]) not in names]
        runs[study] = [*others, *described]
    write_json(path, runs)


def collect_rare_words(folder: Path, name: str, out: Path, seed: int | None = None) -> None:
    """Write what ``rare-words`` measured, without words: a row for each case.

    With ``seed``, the columns are those of one of several trainings, and what is there of the others stays.
    """
    with open(folder / "cases.csv", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    figures = [" ".join(column.rsplit(" ", 2)[-2:]) for column in header[5:]]
    names = [f"{MODELS[k // (len(figures) // 2)]} {figure}" for k, figure in enumerate(figures)]
    path = out / f"rare-words.{name}.csv.gz"
    columns = read_columns(path) if seed is not None else {}
    qids = [row[0] for row in rows]
    if columns.setdefault("qid", qids) != qids:
        raise InputError(folder / "cases.csv", None, f"its cases are not those of {path}")
    for place, column in enumerate(names, 5):
        columns[column if seed is None else f"{column}/seed {seed}"] = [row[place] for row in rows]
    write_columns(path, columns)


def collect_types(folder: Path, split: str, out: Path) -> None:
    """Write the type of each query of a split, as rules guess it."""
    queries = FolderDataset(folder).queries(split)
    types = rule_types(queries)
    qids = [query.qid for query in queries]
    write_columns(out, {"qid": qids, "type": [types.get(qid, "") for qid in qids]})


def _write_values(path: Path, measure: str, group: Sequence[tuple[Path, dict[str, Any]]]) -> None:
    columns = read_columns(path)
    for folder, result in group:
        arm, source = result["arm"], folder / "dev.csv.gz"
        with gzip.open(source, "rt", encoding="utf-8", newline="") as file:
            rows = {row["qid"]: row for row in csv.DictReader(file)}
        if not columns:
            columns = {label: [row[label] for row in rows.values()] for label in ("qid", "words", "split word")}
            columns["BM25"] = [_short(row[f"BM25 {measure}"]) for row in rows.values()]
        name = f"{arm['row']}/seed {arm['seed']}" + (" repeated" if arm["repeated"] else "")
        if not set(columns["qid"]) <= rows.keys():
            raise InputError(source, None, f"it lacks rows of the columns before {name}")
        if len(rows) > len(columns["qid"]):
            print(f"{source}: {len(rows) - len(columns['qid'])} rows that other columns lack are left out")
        columns[name] = [_short(rows[qid][measure]) for qid in columns["qid"]]
    write_columns(path, columns)


def read_columns(path: Path) -> Columns:
    """The columns of a compressed CSV file by name; none if there is no such file."""
    if not path.exists():
        return {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return {name: [row[k] for row in rows] for k, name in enumerate(header)}


def write_columns(path: Path, columns: Columns) -> None:
    """Write a compressed CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([list(columns), *zip(*columns.values(), strict=True)])
    # Without name and time, so that the same values make the same bytes.
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def _short(value: str) -> str:
    return f"{float(value):.5g}"


def _describe(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each row the recipe of its first seed and, by seed, what its stages report."""
    rows: dict[str, dict[str, Any]] = {}
    for result in results:
        arm = result["arm"]
        name = arm["row"] + (", repeated" if arm["repeated"] else "")
        recipe = _without_places(result["recipe"])
        row = rows.setdefault(name, {"row": name, "data": arm["data"], "recipe": recipe, "seeds": {}})
        figures = {name: _numbers(stage) for name, stage in result["stages"].items() if name != "first stage"}
        drops = {"drops": result["drops"]} if "drops" in result else {}
        row["seeds"][str(arm["seed"])] = {"stages": figures, **drops}
    return list(rows.values())


def _numbers(stage: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (stage.get("figures") or {}).items() if isinstance(value, int | float)}


def _without_places(recipe: Any) -> Any:
    """The recipe without folders: files and models by their names, unset options left out."""
    if isinstance(recipe, dict):
        return {name: _without_places(value) for name, value in recipe.items() if value not in (None, {})}
    return Path(recipe).name if isinstance(recipe, str) and recipe.startswith("/") else recipe
