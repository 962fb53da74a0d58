"""An experiment's figures: means over seeds, intervals, tests, groups of queries, and the files that hold them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_text
from rankwell.core.manifest import write_json
from rankwell.corpus.datasets import Dataset
from rankwell.corpus.records import Query
from rankwell.evaluation.breakdowns import Groups, break_down, breakdown_table, length_groups, type_groups
from rankwell.evaluation.compare import Comparison, compare_evaluations
from rankwell.evaluation.evaluate import Evaluation
from rankwell.evaluation.significance import Interval, mean_interval
from rankwell.evaluation.tables import (
    Cell,
    Table,
    as_csv,
    as_markdown,
    comparison_notes,
    contrast_table,
    figure_cell,
    mark,
    name_cell,
)
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.names import find_model
from rankwell.plots.pictures import new_picture, save_picture
from rankwell.training.data.prepare import Collection, Split, find_types
from rankwell.training.recipe import Recipe

DEV = "dev"

Measured = Mapping[str, Sequence[Evaluation]]
"""The evaluations of each variant, one a seed."""


@dataclass(frozen=True, eq=False)
class Compared:
    """The variants' means over seeds beside the baseline's.

    ``deviations`` are those between seeds, None where there is one. ``intervals`` are the 95 % bootstrap intervals
    of the variants' figures, over queries. ``breakdowns`` are the comparisons within groups of queries.
    """

    comparison: Comparison
    seeds: Mapping[str, int]
    deviations: Mapping[str, Mapping[str, float | None]]
    intervals: Mapping[str, Mapping[str, Interval]]
    breakdowns: Mapping[str, Mapping[str, Comparison]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON holds them."""
        return {
            **self.comparison.as_dict(),
            "seeds": dict(self.seeds),
            "sd": dict(self.deviations),
            "interval": dict(self.intervals),
            "groups": {
                by: {group: within.as_dict() for group, within in groups.items()}
                for by, groups in self.breakdowns.items()
            },
        }


@dataclass(frozen=True, eq=False)
class ExperimentTables:
    """Comparisons by the name of what was measured on (``dev`` and what the suite adds), and what failed.

    ``claims`` are those of a paper, if the suite has any.
    """

    compared: Mapping[str, Compared]
    failures: Mapping[str, str]
    notes: Sequence[str] = field(default=())
    claims: Table | None = None

    def table(self, place: str) -> Table:
        """The table of one of them."""
        compared = self.compared[place]
        notes = (
            *comparison_notes(compared.comparison),
            "figures are means over seeds, tests compare each query's mean over seeds, sd is between seeds, "
            "95 % is the bootstrap interval over queries",
            *self.notes,
            *(f"failed: {name}: {reason}" for name, reason in self.failures.items()),
        )
        return replace(_table(compared), notes=notes)

    def group_tables(self, place: str) -> list[Table]:
        """A table for each way of grouping the queries, in the first measure."""
        compared = self.compared[place]
        measure = compared.comparison.measures[0]
        return [breakdown_table(by, groups, measure) for by, groups in compared.breakdowns.items()]


def compare_variants(
    measured: Measured, order: Sequence[str], baseline: str, test: str, groups: Mapping[str, Groups]
) -> Compared:
    """Compare each query's mean over seeds; ``groups`` by what they group by."""
    names = [name for name in order if name in measured]
    means = {
        name: replace(measured[name][0], values=np.mean([each.values for each in measured[name]], axis=0))
        for name in names
    }
    comparison = compare_evaluations(means, baseline, test=test)
    intervals = {
        name: {measure: mean_interval(values) for measure, values in mean.per_query.items()}
        for name, mean in means.items()
    }
    return Compared(
        comparison,
        {name: len(measured[name]) for name in names},
        {name: deviations(measured[name]) for name in names},
        intervals,
        {by: break_down(comparison, members) for by, members in groups.items()},
    )


def deviations(evaluations: Sequence[Evaluation]) -> dict[str, float | None]:
    """The standard deviation between seeds, by measure; None if there is only one seed."""
    measures = [str(measure) for measure in evaluations[0].measures]
    if len(evaluations) == 1:
        return dict.fromkeys(measures)
    return {m: float(np.std([evaluation.mean[m] for evaluation in evaluations], ddof=1)) for m in measures}


