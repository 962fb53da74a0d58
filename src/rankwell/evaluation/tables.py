"""Figures as tables: what they contain, and a function for each format."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankwell.core.registry import Registry
from rankwell.evaluation.compare import Comparison, Contrast
from rankwell.evaluation.evaluate import Evaluation
from rankwell.evaluation.notation import Measure

Value = str | int | float | None

TEST_NAMES = {"t": "paired t-test", "wilcoxon": "Wilcoxon signed-rank test", "randomisation": "randomisation test"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A value; ``shown`` is its text, ``mark`` a footnote sign, ``best`` whether it is the best of its column."""

    value: Value
    shown: str
    mark: str = ""
    best: bool = False

    @property
    def text(self) -> str:
        """The cell without emphasis."""
        return self.shown + self.mark


@dataclass(frozen=True, slots=True)
class Table:
    """Columns, rows and notes. The first ``labels`` columns are left-aligned names, the others are numbers.

    ``data`` holds the exact figures for the JSON format.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    labels: int = 1
    notes: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


# Contents


def name_cell(name: str) -> Cell:
    """A label."""
    return Cell(name, name)


def figure_cell(measure: Measure, value: float, mark: str = "", best: bool = False) -> Cell:
    """A measure's figure with four decimals, as trec_eval prints it; counts have none."""
    return Cell(value, f"{value:.0f}" if measure.summary == "sum" else f"{value:.4f}", mark, best)


def evaluation_table(evaluation: Evaluation) -> Table:
    """One run: a row for each measure."""
    rows = tuple((name_cell(str(m)), figure_cell(m, evaluation.mean[str(m)])) for m in evaluation.measures)
    note = f"{evaluation.run}: {len(evaluation.qids)} queries"
    return Table(("measure", "value"), rows, notes=(note,), data=evaluation.as_dict())


def query_table(evaluations: Mapping[str, Evaluation]) -> Table:
    """A row for each run and query, and one for all its queries."""
    measures = next(iter(evaluations.values())).measures
    rows: list[tuple[Cell, ...]] = []
    for name, evaluation in evaluations.items():
        label = name_cell(name)
        for qid, values in zip(evaluation.qids, evaluation.values.T.tolist(), strict=True):
            rows.append((label, name_cell(qid), *map(figure_cell, measures, values)))
        rows.append((label, name_cell("all"), *map(figure_cell, measures, evaluation.mean.values())))
    data = {"runs": {name: evaluation.as_dict(per_query=True) for name, evaluation in evaluations.items()}}
    return Table(("run", "query", *map(str, measures)), tuple(rows), labels=2, data=data)


def comparison_table(comparison: Comparison) -> Table:
    """A row for each run, a column for each measure, and marks for significant differences."""
    highest = {str(m): max(figures[str(m)] for figures in comparison.mean.values()) for m in comparison.measures}
    rows = tuple(
        (
            name_cell(name),
            *(
                figure_cell(m, figures[str(m)], mark(comparison, name, m), figures[str(m)] == highest[str(m)])
                for m in comparison.measures
            ),
        )
        for name, figures in comparison.mean.items()
    )
    columns = ("run", *map(str, comparison.measures))
    return Table(columns, rows, notes=comparison_notes(comparison), data=comparison.as_dict())


def mark(comparison: Comparison, run: str, measure: Measure) -> str:
    """The sign of a significant difference."""
    return "*" if comparison.significant(run, str(measure)) else ""


def comparison_notes(comparison: Comparison) -> tuple[str, ...]:
    """What the marks mean."""
    test = TEST_NAMES.get(comparison.test, comparison.test)
    return (
        f"* differs from {comparison.baseline} at p < {comparison.level:g}: {test}, two-sided, "
        f"Holm-corrected over {len(comparison.contrasts)} comparisons; {len(comparison.qids)} queries",
    )


def contrast_table(comparison: Comparison) -> Table:
    """A row for each run and measure with all details of the difference."""
    figures = ("baseline", "value", "difference", "change", "low", "high", "wins", "ties", "losses", "p", "Holm p")
    by_name = {str(measure): measure for measure in comparison.measures}
    rows = tuple(contrast_row(comparison, c, by_name[c.measure]) for c in comparison.contrasts)
    note = f"differences from {comparison.baseline}; low and high: 95 % bootstrap interval of the difference"
    return Table(("run", "measure", *figures), rows, labels=2, notes=(note,), data=comparison.as_dict())


