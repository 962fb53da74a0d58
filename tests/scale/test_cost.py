"""The cost model: hand-computed cases, and what was measured (``bench/scale.json``)."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import IO, Any

import pytest

from rankwell.core.shards import Shards, map_shards

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))
from scale import (  # noqa: E402
    MEASURED,
    PAIR,
    PARTS,
    Machine,
    Rates,
    fit_line,
    fit_rates,
    index_cost,
    makespan,
    projections,
    query_seconds,
    query_work,
    rerank_cost,
    search_cost,
)

RATES = Rates(
    read=1e-5, index=1e-4, part=0.5, query=1e-4, scan=1e-6, join=1e-5, pair=1e-3, index_bytes=100, text_bytes=400
)
MACHINE = Machine(cores=4, memory=16e9, hour=2.0, start=10.0)


def test_workers_claim_shards_in_order() -> None:
    assert makespan([3, 1, 2], 2) == 3
    assert makespan([3, 1, 2], 2, start=1) == 4
    assert makespan([3, 1, 2], 1) == 6
    assert makespan([3, 1, 2], 9) == 3
    assert makespan([1, 1, 4], 2) == 5  # a long one that comes last is waited for
    assert makespan([], 2) == 0
    with pytest.raises(ValueError, match="0 workers"):
        makespan([1], 0)


def test_lost_workers_cost_what_the_formula_says() -> None:
    # Work of s seconds that begins anew whenever it is interrupted, at rate r, takes (e^rs − 1) / r on average.
    rate, seconds = 0.05, 10.0
    mean = sum(makespan([seconds] * 50, 1, loss=rate, seed=seed) for seed in range(40)) / 40 / 50
    assert mean == pytest.approx((math.exp(rate * seconds) - 1) / rate, rel=0.05)
    assert makespan([seconds] * 50, 4, loss=rate) > makespan([seconds] * 50, 4)


def test_real_shards_are_shared_as_simulated_ones_are(tmp_path: Path) -> None:
    waits = [0.5, 0.1, 0.3, 0.2, 0.4, 0.1, 0.3]
    shards = Shards(tmp_path / "shards", len(waits), 1)

    def work(items: range, file: IO[bytes]) -> None:
        time.sleep(waits[items.start])
        file.write(str(os.getpid()).encode())

    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        map_shards(shards, work)
        os._exit(0)
    map_shards(shards, work)
    seconds = time.monotonic() - begin
    os.waitpid(child, 0)
    # How much longer it takes depends on what else the machine does; that both processes worked does not.
    assert seconds >= 0.95 * makespan(waits, 2)
    assert {int(path.read_bytes()) for path in shards.paths()} == {child, os.getpid()}
    assert makespan(waits, 2) < 0.6 * sum(waits)


def test_costs_by_hand() -> None:
    index = index_cost(8_000_000, RATES, MACHINE, 2)  # 8 parts of 100.5 s on 8 cores, after 80 s of reading
    assert index.hours * 3600 == pytest.approx(80 + 10 + 100.5)
    assert index.money == pytest.approx(190.5 / 3600 * 2 * 2.0)
    assert index_cost(8_000_000, RATES, MACHINE, 2, readers=8).hours * 3600 == pytest.approx(10 + 10 + 100.5)
    assert query_seconds(8_000_000, 8, RATES) == pytest.approx(1e-4 + 1e-3 + 7e-5)
    assert query_seconds(1_000_000, 1, RATES) == pytest.approx(1e-4 + 1e-3)
    assert query_work(8_000_000, 8, RATES) == pytest.approx(1e-4 + 8e-3 + 7e-5)
    search = search_cost(8_000_000, 1000, RATES, MACHINE, 2)
    assert search.hours * 3600 == pytest.approx(10 + 1.17)
    assert search.memory == 8_000_000 * 100 / 2
    rerank = rerank_cost(16_384 * 16, RATES, MACHINE, 2)
    assert rerank.hours * 3600 == pytest.approx(10 + 2 * 16.384)


def points(**labels: Any) -> list[dict[str, Any]]:
    found = json.loads(MEASURED.read_text(encoding="utf-8"))["points"]
    return [point for point in found if labels.items() <= point.items()]


def test_a_line_through_points_that_differ_in_size() -> None:
    assert fit_line({10: 3.0, 20: 5.0, 100: 21.0}) == pytest.approx((1.0, 0.2))
    assert fit_line({10: 1.0, 20: 4.0})[0] == 0  # never below nothing
    assert fit_line({10: 4.0, 20: 1.0})[1] == 0
    # Errors count by their share: twice too slow at the large size weighs no more than at the small one.
    assert fit_line({10: 1.0, 20: 2.0, 30: 3.0, 3000: 600.0})[1] < 0.14
    with pytest.raises(ValueError, match="a line needs two"):
        fit_line({10: 1.0})


def test_rates_that_made_the_points_are_found_again() -> None:
    made = []
    for documents in (10_000, 50_000):
        labels: dict[str, Any] = {"documents": documents, "queries": 100}
        one, cut = (100 * query_work(documents, shards, RATES) for shards in (1, PARTS))
        built = documents * 1.1e-4 + PARTS * 0.5
        made += [{"job": "read", "how": "one", "cpu": documents * 1e-5, **labels}]
        made += [{"job": "index", "how": "shards", "cpu": built, **labels}]
        made += [{"job": "search", "how": "one", "cpu": one, **labels}]
        made += [{"job": "search", "how": "segments", "cpu": cut, **labels}]
        made += [{"job": "size", "index_bytes": documents * 100, "text_bytes": documents * 400, **labels}]
    assert vars(fit_rates(made, pair=1e-3)) == pytest.approx(vars(RATES))


def test_rates_of_small_collections_predict_the_larger_ones() -> None:
    """What is predicted was not fitted: collections twice and four times the largest that was."""
    sizes = sorted(point["documents"] for point in points(job="read"))
    small, large = [size for size in sizes if size <= 60_000], [size for size in sizes if size > 60_000]
    assert max(large) >= 4 * max(small)
    rates = fit_rates([point for size in small for point in points(documents=size)], pair=1.0)
    for documents in large:
        (index,) = points(job="index", how="shards", documents=documents)
        assert documents * (rates.read + rates.index) + PARTS * rates.part == pytest.approx(index["cpu"], rel=0.2)
        (one,) = points(job="search", how="one", documents=documents)
        assert one["queries"] * query_work(documents, 1, rates) == pytest.approx(one["cpu"], rel=0.2)
        (cut,) = points(job="search", how="segments", documents=documents)
        assert cut["queries"] * query_work(documents, PARTS, rates) == pytest.approx(cut["cpu"], rel=0.2)
        (size,) = points(job="size", documents=documents)
        assert documents * rates.text_bytes == pytest.approx(size["text_bytes"], rel=0.2)
        assert documents * rates.index_bytes == pytest.approx(size["index_bytes"], rel=0.2)


def test_the_page_has_the_projections() -> None:
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert projections(fit_rates(points(), PAIR)) in page, "docs/scale.md: put in what `bench/scale.py cost` prints"


def test_every_measured_search_and_run_was_equal() -> None:
    equal = points(job="equal")
    assert {point.get("documents") for point in equal} >= {point["documents"] for point in points(job="read")}