def _table(compared: Compared) -> Table:
    comparison = compared.comparison
    best = {str(m): max(figures[str(m)] for figures in comparison.mean.values()) for m in comparison.measures}
    rows = []
    for name, figures in comparison.mean.items():
        cells = [name_cell(name), Cell(compared.seeds[name], str(compared.seeds[name]))]
        for place, measure in enumerate(comparison.measures):
            value, deviation = figures[str(measure)], compared.deviations[name][str(measure)]
            sign = mark(comparison, name, measure)
            cells.append(figure_cell(measure, value, sign, value == best[str(measure)]))
            cells.append(Cell(deviation, "" if deviation is None else f"{deviation:.4f}"))
            if place == 0:  # of the others, results.json has them: the table must fit a page
                cells += [Cell(end, f"{end:.4f}") for end in compared.intervals[name][str(measure)]]
        rows.append(tuple(cells))
    columns = []
    for place, measure in enumerate(comparison.measures):
        columns += [str(measure), f"{measure} sd", *(("95 % low", "high") if place == 0 else ())]
    return Table(("variant", "seeds", *columns), tuple(rows))


# Files


def write_tables(out: Path, outcome: ExperimentTables) -> None:
    """``table.md``, ``results.json`` and, with claims of a paper, ``claims.csv``."""
    if outcome.claims is not None:
        with atomic_text(out / "claims.csv") as file:
            file.write(as_csv(outcome.claims) + "\n")
    with atomic_text(out / "table.md") as file:
        if outcome.claims is not None:
            file.write(f"## The paper's claims\n\n{as_markdown(outcome.claims)}\n\n")
        for place, compared in outcome.compared.items():
            tables = [outcome.table(place), contrast_table(compared.comparison), *outcome.group_tables(place)]
            file.write(f"## {place}\n\n" + "".join(f"{as_markdown(table)}\n\n" for table in tables))
    figures = {place: compared.as_dict() for place, compared in outcome.compared.items()}
    write_json(out / "results.json", {"tables": figures, "failures": dict(outcome.failures)})


def file_name(name: str) -> str:
    """A name with what a shell would trip over replaced."""
    return re.sub(r"[^A-Za-z0-9_.+=-]+", "-", name).strip("-.") or "variant"


# Groups of queries in which an experiment's variants are compared apart


GroupKind = Literal["split words", "length", "type"]


def query_groups(
    kind: GroupKind, recipe: Recipe, collection: Collection, split: Split, pool: Path, device: str | None = None
) -> Groups:
    """The groups of a split's queries: with and without a split word, by number of words, or by type."""
    if kind == "length":
        return length_groups(split.queries)
    if kind == "type":
        return type_groups(_types(recipe, collection.dataset, split, pool, device))
    return split_word_groups(split.queries, Tokenizer.open(find_model(recipe.model.start)))


def split_word_groups(queries: Sequence[Query], tokenizer: Tokenizer) -> Groups:
    """Queries with a word that the tokenizer cuts into several pieces, and those without."""
    pieces = tokenizer.encode([query.text for query in queries])
    spans = zip(pieces.begins.tolist(), pieces.ends.tolist(), strict=True)
    cut = [bool(pieces.continues[begin:end].any()) for begin, end in spans]
    having = frozenset(query.qid for query, has in zip(queries, cut, strict=True) if has)
    return {"with a split word": having, "without": frozenset(query.qid for query in queries) - having}


def _types(recipe: Recipe, dataset: Dataset, split: Split, pool: Path, device: str | None) -> dict[str, str]:
    """The recipe's types, even where its template has no place for them."""
    source = "auto" if recipe.data.types == "none" else recipe.data.types
    types = find_types(source, dataset, split.name, split.queries, pool, device)
    if not types:
        raise RankwellError(f"{dataset.name}: no query of the split {split.name!r} has a type to group by")
    return types


def draw_axis(values: Mapping[str, float], measured: Measured, axis: str, path: Path) -> None:
    """The first measure against the option ``axis``, of which ``values`` has each variant's, with the deviation."""
    points = []
    for name, value in values.items():
        if name in measured:
            measure = str(measured[name][0].measures[0])
            figures = [evaluation.mean[measure] for evaluation in measured[name]]
            points.append((value, np.mean(figures), deviations(measured[name])[measure] or 0.0))
    x, y, deviation = np.array(sorted(points)).T
    figure, axes = new_picture("drawing an experiment", 5, 3.2)
    axes.errorbar(x, y, yerr=deviation, marker="o", capsize=3, linewidth=1.2)
    axes.set_xlabel(axis)
    axes.set_ylabel(measure)
    if min(x) > 0 and max(x) / min(x) >= 20:  # 1 to 31 negatives, 1 to 100 % of the queries
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(x, [f"{value:g}" for value in x])
    save_picture(figure, path)