def contrast_row(comparison: Comparison, contrast: Contrast, measure: Measure) -> tuple[Cell, ...]:
    """The cells of :func:`contrast_table`."""
    relative = "" if contrast.relative is None else f"{contrast.relative:+.1%}"
    return (
        name_cell(contrast.run),
        name_cell(contrast.measure),
        *(figure_cell(measure, comparison.mean[run][contrast.measure]) for run in (comparison.baseline, contrast.run)),
        Cell(contrast.difference, f"{contrast.difference:+.4f}"),
        Cell(contrast.relative, relative),
        *(Cell(end, f"{end:+.4f}") for end in contrast.interval),
        *(Cell(number, str(number)) for number in (contrast.wins, contrast.ties, contrast.losses)),
        *(Cell(p, "<.0001" if p < 0.0001 else f"{p:.4f}") for p in (contrast.p, contrast.corrected)),
    )


# Formats

FORMATS: Registry[Callable[[Table], str]] = Registry("table format")


@FORMATS.register("text")
def as_text(table: Table) -> str:
    """Aligned columns for a terminal."""
    lines = [table.columns, *(tuple(cell.text for cell in row) for row in table.rows)]
    # Marks stand outside the column, so that the digits stay aligned.
    hang = [any(row[i].mark for row in table.rows) for i in range(len(table.columns))]
    for j, row in enumerate(table.rows, start=1):
        lines[j] = tuple(text + " " * (h and not cell.mark) for text, h, cell in zip(lines[j], hang, row, strict=True))
    lines[0] = tuple(title + " " * h for title, h in zip(table.columns, hang, strict=True))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        "  ".join(
            text.ljust(width) if i < table.labels else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([*aligned, *table.notes])


@FORMATS.register("markdown")
def as_markdown(table: Table) -> str:
    """A pipe table; the best of each column is bold."""

    def escape(text: str) -> str:
        return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")

    def show(cell: Cell) -> str:
        return (f"**{escape(cell.shown)}**" if cell.best else escape(cell.shown)) + escape(cell.mark)

    rule = [":--" if i < table.labels else "--:" for i in range(len(table.columns))]
    lines = [[escape(title) for title in table.columns], rule, *([show(cell) for cell in row] for row in table.rows)]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return "\n\n".join([body, *map(escape, table.notes)])


@FORMATS.register("latex")
def as_latex(table: Table) -> str:
    r"""A ``tabular`` for the booktabs package; the best of each column is bold."""

    def show(cell: Cell) -> str:
        shown = rf"\textbf{{{escape_latex(cell.shown)}}}" if cell.best else escape_latex(cell.shown)
        return shown + (f"$^{{{escape_latex(cell.mark)}}}$" if cell.mark else "")

    body = [" & ".join(map(show, row)) + r" \\" for row in table.rows]
    lines = [
        r"\begin{tabular}{" + "l" * table.labels + "r" * (len(table.columns) - table.labels) + "}",
        r"\toprule",
        " & ".join(map(escape_latex, table.columns)) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join([*lines, *(f"% {note}" for note in table.notes)])


LATEX_SPECIALS = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        **{sign: "\\" + sign for sign in "&%$#_{}"},
    }
)


def escape_latex(text: str) -> str:
    """Escape ``text`` for LaTeX."""
    return text.translate(LATEX_SPECIALS)


@FORMATS.register("csv")
def as_csv(table: Table) -> str:
    """Comma-separated exact values, without marks and notes."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([cell.value for cell in row] for row in table.rows)
    return file.getvalue().rstrip("\n")


@FORMATS.register("json")
def as_json(table: Table) -> str:
    """The exact figures as JSON."""
    return json.dumps(table.data, indent=2, ensure_ascii=False)


def report(result: Evaluation | Comparison, format: str = "text", *, per_query: bool = False) -> str:
    """An evaluation or a comparison as text of one ``format`` (text, markdown, latex, csv or json).

    A comparison is a table of runs by measures; in text and markdown, the details of every difference follow.
    """
    render = FORMATS[format]
    if isinstance(result, Evaluation):
        return render(query_table({result.run: result}) if per_query else evaluation_table(result))
    if per_query:
        return render(query_table(result.evaluations))
    if format == "csv":
        return render(contrast_table(result))
    if format in ("latex", "json"):
        return render(comparison_table(result))
    return f"{render(comparison_table(result))}\n\n{render(contrast_table(result))}"
