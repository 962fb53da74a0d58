"""RR@10 of cross-encoders in fp32 and in int8, on the same candidates of many queries: the table of what was measured.

python bench/int8_agreement.py tables docs/results/int8
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from harness import Table, make_parser

SPLITS = {"insuranceqa": "valid", "medquad": "dev"}


def tables(folder: Path) -> None:
    """Print the table of some files."""
    columns = ("difference", "standard error", "better / worse", "largest error")
    table = Table("data, model", "queries", "RR@10 fp32", "int8", *columns)
    for path in sorted(folder.glob("*.csv")):
        data, _, model = path.stem.partition(".")
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        exact, fast = (np.array([float(row[name]) for row in rows]) for name in ("fp32", "int8"))
        change = fast - exact
        table.row(
            f"`{data}` {SPLITS[data]}, {model}",
            len(rows),
            _short(exact.mean()),
            _short(fast.mean()),
            f"{change.mean():+.4f}".replace("0.", ".").replace("-", "−"),
            _short(change.std(ddof=1) / len(rows) ** 0.5),
            f"{int((change > 0).sum())} / {int((change < 0).sum())}",
            f"{max(float(row['error']) for row in rows):.2f}",
        )


def _short(value: float) -> str:
    return f"{value:.4f}".removeprefix("0")


def main() -> None:
    """Print the table of what was measured."""
    parser = make_parser(__doc__)
    parser.add_argument("task", choices=["tables"])
    parser.add_argument("folder", type=Path)
    tables(parser.parse_args().folder)


if __name__ == "__main__":
    main()
