"""Jobs in processes of their own: what they share is waited for, and one that dies takes no other with it."""

from __future__ import annotations

import math
import operator
import os
from functools import partial
from typing import Any

import pytest

from rankwell.training.experiments.experiment import must_wait, run_jobs


@pytest.mark.parametrize(
    ("begun", "waits"),
    [
        (set(), True),  # the other is at the first stage, which both have
        ({"p"}, True),
        ({"p", "q"}, True),  # at the second, which both have, too
        ({"p", "q", "r"}, False),
    ],
)
def test_a_job_waits_for_the_stages_it_shares_with_a_running_one(begun: set[str], waits: bool) -> None:
    assert must_wait("pqx", "pqr", begun.__contains__) is waits


def test_a_job_that_is_the_beginning_of_another_waits_only_for_its_own_stages() -> None:
    begun = {"p", "q", "r"}.__contains__
    assert not must_wait("pq", "pqr", begun)
    # The last stage of a job is measured after it, so its end is what counts.
    assert must_wait("pqr", "pq", begun)
    assert not must_wait("aq", "bq", begun)


def test_results_come_from_other_processes_and_a_death_is_told() -> None:
    dies, root, process = partial(os._exit, 3), partial(math.sqrt, 4.0), os.getpid
    jobs: list[tuple[Any, str]] = [(dies, "a"), (root, "bcde"), (process, "f")]
    found = dict(run_jobs(jobs, operator.call, 2, lambda key: True))
    assert found[root] == 2.0
    assert found[process] != os.getpid()
    assert "its process died" in str(found[dies])
