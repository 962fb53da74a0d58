"""Jobs in processes of their own: what they share is waited for, and one that dies takes no other with it."""

from __future__ import annotations

import math
import os

import pytest

from rankwell.training.experiments.experiment import RecipeJob, must_wait, run_jobs


def job(name: str, *stages: str) -> RecipeJob[float]:
    return RecipeJob(name, stages, math.sqrt, (float(len(stages)),))


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
    assert must_wait(job("ours", "p", "q", "x"), job("other", "p", "q", "r"), begun.__contains__) is waits


def test_a_job_that_is_the_beginning_of_another_waits_only_for_its_own_stages() -> None:
    begun = {"p", "q", "r"}.__contains__
    assert not must_wait(job("ours", "p", "q"), job("other", "p", "q", "r"), begun)
    # The last stage of a job is measured after it, so its end is what counts.
    assert must_wait(job("ours", "p", "q", "r"), job("other", "p", "q"), begun)
    assert not must_wait(job("ours", "a", "q"), job("other", "b", "q"), begun)


def test_results_come_from_other_processes_and_a_death_is_told() -> None:
    jobs: list[RecipeJob[float]] = [
        RecipeJob("dies", ("a",), os._exit, (3,)),
        job("root", "b", "c", "d", "e"),
        RecipeJob("process", ("f",), os.getpid, ()),
    ]
    found = {one.name: result for one, result in run_jobs(jobs, 2, lambda key: True)}
    assert found["root"] == 2.0
    assert found["process"] != os.getpid()
    assert "its process died" in str(found["dies"])
