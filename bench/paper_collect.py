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
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness import write_json
from paper_recipes import MEASURES
from paper_tables import MODELS
from rankwell.core.errors import InputError
from rankwell.corpus.datasets import FolderDataset
from rankwell.corpus.query_types import rule_types

PRETRAINING = "pretrain"
"""A study without rankings: its stages report all there is."""
FIRST_STAGE, RANKER = "first stage", "ranker"
"""What the columns of figures by depth begin with."""
FILES = {"rank": "rules"}
"""Studies whose files have another name."""


def collect(arms: Sequence[Path], out: Path, only: Sequence[str] | None = None, repeated: bool = False) -> None:
    """Write the results of ``arms`` to ``out``, or those of some measures. What is there of other arms stays.

    Arms that are ``repeated`` were trained a second time, and get columns of their own beside those of the first.
    """
    results = [json.loads((folder / "result.json").read_text(encoding="utf-8")) for folder in arms]
    for result in results:
        result["arm"]["repeated"] = repeated
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, result in enumerate(results):
        groups[result["arm"]["study"], result["arm"]["data"]].append(number)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "runs.json"
    runs: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for (study, data), numbers in groups.items():
        numbers.sort(key=lambda n: (results[n]["arm"]["row"], results[n]["arm"]["seed"]))
        measures = only or results[numbers[0]]["arm"].get("measures", MEASURES)
        for measure in measures if study != PRETRAINING else ():
            name = f"{FILES.get(study, study)}.{data}.{measure.replace('@', '')}.csv.gz"
            _write_values(out / name, measure, arms, results, numbers)
        for number in numbers:
            _write_margins(arms[number], results[number]["arm"], out)
        described = _describe([results[n] for n in numbers])
        names = {(run["data"], run["row"]) for run in described}
        others = [run for run in runs.get(study, []) if (run["data"], run["row"]) not in names]
        runs[study] = [*others, *described]
    write_json(path, runs)


