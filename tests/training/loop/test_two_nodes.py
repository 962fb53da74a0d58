"""Training on two nodes: two launchers that share only a network and a disk have the loss curve of one process.

Where the system allows it each launcher has a network namespace of its own, with one cable between them; elsewhere both
are on the loopback device, which shows the same but for the network.
"""

from __future__ import annotations

import json
import os
import runpy
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

PORT = 29500
TRAIN = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.training.loop.test_loop import LENGTH, make_model, make_task, options, saver
from rankwell.inputs.templates import Template
from rankwell.training.loop.loop import train

def run(folder):
    model = make_model()
    task = make_task(Template("mono", max_length=48, max_query=16))
    how = options(epochs=3, save_every=1, budget=20 * LENGTH)
    train(model, task, how, Path(folder), save=saver(model), device="cpu")

if __name__ == "__main__":
    run(sys.argv[1])
"""


@dataclass(frozen=True)
class Node:
    """How a command is run on a node, the node's device and address."""

    prefix: list[str]
    device: str
    address: str


def ip(*arguments: str) -> bool:
    if shutil.which("ip") is None:
        return False
    return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    key = secrets.token_hex(3)
    names = [f"rankwell-{key}-{n}" for n in range(2)]
    devices = [f"rw{key}{n}" for n in range(2)]
    made = all(ip("netns", "add", name) for name in names)
    made = made and ip("link", "add", devices[0], "type", "veth", "peer", "name", devices[1])
    for number, (name, device) in enumerate(zip(names, devices, strict=True), 1):
        made = made and ip("link", "set", device, "netns", name)
        made = made and ip("-n", name, "addr", "add", f"10.99.0.{number}/24", "dev", device)
        made = made and ip("-n", name, "link", "set", device, "up")
        made = made and ip("-n", name, "link", "set", "lo", "up")
    try:
        yield (
            [Node(["ip", "netns", "exec", name], devices[n], f"10.99.0.{n + 1}") for n, name in enumerate(names)]
            if made
            else [Node([], "lo", "127.0.0.1")] * 2
        )
    finally:
        for name in names:
            ip("netns", "del", name)  # and with it its end of the cable


def test_a_process_reads_the_documents_of_its_own_lists_alone() -> None:
    """Each has the whole plan of an epoch, a few numbers a list, but asks for no tokens that are another's to learn."""
    import torch

    from rankwell.inputs.templates import Template
    from rankwell.models.batch import Placer
    from rankwell.training.loop.task import Step

    from .test_loop import make_model, make_task

    task, model, items = make_task(Template("mono", max_length=48, max_query=16)), make_model(), np.arange(8, 16)
    documents, asked = task.data.documents, []

    class Counting:
        def at(self, numbers: np.ndarray) -> object:
            asked.append(numbers.tolist())
            return documents.at(numbers)

    task.data = replace(task.data, documents=Counting())
    task.draw(0)
    step = Step(Placer(torch.device("cpu"), "full"), 8192, 1, nullcontext, lambda loss: loss)
    for rank in range(2):
        task.backward(model, items, slice(4 * rank, 4 * rank + 4), step)
    assert asked == [list(range(32, 48)), list(range(48, 64))]  # lists of four documents each


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def test_two_nodes_have_the_loss_curve_of_one_process(nodes: list[Node], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN.format(root=str(Path(__file__).parents[3])), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launchers = []
    for rank, node in enumerate(nodes):
        launch = [*node.prefix, sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        launch += [f"--node-rank={rank}", f"--master-addr={nodes[0].address}", f"--master-port={PORT}"]
        own = {**environment, "GLOO_SOCKET_IFNAME": node.device}
        command = [*launch, str(script), str(tmp_path / "two")]
        launchers.append(subprocess.Popen(command, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    try:
        said = [launcher.communicate(timeout=600)[1].decode() for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.kill()
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    runpy.run_path(str(script))["run"](tmp_path / "one")
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == 18
    assert one[-1] < one[0]
    np.testing.assert_allclose(two, one, rtol=1e-4)
