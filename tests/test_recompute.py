"""Recomputes the verdicts of the papers' pages from the kept values with numpy and scipy, without rankwell.

``python tests/test_recompute.py`` reads the tables of claims and prints how far their figures are from its own.
"""

from __future__ import annotations

import csv
import gzip
import os
import re
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

DOCS = Path(__file__).parents[1] / "docs"
KEPT = DOCS / "results" / "papers"
PAGES = ("monobert.md", "drbert.md", "deepct.md", "ccnu.md", "results/papers/drbert.md")
Rows = dict[str, dict[int, np.ndarray]]


def read(path: Path) -> Rows:
    """The values of each row by seed."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    rows: Rows = {}
    for place, name in enumerate(header):
        row, slash, seed = name.rpartition("/seed ")
        if slash and seed.isdigit():
            rows.setdefault(row, {})[int(seed)] = np.array([float(line[place]) for line in lines])
    return rows


def contrast(rows: Rows, row: str, against: str) -> tuple[float, float, float, int]:
    """Mean, half of the 95 % interval, p and the number of seeds: queries and seeds are random (Clark, 1973)."""
    ours, theirs = rows[row], rows[against]
    if against == "first stage":
        theirs = {seed: next(iter(theirs.values())) for seed in ours}
    gaps = np.array([ours[seed] - theirs[seed] for seed in sorted(set(ours) & set(theirs))])
    k, n = gaps.shape
    mean = gaps.mean()
    queries = k * gaps.mean(0).var(ddof=1)
    if k == 1:
        variance, freedom = queries / n, n - 1.0
    else:
        seeds = n * gaps.mean(1).var(ddof=1)
        rest = gaps - gaps.mean(1, keepdims=True) - gaps.mean(0, keepdims=True) + mean
        error = (rest**2).sum() / ((k - 1) * (n - 1))
        total = max(seeds + queries - error, seeds, queries)
        parts = seeds**2 / (k - 1) + queries**2 / (n - 1) + error**2 / ((k - 1) * (n - 1))
        variance, freedom = total / (k * n), total**2 / parts if parts else 1.0
    spread = float(np.sqrt(variance))
    p = float(2 * student.sf(abs(mean) / spread, freedom)) if spread else 1.0
    return float(mean), float(student.ppf(0.975, freedom)) * spread, p, k


def figure(text: str) -> float:
    """A figure as the pages write it."""
    return float(text.replace("−", "-"))


def word(found: tuple[float, float, float, int], published: float | None, p: float) -> str:
    """The verdict on an effect, ``p`` corrected."""
    mean, width, _, seeds = found
    if seeds == 1:
        return "seen once"
    below = published is not None and mean + width < published
    if p < 0.05:
        return "opposite" if mean < 0 else "found, smaller" if below else "found"
    return "smaller than published" if below else "open"


def check(page: str) -> tuple[int, float, list[str]]:
    """The number of verdicts on a page, the largest gap between its figures and ours, and what disagrees."""
    cells = []
    for block in re.findall(
        r"(?:^\| claim \| difference.*\n)(?:^\|.*\n)+", (DOCS / page).read_text(encoding="utf-8"), re.M
    ):
        for line in block.splitlines()[2:]:
            claim, difference, published, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            row, against = difference.split(" − ")
            known = figure(published) if published else None
            cells += [(claim, row, against, known, *rest[i : i + 3]) for i in range(0, len(rest), 3) if rest[i]]
    worst, wrong, found = 0.0, [], []
    for claim, row, against, _, said, *_ in cells:
        mean, width = (figure(part) for part in said.split(" ± "))
        tried = [
            contrast(rows, row, against)
            for rows in map(read_cached, sorted(KEPT.glob("*.csv.gz")))
            if row in rows and against in rows and (set(rows[row]) & set(rows[against]) or against == "first stage")
        ]
        nearest = min(tried, key=lambda one: max(abs(one[0] - mean), abs(one[1] - width)))
        gap = max(abs(nearest[0] - mean), abs(nearest[1] - width))
        found.append(nearest)
        worst = max(worst, gap)
        if gap > 0.00051:
            wrong.append(f"{claim}: {said}")
    several = sorted(one[2] for one in found if one[3] > 1)
    corrected, largest = {}, 0.0
    for place, p in enumerate(several):
        corrected[p] = largest = max(largest, min(1.0, (len(several) - place) * p))
    if page != "monobert.md":  # which corrects for its other tables, too
        for (claim, _, _, published, _, _, said), one in zip(cells, found, strict=True):
            if word(one, published, corrected.get(one[2], 1.0)) != said:
                wrong.append(f"{claim}: {said}")
    return len(cells), worst, wrong


_CACHE: dict[Path, Rows] = {}


def read_cached(path: Path) -> Rows:
    """The same, read once."""
    if path not in _CACHE:
        _CACHE[path] = read(path)
    return _CACHE[path]


@pytest.mark.parametrize(
    ("kept", "ranked", "trainings"),
    [
        ("drbert-cause.insuranceqa", "drbert-cause.insuranceqa", 6),
        ("drbert-parts.insuranceqa.as-published", "drbert-parts.insuranceqa", 36),
        ("drbert-parts.insuranceqa.at-equal-training", "drbert-parts-equal.insuranceqa", 30),
        ("duobert.insuranceqa.as-published", "duobert.insuranceqa", 6),
        ("markedbert-epochs.insuranceqa.BM25", "markedbert-epochs.insuranceqa", 12),
    ],
)
def test_the_values_that_were_kept_are_those_of_the_rankings(kept: str, ranked: str, trainings: int) -> None:
    data = (
        Path(os.environ.get("RANKWELL_DATA", DOCS.parents[1] / "shared" / "data")) / "insuranceqa" / "qrels.valid.txt"
    )
    if not data.exists():
        pytest.skip(f"no judgments at {data}")
    judged = [line.split() for line in data.read_text(encoding="utf-8").splitlines()]
    relevant = {(qid, docid) for qid, _, docid, grade in judged if int(grade) > 0}
    values = read(KEPT / f"{kept}.RR10.csv.gz")
    rows = {re.sub(r"[^A-Za-z0-9]+", "-", row).strip("-"): by_seed for row, by_seed in values.items()}
    with tarfile.open(KEPT / f"{ranked}.top10.tar.xz") as archive:
        members = archive.getmembers()
        assert len(members) == trainings
        for member in members:
            name, _, seed = member.name.partition(".seed-")
            file = archive.extractfile(member)
            assert file is not None
            gains = {}
            for line in file.read().decode().splitlines():
                qid, *docids = line.split("\t")
                hits = [rank for rank, docid in enumerate(docids, 1) if (qid, docid) in relevant]
                gains[qid] = 1 / hits[0] if hits else 0.0
            said = rows[name][int(seed.partition(".")[0])]
            assert abs(sum(gains.values()) / len(said) - said.mean()) < 1e-4


def test_the_differences_on_the_pages_are_those_of_scipy() -> None:
    counts = [check(page) for page in PAGES]
    assert [wrong for _, _, wrong in counts if wrong] == []
    assert sum(count for count, _, _ in counts) > 50


if __name__ == "__main__":
    for name in PAGES:
        print(name, *check(name))
    sys.exit(0)