def collect_rare_words(folder: Path, name: str, out: Path, seed: int | None = None) -> None:
    """Write what ``rankwell experiment rare-words`` measured, without words: a row for each case.

    With ``seed``, the columns are those of one of several trainings, and what is there of the others stays.
    """
    with open(folder / "cases.csv", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    figures = [column.rsplit(" ", 2)[-2:] for column in header[5:]]
    half = len(figures) // 2
    names = [f"{model} {' '.join(figure)}" for k, figure in enumerate(figures) for model in [MODELS[k // half]]]
    path = out / f"rare-words.{name}.csv.gz"
    columns: dict[str, list[str]] = read_columns(path) if seed is not None and path.exists() else {}
    qids = [row[0] for row in rows]
    if columns.setdefault("qid", qids) != qids:
        raise InputError(folder / "cases.csv", None, f"its cases are not those of {path}")
    for place, column in enumerate(names, 5):
        columns[column if seed is None else f"{column}/seed {seed}"] = [row[place] for row in rows]
    write_table(path, [list(columns), *zip(*columns.values(), strict=True)])


def collect_depths(path: Path, data: str, first: str, row: str, seed: int, out: Path) -> None:
    """Add what ``depths`` wrote for one trained ranker to the file of its data set and first stage."""
    values, kept = read_columns(path), out / f"depths.{data}.{first}.csv.gz"
    shared = {name: column for name, column in values.items() if not name.startswith(f"{RANKER} ")}
    columns = read_columns(kept) if kept.exists() else dict(shared)
    if any(columns[name] != column for name, column in shared.items()):
        raise InputError(path, None, f"its queries or candidates are not those of {kept}")
    for name, column in values.items():
        if name not in shared:
            columns[f"{row} {name.removeprefix(RANKER).strip()}/seed {seed}"] = column
    write_table(kept, [list(columns), *zip(*columns.values(), strict=True)])


def collect_types(folder: Path, split: str, out: Path) -> None:
    """Write the type of each query of a split, as rules guess it."""
    queries = FolderDataset(folder).queries(split)
    types = rule_types(queries)
    write_table(out, [["qid", "type"], *([query.qid, types.get(query.qid, "")] for query in queries)])


def _write_values(
    path: Path, measure: str, arms: Sequence[Path], results: Sequence[dict[str, Any]], numbers: Sequence[int]
) -> None:
    columns: dict[str, list[str]] = read_columns(path) if path.exists() else {}
    for number in numbers:
        source = arms[number] / "dev.csv.gz"
        with gzip.open(source, "rt", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if not columns:
            columns = {label: [row[label] for row in rows] for label in ("qid", "words", "split word")}
            columns["BM25"] = [_short(row[f"BM25 {measure}"]) for row in rows]
        by_qid = {row["qid"]: _short(row[measure]) for row in rows}
        _add_column(
            columns, _column_name(results[number]["arm"]), ["qid"], {(k,): v for k, v in by_qid.items()}, source
        )
    write_table(path, [list(columns), *zip(*columns.values(), strict=True)])


def _column_name(arm: dict[str, Any]) -> str:
    return f"{arm['row']}/seed {arm['seed']}" + (" repeated" if arm["repeated"] else "")


def _add_column(
    columns: dict[str, list[str]], name: str, keys: Sequence[str], values: dict[tuple[str, ...], str], source: Path
) -> None:
    """Add values to the rows that ``keys`` identify; those of other rows are left out, and counted aloud."""
    rows = list(zip(*(columns[key] for key in keys), strict=True))
    if not set(rows) <= set(values):
        raise InputError(source, None, f"it lacks rows of the columns before {name}")
    if len(values) > len(rows):
        print(f"{source}: {len(values) - len(rows)} rows that other columns lack are left out")
    columns[name] = [values[row] for row in rows]


def _write_margins(folder: Path, arm: dict[str, Any], out: Path) -> None:
    """Add what ``margins`` and ``candidates`` wrote beside the values of an arm."""
    for source in sorted(folder.glob("margins-*.csv")):
        file = "rare-words" if source.stem == "margins-rare-words" else "traps"
        with open(source, encoding="utf-8", newline="") as stream:
            rows = {_key(row["case"], row["replacement"]): row["margin"] for row in csv.DictReader(stream)}
        _join(out / f"{file}.{arm['data']}.csv.gz", arm, ["case", "replacement"], rows, source)
    source = folder / "candidates.csv"
    if source.exists():
        with open(source, encoding="utf-8", newline="") as stream:
            found = list(csv.DictReader(stream))
        rows = {_key(row["qid"], other): row[other] for other in ("look-alike", "neither") for row in found}
        _join(out / f"candidates.{arm['data']}.csv.gz", arm, ["qid", "other"], rows, source)


def _key(*cells: str) -> tuple[str, ...]:
    return cells


def _join(path: Path, arm: dict[str, Any], keys: Sequence[str], rows: dict[tuple[str, ...], str], source: Path) -> None:
    columns = read_columns(path) if path.exists() else {key: [row[k] for row in rows] for k, key in enumerate(keys)}
    _add_column(columns, _column_name(arm), keys, rows, source)
    write_table(path, [list(columns), *zip(*columns.values(), strict=True)])


def read_columns(path: Path) -> dict[str, list[str]]:
    """The columns of a compressed CSV file by name."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return {name: [row[k] for row in rows] for k, name in enumerate(header)}


def write_table(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write a compressed CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    # Without name and time, so that the same values make the same bytes.
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def _short(value: str) -> str:
    return f"{float(value):.5g}"


def _describe(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each row the recipe of its first seed and, by seed, what its stages report."""
    rows: dict[str, dict[str, Any]] = {}
    for result in results:
        arm = result["arm"]
        recipe = _without_places(result["recipe"])
        name = arm["row"] + (", repeated" if arm["repeated"] else "")
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
