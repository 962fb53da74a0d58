"""The stage ``encoder``: it learns, it leaves a first stage, and later stages search with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training import toys
from torch import Tensor

from rankwell.core.errors import RankwellError
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.checkpoints.folders import load_checkpoint
from rankwell.models.checkpoints.names import DEFAULT, find_model
from rankwell.rank.first_stage import FirstStage
from rankwell.training.loop import loop
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import build_recipe, parse_setting
from rankwell.training.recipe_results import RERANK
from rankwell.training.run import Trained, run_recipe
from rankwell.training.stages.shared import load_ranker
from rankwell.training.stages.tune import _encoder_name

STAGE: dict[str, Any] = {
    "epochs": 60,
    "batch": 8,
    "learning_rate": 3e-3,
    "tune_queries": 8,
    "k1": "0.9,1.2",
    "b": "0.4",
    "max_length": 24,
    "evaluate_every": 10,
    "step": 0.5,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_data(tmp_path_factory.mktemp("encoder") / "data", queries=48, apart=True)


def make(data: Path, start: Path, *settings: str, **stages: object) -> Recipe:
    tree = {
        "name": "encoders",
        "data": {"folder": str(data)},
        "first_stage": {"depth": 12},
        "model": {"start": str(start), "max_length": 80},
        "evaluate": {"measures": ["RR@10"], "depth": 12},
        "stages": stages or {"encoder": STAGE},
    }
    return build_recipe(tree, "r.yaml", [parse_setting(one) for one in settings])


@pytest.fixture(scope="module")
def trained(data: Path, tiny_bi_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Path]:
    out = tmp_path_factory.mktemp("trained") / "out"
    done = run_recipe(make(data, tiny_bi_encoder), out, device="cpu")
    return done, next((out / "stages").glob("*-encoder-*"))


def test_it_learns_to_find_what_bm25_cannot(trained: tuple[Trained, Path]) -> None:
    done, folder = trained
    first, last = (row["mean"]["RR@10"] for row in done.table.data["rows"])
    assert first < 0.4
    assert last > first + 0.3
    figures = json.loads((folder / "stage.json").read_text())["produced"]["figures"]
    assert figures["hybrid"] >= 0.5
    assert figures["pairs"] == 40
    assert {"k1", "b", "best validation", "RR@10 of 8 queries set aside, bi-encoder alone"} <= figures.keys()


def test_it_leaves_a_first_stage_whose_candidates_later_stages_get(trained: tuple[Trained, Path]) -> None:
    done, folder = trained
    first = FirstStage.open(folder)
    assert first.encoder is not None
    assert (Path(first.encoder).resolve(), first.index.folder.resolve()) == (
        (folder / "model").resolve(),
        done.work.data.index.folder.resolve(),
    )
    for split in (done.work.data.train, done.work.data.dev):
        expected = first.search(split.queries, 12)
        assert {q: r.docids for q, r in split.run.items()} == {q: r.docids for q, r in expected.items()}
    assert done.model is None  # the ranker's start is as it was


def test_sentence_transformers_loads_it_with_equal_vectors(trained: tuple[Trained, Path]) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = trained[1] / "model"
    texts = ["bee honey hive", "the river and the bridge " * 20]
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(
        BiEncoder.from_pretrained(folder, device="cpu").encode_documents(texts), theirs.encode(texts), atol=1e-5
    )
    assert "encoder: kind encoder" in (folder / "README.md").read_text()


def test_a_ranker_is_trained_and_blended_on_its_candidates(
    trained: tuple[Trained, Path], data: Path, tiny_bi_encoder: Path
) -> None:
    listwise = {"max_steps": 2, "batch": 4, "negatives": 2, "best": "last"}
    tune = {"encoder": "first_stage", "folds": 3, "step": 0.5}
    recipe = make(data, tiny_bi_encoder, encoder=STAGE, listwise=listwise, tune=tune)
    out = trained[1].parents[1]
    done = run_recipe(recipe, out, device="cpu", resume=True)
    names = [finished.stage.name for finished in done.work.done]
    assert names == ["encoder", "listwise", "tune"]
    assert done.work.done[0].folder == trained[1]  # the same work, not done again
    assert done.work.data.dev.digest == trained[0].work.data.dev.digest
    shares = json.loads((done.work.done[-1].folder / "tuning.json").read_text())["best"]
    assert shares["similarity"] + shares["first"] > 0
    # The folder can be moved: what a stage made is named from there, and in full when the command is shown.
    assert _encoder_name(done.work, done.work.done[-1].stage, "first_stage", done.work.done[-1].folder) == str(
        Path("stages", trained[1].name, "model")
    )
    told = done.work.done[-1].result.figures[RERANK]
    assert str(out) not in told
    if "--encoder" in told:
        assert f"--encoder {out / 'stages'}" in done.summary()


def test_prompts_are_read_and_kept(data: Path, tiny_bi_encoder: Path, tmp_path: Path) -> None:
    start = tmp_path / "start"
    shutil.copytree(tiny_bi_encoder, start)
    prompts = {"prompts": {"query": "bee: ", "document": "hive: "}}
    (start / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    stage = {**STAGE, "max_steps": 2, "best": "last"}
    done = run_recipe(make(data, start, encoder=stage), tmp_path / "out", device="cpu")
    encoder = BiEncoder.from_pretrained(done.work.done[0].folder / "model", device="cpu")
    assert (encoder.query_prompt, encoder.document_prompt) == ("bee: ", "hive: ")


def test_a_killed_training_continues_to_the_same_weights(
    data: Path, tiny_bi_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = {**STAGE, "max_steps": 6, "save_every": 2, "best": "last", "negatives": 2}
    whole = run_recipe(make(data, tiny_bi_encoder, encoder=stage), tmp_path / "whole", device="cpu")
    step = loop._Run._step

    def killed(self: Any, number: int) -> None:
        if number == 3:
            raise KeyboardInterrupt
        step(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(loop._Run, "_step", killed)
        with pytest.raises(KeyboardInterrupt):
            run_recipe(make(data, tiny_bi_encoder, encoder=stage), tmp_path / "killed", device="cpu")
    again = run_recipe(make(data, tiny_bi_encoder, encoder=stage), tmp_path / "killed", device="cpu")
    one, other = (done.work.done[0].folder / "model" / "model.safetensors" for done in (whole, again))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["stages.encoder.tune_queries=500", "data.train_queries=12"], "can be set aside to tune BM25"),
        (["stages.encoder.encoder=first_stage"], "the first stage has no bi-encoder; set first_stage.hybrid"),
        (["stages.encoder.step=0.3"], "a step of 0.3 between weights"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_trained(
    settings: list[str], problem: str, data: Path, tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    with pytest.raises(RankwellError, match=problem):
        run_recipe(make(data, tiny_bi_encoder, *settings), tmp_path / "out", device="cpu")


def test_a_student_ranks_more_as_its_teacher_does(trained: tuple[Trained, Path], data: Path, tmp_path: Path) -> None:
    """The teacher compares words, and the pairs say that others are meant."""
    start, teacher = trained[1] / "model", find_model(DEFAULT)
    queries = [line.split("\t")[1] for line in (data / "queries.dev.tsv").read_text().splitlines()]
    documents = [line.split("\t")[1] for line in (data / "collection.tsv").read_text().splitlines()]

    def log_probabilities(folder: Path) -> Tensor:
        encoder = BiEncoder.from_pretrained(folder, device="cpu")
        cosines = encoder.encode_queries(queries) @ encoder.encode_documents(documents).T
        return torch.log_softmax(20 * torch.from_numpy(cosines), dim=1)

    stage = {**STAGE, "max_steps": 30, "learning_rate": 1e-3, "best": "last"}
    wanted, divergence = log_probabilities(teacher), []
    for name in ("alone", "taught"):
        options = {**stage, "teacher": str(teacher) if name == "taught" else None}
        done = run_recipe(make(data, start, encoder=options), tmp_path / name, pool=tmp_path, device="cpu")
        student = log_probabilities(done.work.done[0].folder / "model")
        divergence.append(float((wanted.exp() * (wanted - student)).sum(1).mean()))
    assert divergence[1] < 0.8 * divergence[0], divergence
    assert f"teacher {teacher}" in (done.work.done[0].folder / "model" / "README.md").read_text()


def test_a_teacher_that_cannot_teach_is_refused(
    data: Path, tiny_bi_encoder: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    for teacher, problem in (
        (tiny_checkpoint, r"^stages.encoder.teacher: .* is a cross-encoder, which has no vectors$"),
        (tmp_path / "nowhere", r"^.*nowhere.*$"),
        (data, r"data: not a checkpoint .*$"),
    ):
        recipe = make(data, tiny_bi_encoder, f"stages.encoder.teacher={teacher}")
        with pytest.raises(RankwellError, match=problem):
            run_recipe(recipe, tmp_path / "out", device="cpu")


def test_an_index_without_texts_cannot_have_vectors(data: Path, tiny_bi_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match=r"stages.encoder: the index of stages.deepct has no texts"):
        run_recipe(make(data, tiny_bi_encoder, deepct={"tune_queries": 8}, encoder=STAGE), tmp_path / "o", device="cpu")


def test_negatives_of_its_candidates_are_filtered_by_a_ranker_that_starts_from_it(
    data: Path, tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    """The whole cycle: find, train a ranker on what is found, drop what it takes for relevant, find again."""
    short = {**STAGE, "max_steps": 3, "best": "last"}
    listwise = {"max_steps": 2, "batch": 4, "negatives": 2, "best": "last", "start": "first_stage"}
    again = {**short, "kind": "encoder", "encoder": "first_stage", "negatives": 2}
    stages = {"encoder": short, "listwise": listwise, "filter": {"teachers": ["ranker", "first_stage"]}, "again": again}
    done = run_recipe(make(data, tiny_bi_encoder, **stages), tmp_path / "out", device="cpu")
    encoder, ranker, filtered, last = done.work.done
    begun = load_ranker(ranker.work, encoder.folder / "model").model.state_dict()
    trained = load_checkpoint(ranker.folder / "model")[0].state_dict()
    plain = load_ranker(ranker.work).model.state_dict()
    name = "encoder.tokens.weight"
    assert (trained[name] - begun[name]).abs().mean() < (trained[name] - plain[name]).abs().mean()
    assert filtered.result.figures["dropped"] > 0
    assert last.result.first_stage == last.folder


def test_a_ranker_cannot_start_from_a_first_stage_without_a_bi_encoder(
    data: Path, tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    recipe = make(data, tiny_bi_encoder, listwise={"start": "first_stage"})
    with pytest.raises(RankwellError, match="the first stage has no bi-encoder"):
        run_recipe(recipe, tmp_path / "out", device="cpu")
    recipe = make(data, tiny_bi_encoder, filter={"teachers": ["ranker"]}, listwise={})
    with pytest.raises(RankwellError, match=r"stages.filter needs a ranker"):
        run_recipe(recipe, tmp_path / "out", device="cpu")
