"""Clusters: where they are, and what is said when they are not."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from rankwell.core.errors import RankwellError
from rankwell_ray.workers import Cluster


@pytest.mark.parametrize("options", [{"workers": -1}, {"cpus": -1}, {"cpus": 0}])
def test_workers_that_cannot_be(options: dict[str, float]) -> None:
    with pytest.raises(RankwellError, match="workers of"):
        Cluster(**options)


def test_a_worker_that_no_machine_has_room_for(cluster: Cluster) -> None:
    with cluster.connected() as ray:
        assert cluster.room(ray) == 8
        with pytest.raises(RankwellError, match="no machine of the cluster has 1 cores and 1 GPUs"):
            Cluster(gpus=1).room(ray)


def test_its_version_is_that_of_rankwell() -> None:
    assert version("rankwell-ray") == version("rankwell")


def test_the_modules_of_one_process_do_not_import_ray() -> None:
    code = "import rankwell_ray.build, rankwell_ray.rerank, rankwell_ray.search, sys; print('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
