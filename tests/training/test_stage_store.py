"""Stages that resume: what is run, what is found, what is left on disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.training import toys

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.locks import lock
from rankwell.models.checkpoints.config import read_ranker_config
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import Override, build_recipe
from rankwell.training.run import Trained, run_recipe
from rankwell.training.stage import PARTS, StageKind, StageResult, stage_kinds, write_once
from rankwell.training.stage_store import read_finished, wait_for


class Bench:
    """Runs a recipe of toy stages, and tells which stages did any work."""

    def __init__(self, data: Path, start: Path, out: Path, patch: pytest.MonkeyPatch):
        self.data, self.start, self.out = data, start, out
        self.toys = toys.Toys(patch)

    def recipe(self, overrides: dict[str, object] | None = None, **stages: object) -> Recipe:
        tree = toys.recipe_tree(self.data, self.start, **stages)
        changes = [Override(path, value) for path, value in (overrides or {}).items()]
        return build_recipe(tree, "r.yaml", changes)

    def run(self, recipe: Recipe, **options: object) -> tuple[Trained, list[str]]:
        self.toys.calls.clear()
        trained = run_recipe(recipe, self.out, **options)
        return trained, list(self.toys.calls)


@pytest.fixture
def bench(tmp_path: Path, tiny_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    data, start = toys.write_data(tmp_path / "data"), toys.write_start(tmp_path / "start", tiny_tokenizer)
    return Bench(data, start, tmp_path / "out", monkeypatch)


THREE = {"warm": None, "filter": {"keep": 2}, "fit": {"share": 0.75}}


def test_stages_run_in_order_and_once(bench: Bench) -> None:
    recipe = bench.recipe(**THREE)
    trained, calls = bench.run(recipe)
    assert calls == ["01-warm", "02-filter", "03-fit"]
    assert [done.stage.name for done in trained.work.done] == ["warm", "filter", "fit"]
    assert trained.work.candidates is not None
    assert trained.work.candidates.name == "candidates.run.gz"
    _, again = bench.run(recipe)
    assert again == []


def test_what_is_tuned_on_what_is_measured_is_tuned_for_each_depth(bench: Bench) -> None:
    bench.toys.kinds["fit"] = replace(bench.toys.kinds["fit"], reads=PARTS)
    bench.run(bench.recipe(**THREE))
    assert bench.run(bench.recipe({"evaluate.depth": 5}, **THREE))[1] == ["03-fit"]


def test_stages_that_tune_on_the_evaluated_candidates_read_their_depth() -> None:
    assert {name for name, kind in stage_kinds().items() if "depth" in kind.reads} == {"tune", "sdnet"}


def test_each_stage_starts_from_what_the_one_before_left(bench: Bench) -> None:
    trained, _ = bench.run(bench.recipe(**THREE))
    warm, filtered, fit = trained.work.done
    assert (warm.work.model, filtered.work.model, fit.work.model) == (bench.start, warm.result.model, warm.result.model)
    assert trained.work.model == fit.result.model


def test_an_edited_stage_and_all_after_it_run_again(bench: Bench) -> None:
    bench.run(bench.recipe(**THREE))
    assert bench.run(bench.recipe({"stages.filter.keep": 3}, **THREE))[1] == ["02-filter", "03-fit"]
    assert bench.run(bench.recipe({"stages.fit.share": 0.5}, **THREE))[1] == ["03-fit"]
    assert bench.run(bench.recipe({"stages.warm.share": 0.1}, **THREE))[1] == ["01-warm", "02-filter", "03-fit"]


def test_going_back_finds_the_old_result(bench: Bench) -> None:
    bench.run(bench.recipe(**THREE))
    bench.run(bench.recipe({"stages.fit.share": 0.5}, **THREE))
    trained, calls = bench.run(bench.recipe(**THREE))
    assert calls == []
    assert json.loads((trained.model / "share.json").read_text())["share"] == 0.75  # type: ignore[operator]


def test_a_stage_runs_again_only_when_what_it_reads_changes(bench: Bench) -> None:
    bench.run(bench.recipe(**THREE))
    everything = ["01-warm", "02-filter", "03-fit"]
    assert bench.run(bench.recipe({"evaluate.measures": ["AP"], "evaluate.depth": 5}, **THREE))[1] == []
    assert bench.run(bench.recipe({"stages.fit.budget": 64}, **THREE))[1] == []
    assert bench.run(bench.recipe({"first_stage.k1": 1.5}, **THREE))[1] == everything[1:]
    assert bench.run(bench.recipe({"model.max_length": 90}, **THREE))[1] == everything[1:]
    assert bench.run(bench.recipe({"seed": 2}, **THREE))[1] == everything
    (bench.data / "qrels.train.txt").write_text("train0 0 d0 1\n")
    assert bench.run(bench.recipe(**THREE))[1] == everything[1:]
    (bench.start / "config.json").write_text((bench.start / "config.json").read_text() + "\n")
    assert bench.run(bench.recipe(**THREE))[1] == everything


def test_a_stage_under_another_name_is_the_same_stage(bench: Bench) -> None:
    bench.run(bench.recipe(warm=None))
    assert bench.run(bench.recipe({"name": "toy"}, first={"kind": "warm"}), resume=True)[1] == []


def test_a_killed_stage_goes_on_and_keeps_what_is_finished(bench: Bench) -> None:
    recipe = bench.recipe({"stages.fit.behaviour": "is killed"}, **THREE)
    with pytest.raises(KeyboardInterrupt):
        bench.run(recipe)
    assert not (bench.out / "model").exists()
    trained, calls = bench.run(recipe)
    assert calls == ["03-fit"]
    assert trained.work.done[-1].result.figures["resumed"] is True


def _run_and_die(bench: Bench, at: str) -> None:
    """In a process of its own: killed without any clean-up when the record or the model is about to appear."""
    real = os.replace

    def replace(source: object, target: object) -> None:
        if str(target).endswith(at):
            os.kill(os.getpid(), signal.SIGKILL)
        real(source, target)  # type: ignore[arg-type]

    os.replace = replace  # type: ignore[assignment]
    bench.run(bench.recipe(**THREE))


@pytest.mark.parametrize(
    ("at", "left"),
    [
        ("stage.json", ["01-warm", "02-filter", "03-fit"]),
        ("recipe.yaml", ["01-warm", "02-filter", "03-fit"]),
        ("results.json", ["02-filter", "03-fit"]),
    ],
)
def test_kill_9_loses_nothing_that_was_finished(bench: Bench, at: str, left: list[str]) -> None:
    process = multiprocessing.get_context("fork").Process(target=_run_and_die, args=(bench, at))
    process.start()
    process.join()
    assert process.exitcode == -9
    assert bench.run(bench.recipe(**THREE))[1] == left
    assert list(bench.out.glob(".partial-*")) == []


def test_what_a_killed_training_left_is_removed_by_the_next_run(bench: Bench) -> None:
    recipe = bench.recipe(**THREE)
    bench.run(recipe)
    stage = next((bench.out / "stages").iterdir())
    for place in (bench.out, bench.out / "data", stage, stage / "deeper"):  # the plot of a finished stage, and others
        (place / ".partial-0a1b2c3d-model").mkdir(parents=True)
        (place / ".partial-0a1b2c3d-training.png").write_bytes(b"half")
    assert bench.run(recipe)[1] == []
    assert list(bench.out.rglob(".partial-*")) == []


def test_what_would_fail_later_is_refused_before_the_first_stage(bench: Bench) -> None:
    with pytest.raises(RankwellError, match="the toy cannot be fitted to this"):
        bench.run(bench.recipe({"stages.fit.behaviour": "is refused"}, **THREE))
    assert bench.toys.calls == []
    with pytest.raises(RankwellError, match="no measure is called 'RRR'"):
        bench.run(bench.recipe({"evaluate.measures": ["RRR@10"]}, **THREE))
    assert bench.toys.calls == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"model.attention": "strm"}, "a ranker of attention full, but the recipe's model.attention is strm"),
        ({"model.template": "typed", "model.max_length": 120}, "a ranker of template mono, but the recipe's"),
        ({"model.markers": True}, "a ranker of markers false, but the recipe's model.markers is true"),
        ({"model.apart": 1}, "a ranker of apart 0, but the recipe's model.apart is 1"),
        ({"model.similarity": 20}, "a ranker of similarity 0.0, but the recipe's model.similarity is 20.0"),
        ({"model.apart": 99}, "apart is 99, but at most 1 of 2 layers can read the texts apart"),
        ({"model.attention_layers": [77]}, "there is no layer 77"),
        ({"model.max_length": 513}, "model.max_length is 513, but"),
        ({"model.max_query": 78}, "needs a length of at least"),
        ({"model.template": "mona"}, "no template is called 'mona'; did you mean mono?"),
        ({"model.start": "/nowhere"}, "/nowhere: no such folder"),
    ],
)
def test_a_checkpoint_that_does_not_suit_is_refused(bench: Bench, overrides: dict[str, object], expected: str) -> None:
    with pytest.raises(RankwellError) as caught:
        bench.run(bench.recipe(overrides, **THREE))
    assert expected in str(caught.value)
    assert bench.toys.calls == []


def test_a_checkpoint_of_another_template_is_taken_when_that_is_meant(bench: Bench) -> None:
    assert bench.run(bench.recipe({"model.attention": "strm", "model.adapt": True}, **THREE))[1]


def test_the_model_knows_its_history_and_figures(bench: Bench) -> None:
    trained, _ = bench.run(bench.recipe(**THREE))
    assert trained.model == bench.out / "model"
    config = read_ranker_config(trained.model)
    assert config is not None
    assert [(stage["stage"], stage["kind"]) for stage in config.history] == [
        ("warm", "warm"),
        ("filter", "filter"),
        ("fit", "fit"),
    ]
    assert config.figures["P@1 on dev"] == 0.75
    assert "0.75" in (trained.model / "README.md").read_text()
    own = read_ranker_config(trained.work.model)  # the stage's own record is as the stage wrote it
    assert own is not None
    assert own.history == [{"stage": "of old"}]
    weights = [folder / "model.safetensors" for folder in (trained.model, trained.work.model)]
    assert weights[0].samefile(weights[1])


def test_the_published_model_is_replaced_whole(bench: Bench) -> None:
    bench.run(bench.recipe(**THREE))
    (bench.out / "model" / "stray.txt").write_text("x")
    bench.run(bench.recipe({"stages.fit.share": 0.5}, **THREE))
    assert not (bench.out / "model" / "stray.txt").exists()
    assert json.loads((bench.out / "model" / "share.json").read_text())["share"] == 0.5
    assert sorted(path.name for path in bench.out.iterdir()) == [
        *("data", "lock", "model", "recipe.yaml", "results.json", "stages", "table.md")
    ]


def test_the_table_has_a_row_for_each_stage_and_marks_what_is_more_than_chance(bench: Bench) -> None:
    # Of 24 queries the first model answers 12 at rank 1 and the second 18; the others have their document at rank 11+.
    trained, _ = bench.run(
        bench.recipe(warm=None, first={"kind": "fit", "share": 0.5}, second={"kind": "fit", "share": 1.0})
    )
    rows = {row[0].value: row for row in trained.table.rows}
    assert list(rows) == ["first stage", "warm", "first", "second"]
    assert rows["warm"][1].text == ""
    assert rows["first"][2].value == 0.5
    assert rows["second"][2].text == "1.0000*"
    results = json.loads((bench.out / "results.json").read_text())
    step = results["rows"][3]["against_the_row_before"]["P@1"]
    assert step["difference"] == 0.5
    assert step["p"] <= step["corrected"] < 0.05
    assert "| second |" in (bench.out / "table.md").read_text()


def test_the_relevance_level_is_that_of_the_recipe(bench: Bench) -> None:
    qrels = bench.data / "qrels.dev.txt"
    qrels.write_text(qrels.read_text().replace(" 1\n", " 2\n") + "dev0 0 d5 1\n")
    (bench.data / "qrels.train.txt").write_text("train0 0 d0 2\n")
    trained, _ = bench.run(bench.recipe({"data.relevance": 2}, fit={"share": 1.0}))
    assert trained.table.columns[1:3] == ("RR(rel=2)@10", "P(rel=2)@1")
    assert trained.table.rows[1][2].value == 1.0


def test_another_recipes_folder_is_refused_and_resume_insists(bench: Bench) -> None:
    bench.run(bench.recipe(**THREE))
    other = bench.recipe({"name": "other"}, **THREE)
    with pytest.raises(InputError, match="holds the recipe 'toy', not 'other'"):
        bench.run(other)
    assert bench.run(other, resume=True)[1] == []


def test_a_folder_of_something_else_is_refused(bench: Bench) -> None:
    bench.out.mkdir()
    (bench.out / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"was not made by training \(it has thesis\.tex\)"):
        bench.run(bench.recipe(**THREE))
    shutil.rmtree(bench.out)
    bench.out.write_text("x")
    with pytest.raises(InputError, match="is a file"):
        bench.run(bench.recipe(**THREE))


def test_two_processes_never_work_in_one_folder(bench: Bench) -> None:
    bench.out.mkdir()
    with lock(bench.out, wait=False), pytest.raises(RankwellError, match="another process is working in"):
        bench.run(bench.recipe(**THREE))


def test_a_stage_must_have_left_what_it_says(bench: Bench) -> None:
    bench.toys.kinds["warm"] = StageKind(toys.FitOptions, lambda work, stage, folder: StageResult(folder / "none"))
    with pytest.raises(RankwellError, match="the stage warm says it left"):
        bench.run(bench.recipe(warm=None))


def test_a_finished_stage_whose_model_was_deleted_says_so(bench: Bench) -> None:
    trained, _ = bench.run(bench.recipe(**THREE))
    shutil.rmtree(trained.work.model)
    with pytest.raises(InputError, match="is gone; remove"):
        bench.run(bench.recipe(**THREE))


def test_a_pool_may_be_moved(bench: Bench, tmp_path: Path) -> None:
    bench.run(bench.recipe(**THREE))
    bench.out.rename(tmp_path / "moved")
    bench.out = tmp_path / "moved"
    trained, calls = bench.run(bench.recipe(**THREE))
    assert calls == []
    assert trained.work.model.resolve().is_relative_to(tmp_path / "moved")


def test_the_first_process_writes_once(tmp_path: Path) -> None:
    path, calls = tmp_path / "file", []

    def write() -> None:
        calls.append(1)
        path.write_text("made")

    assert write_once(path, write) == write_once(path, write) == path
    assert calls == [1]


def test_other_processes_wait_for_the_first_ones_record(tmp_path: Path) -> None:
    folder = tmp_path / "late"

    def record() -> None:
        time.sleep(0.3)
        folder.mkdir()
        text = json.dumps({"produced": {"model": None, "candidates": None, "figures": {"a": 1}}})
        (folder / "stage.json").write_text(text)

    thread = threading.Thread(target=record)
    thread.start()
    assert wait_for(folder).figures == {"a": 1}
    thread.join()


def test_other_processes_work_but_write_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.run(bench.recipe(**THREE))
    before = {path: path.stat().st_mtime_ns for path in bench.out.rglob("*") if path.is_file()}
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    trained, _ = bench.run(bench.recipe(**THREE))
    assert trained.last is not None
    after = {path: path.stat().st_mtime_ns for path in bench.out.rglob("*") if path.is_file() and path.name != "lock"}
    assert after == {path: at for path, at in before.items() if path.name != "lock"}


def _run_as(bench: Bench, number: int, results: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    os.environ |= {"RANK": str(number), "WORLD_SIZE": "2"}
    trained, calls = bench.run(bench.recipe(**THREE))
    results.put((number, calls, trained.table.data["rows"][-1]["mean"], str(trained.work.model)))


def test_two_processes_carry_out_one_recipe_together(bench: Bench) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_run_as, args=(bench, number, results)) for number in (0, 1)]
    for process in processes:
        process.start()
    (_, calls, *first), (_, _, *second) = sorted(results.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
    assert calls == ["01-warm", "02-filter", "03-fit"]
    assert first == second
    assert first[0]["P@1"] == 0.75
    assert bench.run(bench.recipe(**THREE))[1] == []


def test_a_broken_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "stage.json").write_text("{")
    with pytest.raises(InputError, match="not the record of a stage"):
        read_finished(tmp_path)
    assert read_finished(tmp_path / "none") is None


def test_a_start_checkpoint_of_another_type_is_refused_with_what_is_supported(bench: Bench) -> None:
    config = json.loads((bench.start / "config.json").read_text())
    (bench.start / "config.json").write_text(json.dumps({**config, "model_type": "t5"}))
    with pytest.raises(InputError, match=r"model\.start is of type t5, but recipes train encoders only"):
        bench.run(bench.recipe(**THREE))


def test_a_recipe_without_ranking_needs_no_collection(bench: Bench, tmp_path: Path) -> None:
    labelled = tmp_path / "labelled"
    labelled.mkdir()
    (labelled / "train.tsv").write_text("NUM:count\thow many\n")
    bench.data = labelled
    bench.toys.kinds["warm"] = StageKind(toys.FitOptions, bench.toys.fit, ranks=False)
    trained, calls = bench.run(bench.recipe(warm=None))
    assert calls == ["01-warm"]
    assert trained.table.columns == ("stage", "seconds")
    assert bench.run(bench.recipe(warm=None))[1] == []
    (labelled / "train.tsv").write_text("NUM:count\thow much\n")
    assert bench.run(bench.recipe(warm=None))[1] == ["01-warm"]
