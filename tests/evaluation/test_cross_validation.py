"""Choosing a setting by cross-validation."""

from __future__ import annotations

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.evaluation.cross_validation import Tuned


def tuned(values: list[list[float]] | np.ndarray, folds: int, seed: int = 0) -> Tuned[int]:
    table = np.array(values, np.float64)
    return Tuned.choose(
        "RR@10", range(len(table)), [f"q{i}" for i in range(table.shape[1])], table, folds=folds, seed=seed
    )


def test_one_lucky_query_does_not_count_for_itself() -> None:
    # Setting 0 is best on average thanks to query 0 alone. Without query 0 setting 1 is chosen, which gives it 0;
    # without any other setting 0 is, which gives that one 0.
    lucky = tuned([[1.0, 0.0, 0.0, 0.0], [0.0, 0.2, 0.2, 0.2]], folds=4)
    assert lucky.best == 0
    assert sorted(lucky.fold_settings) == [0, 0, 0, 1]
    assert lucky.held_out.tolist() == [0, 0, 0, 0]
    assert [lucky.setting_for(f"q{i}") for i in range(4)] == [1, 0, 0, 0]
    assert lucky.setting_for("not judged") == lucky.best


def test_equal_settings_go_to_the_earlier_one() -> None:
    equal = tuned(np.full((3, 4), 0.5), folds=2)
    assert (equal.best, equal.fold_settings) == (0, [0, 0])


def test_the_seed_decides_the_folds() -> None:
    values = np.random.default_rng(0).random((50, 20))
    first, again, other = (tuned(values, folds=4, seed=seed) for seed in (1, 1, 2))
    assert first.held_out.tolist() == again.held_out.tolist()
    assert first.best == other.best
    assert first.held_out.tolist() != other.held_out.tolist()


def test_every_query_is_measured_under_a_setting_chosen_without_it() -> None:
    values = np.random.default_rng(3).random((4, 9))
    chosen = [int(np.delete(values, query, axis=1).mean(axis=1).argmax()) for query in range(9)]
    assert tuned(values, folds=9).held_out.tolist() == [values[setting, query] for query, setting in enumerate(chosen)]


@pytest.mark.parametrize("folds", [0, 1, 4])
def test_there_are_at_least_two_folds_and_a_query_for_each(folds: int) -> None:
    with pytest.raises(RankwellError, match=f"{folds} folds for 3 queries"):
        tuned(np.zeros((2, 3)), folds=folds)


def test_there_must_be_a_setting() -> None:
    with pytest.raises(RankwellError, match="no setting"):
        tuned(np.zeros((0, 3)), folds=2)


def test_the_table_has_a_line_for_each_setting_in_their_order() -> None:
    values = np.array([[0.5, 0.5], [1.0, 1.0]])
    table = Tuned.choose("RR@10", ["z", "long name"], ["q1", "q2"], values, folds=2).table()
    assert table.splitlines() == [
        "RR@10 by setting",
        "",
        "z          0.5000",
        "long name  1.0000*",
        "",
        "best on all 2 queries: long name, 1.0000",
        "cross-validated, 2 folds: 1.0000",
    ]


def test_a_table_of_two_dimensions_puts_values_under_their_column_also_where_the_grid_has_holes() -> None:
    values = np.array([[0.0, 1.0], [1.0, 1.0], [0.5, 0.5], [0.0, 0.0], [0.25, 0.0]])
    settings = [(0.3, 0.1), (0.3, 0.5), (1.5, 0.1), (1.5, 0.5), (0.9, 0.4)]
    table = Tuned.choose("AP", settings, ["q1", "q2"], values, folds=2).table(
        "x and y", lambda point: point[0], lambda point: point[1], lambda point: f"x={point[0]}"
    )
    assert table.splitlines() == [
        "AP by x and y",
        "",
        "        0.1      0.4      0.5",
        "0.3  0.5000            1.0000*",
        "0.9           0.1250",
        "1.5  0.5000            0.0000",
        "",
        "best on all 2 queries: x=0.3, 1.0000",
        "cross-validated, 2 folds: 0.5000",
    ]


def test_the_json_holds_the_grid_and_the_choice() -> None:
    both = tuned([[0.5, 0.5], [0.0, 1.0]], folds=2)
    assert both.as_dict(lambda setting: {"number": setting}) == {
        "measure": "RR@10",
        "best": {"number": 0},
        "cross_validated": both.cross_validated,
        "folds": [{"number": setting} for setting in both.fold_settings],
        "grid": [{"number": 0, "mean": 0.5}, {"number": 1, "mean": 0.5}],
    }
