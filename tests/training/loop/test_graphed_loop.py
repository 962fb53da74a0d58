"""The loop with a graphed encoder learns what it learns without; no graph is played here, since there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rankwell.inputs.templates import Template
from rankwell.models.batch import BlockPlacer
from rankwell.models.cuda_graphs import GraphedEncoder
from rankwell.models.layout import Blocks, Layout, Packed
from rankwell.training.loop.loop import CollapseGuard, _Run
from rankwell.training.options import TrainingOptions

from ..conftest import WORDS
from .test_loop import LENGTH, make_task, options, saver

pytest.importorskip("triton")


class FirstWords(nn.Module):
    """Scores a pair by the mean of its eight tokens after the first: no attention, so no kernel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(10 + WORDS, 8), nn.Linear(8, 1)

    def forward(self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed) -> Tensor:
        rows = torch.stack([(layout.first + step).clamp(max=len(tokens) - 1) for step in range(1, 9)])
        found: Tensor = self.head(torch.tanh(self.table(tokens[rows])).mean(dim=0))
        return found


def trained(folder: Path, settings: TrainingOptions, *, graphed: bool) -> tuple[list[Tensor], _Run]:
    model = FirstWords()
    task = make_task(Template(max_length=128))
    run = _Run(model, task, settings, folder, saver(model), 1, "cpu", "full", None, CollapseGuard(), "test")
    if graphed:
        blocks = Blocks(16, 16, 1, 1)
        run.gradients.graphed = GraphedEncoder(model, "full", blocks)  # type: ignore[arg-type]
        run.gradients.place = BlockPlacer(torch.device("cpu"), "full", blocks)
    run.go()
    return [parameter.detach().clone() for parameter in model.parameters()], run


@pytest.mark.parametrize("budget", [None, 5 * LENGTH])
def test_a_graphed_run_comes_to_the_same_weights(tmp_path: Path, budget: int | None) -> None:
    settings = options(epochs=1, budget=budget)
    expected, _ = trained(tmp_path / "plain", settings, graphed=False)
    found, run = trained(tmp_path / "graphed", settings, graphed=True)
    assert not torch.equal(expected[0], FirstWords().table.weight)
    # What adds the same to every document of a list, the head's bias and the tokens that all pairs have, has a gradient
    # of rounding alone, and Adam walks by that.
    torch.testing.assert_close(found[0][10:], expected[0][10:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5)
    assert run.gradients.graphed is not None
    assert run.gradients.graphed.gradients.parameters[0].grad is run.gradients.graphed.gradients.parts[0]


def test_without_a_gpu_there_are_no_graphs(tmp_path: Path) -> None:
    model = FirstWords()
    task, guard = make_task(Template(max_length=128)), CollapseGuard()
    run = _Run(model, task, options(), tmp_path, saver(model), 1, "cpu", "full", None, guard, "")
    assert run.gradients.graphed is None
