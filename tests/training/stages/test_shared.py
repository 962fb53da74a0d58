"""The stages themselves, small: DR-BERT's whole recipe learns its training queries, resumes and leaves an audit."""

from __future__ import annotations

import gzip
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import rankwell.sample
from rankwell.core.errors import RankwellError
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.folders import new_cross_encoder, save_checkpoint
from rankwell.models.encoder import Encoder
from rankwell.models.spec import EncoderConfig
from rankwell.papers.drbert import denoise
from rankwell.rank.ranker import Ranker
from rankwell.training.data.candidates import TrainingCandidates
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import build_recipe, parse_setting
from rankwell.training.run import Trained, run_recipe
from rankwell.training.stage_options.ranking import ListOptions
from rankwell.training.stages.shared import training_candidates

QUERIES = 14
RECIPE = {
    "name": "small",
    "first_stage": {"depth": 8},
    "evaluate": {"depth": 8, "measures": ["RR@10"]},
    "model": {
        "template": "typed",
        "attention": "strm",
        "max_length": 64,
        "max_query": 24,
        "pooler": False,
        "long_documents": "cut",
    },
    "stages": {
        "pretrain": {"max_steps": 12, "batch": 16, "learning_rate": 1e-3, "max_length": 48},
        "pointwise": {"epochs": 50, "batch": 8, "negatives": 3, "learning_rate": 1e-3, "evaluate_every": 10000},
        "denoise": {"threshold": 0.95},
        "listwise": {
            "epochs": 20,
            "batch": 8,
            "negatives": 4,
            "learning_rate": 5e-4,
            "head": "pointwise",
            "evaluate_every": 10000,
        },
    },
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few of the sample's training queries, to train and to measure on: the question is whether it learns at all."""
    source, folder = Path(rankwell.sample.__file__).parent, tmp_path_factory.mktemp("data")
    (folder / "collection.tsv").write_bytes((source / "collection.tsv").read_bytes())
    queries = (source / "queries.train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)[:QUERIES]
    chosen = {line.split("\t")[0] for line in queries}
    judged = (source / "qrels.train.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    for split in ("train", "dev"):
        (folder / f"queries.{split}.tsv").write_text("".join(queries), encoding="utf-8")
        own = "".join(line for line in judged if line.split()[0] in chosen)
        (folder / f"qrels.{split}.txt").write_text(own, encoding="utf-8")
    return folder


def small_recipe(data: Path, start: Path, **changes: object) -> Recipe:
    tree = {**RECIPE, "data": str(data), "model": {**RECIPE["model"], "start": str(start)}}
    settings = [parse_setting(f"{path}={value}") for path, value in changes.items()]
    return build_recipe(tree, "small.yaml", settings)


def run(data: Path, start: Path, out: Path, **changes: object) -> tuple[Trained, list[str]]:
    said: list[str] = []
    recipe = small_recipe(data, start, **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a toy run collapses or cuts texts is not the matter here
        return run_recipe(recipe, out, device="cpu", say=said.append), said


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Path:
    """A small BERT with weights as BERT's usually are, and no dropout: it is to learn a few queries by heart."""
    tokenizer = Tokenizer.open(tiny_tokenizer)
    shape = EncoderConfig(len(tokenizer), 48, 2, 4, 96, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    torch.manual_seed(1)
    model = new_cross_encoder(Encoder(shape), 2, pooler=False, seed=1)
    folder = tmp_path_factory.mktemp("start") / "model"
    save_checkpoint(folder, model, tokenizer, RankerConfig(pooler=False))
    for name in ("rankwell.json", "checksums"):  # a plain checkpoint, as transformers leaves it
        (folder / name).unlink()
    return folder


@pytest.fixture(scope="module")
def trained(data: Path, start: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trained]:
    out = tmp_path_factory.mktemp("out") / "small"
    return out, run(data, start, out)[0]


def figures(trained: Trained) -> dict[str, float]:
    return {row["stage"]: row["mean"]["RR@10"] for row in trained.table.data["rows"] if "mean" in row}


def test_each_stage_learns(trained: tuple[Path, Trained]) -> None:
    found = figures(trained[1])
    assert found["pointwise"] > found["first stage"]
    assert found["listwise"] > found["first stage"]
    (folder,) = (trained[0] / "stages").glob("*-pretrain-*")
    gap = json.loads((folder / "domain-gap.json").read_text())
    assert 0 < gap["gap"] < 1
    assert (folder / "model" / "model.safetensors").is_file()


def test_a_stage_can_start_from_what_was_pre_trained(data: Path, start: Path, tmp_path: Path) -> None:
    changes: dict[str, object] = {"stages.pretrain.max_steps": 2}
    changes |= {f"stages.{stage}.max_steps": 1 for stage in ("pointwise", "listwise")}
    changes |= {"stages.listwise.start": "pretrained", "stages.listwise.learning_rate": 1e-12}
    trained, _ = run(data, start, tmp_path / "out", **changes)
    models = {done.stage.kind: done.result.model for done in trained.work.done}
    weights = {kind: load_file(str(model / "model.safetensors")) for kind, model in models.items() if model}
    name = next(name for name in weights["listwise"] if name.endswith("layer.0.attention.self.query.weight"))
    (before,) = (tensor for key, tensor in weights["pretrain"].items() if key.endswith(name.removeprefix("bert.")))
    assert torch.allclose(weights["listwise"][name], before, atol=1e-8)
    assert not torch.allclose(weights["pointwise"][name], before, atol=1e-5)


def test_pre_training_is_measured_on_held_out_passages(
    data: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwell.papers.drbert.pretrain.HELD_OUT_SHARE", 0.1)
    only = {f"stages.{stage}": "off" for stage in ("pointwise", "denoise", "listwise")}
    run(data, start, tmp_path / "out", **only, **{"stages.pretrain.max_steps": 2})
    (folder,) = (tmp_path / "out" / "stages").glob("*-pretrain-*")
    found = json.loads((folder / "stage.json").read_text())["produced"]["figures"]
    assert found["held-out MLM loss"] > 1
    assert 0 <= found["held-out MLM accuracy"] < 0.5
    assert 0.2 < found["held-out NSP accuracy"] < 0.8


def test_a_vocabulary_without_a_mask_is_refused_before_training(data: Path, start: Path, tmp_path: Path) -> None:
    shutil.copytree(start, tmp_path / "start")
    for path in (tmp_path / "start").glob("tokenizer*.json"):
        path.write_text(path.read_text(encoding="utf-8").replace("[MASK]", "masked"), encoding="utf-8")
    with pytest.raises(RankwellError, match=r"the vocabulary has no \[MASK\]"):
        run(data, tmp_path / "start", tmp_path / "out")
    assert not (tmp_path / "out" / "stages").exists()


def test_the_audit_lists_what_was_dropped(trained: tuple[Path, Trained]) -> None:
    (folder,) = (trained[0] / "stages").glob("*-denoise-*")
    summary = json.loads((folder / "audit.json").read_text())
    assert summary["queries"] == QUERIES
    assert summary["kept"] + summary["noise"] == summary["candidates"]
    with gzip.open(folder / "audit.tsv.gz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    dropped = [row for row in rows if row[3] == "dropped"]
    assert len(dropped) == summary["noise"]
    assert all(float(row[2]) > 0.95 for row in dropped)


def test_only_the_first_process_writes_the_audit_and_the_candidates(
    trained: tuple[Path, Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = next(done for done in trained[1].work.done if done.stage.kind == "denoise")
    (tmp_path / "candidates.run.gz").write_bytes(b"of the first process")
    monkeypatch.setenv("RANK", "1")
    denoise.run(done.work, done.stage, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["candidates.run.gz"]
    assert (tmp_path / "candidates.run.gz").read_bytes() == b"of the first process"


def test_the_model_ranks_as_it_was_measured(trained: tuple[Path, Trained]) -> None:
    out, result = trained
    ranker = Ranker.from_pretrained(out / "model", engine={"device": "cpu"})
    assert ranker.template.name == "typed"
    dev = result.work.data.dev
    again = ranker.rerank(dev.run, dev.queries, result.work.data.index, depth=8)
    assert result.last is not None
    assert {qid: ranking.docids for qid, ranking in again.items()} == {
        qid: ranking.docids for qid, ranking in result.last.run.items()
    }
    history = json.loads((out / "model" / "rankwell.json").read_text())["history"]
    assert [stage["stage"] for stage in history] == ["pretrain", "pointwise", "denoise", "listwise"]


def test_a_second_call_does_nothing_and_an_edited_stage_is_done_again(
    trained: tuple[Path, Trained], data: Path, start: Path
) -> None:
    _, said = run(data, start, trained[0])
    assert [line.rsplit(": ")[-1] for line in said] == ["done before"] * 4
    _, said = run(data, start, trained[0], **{"stages.listwise.epochs": 1})
    assert [line.rsplit(": ")[-1] for line in said] == ["done before"] * 3 + ["running"]


def test_a_judge_that_takes_too_many_for_relevant_is_not_believed(
    trained: tuple[Path, Trained], data: Path, start: Path
) -> None:
    def noise(most: float) -> tuple[list[str], dict[str, Any]]:
        changes = {"stages.listwise": "off", "stages.denoise.threshold": 0.0, "stages.denoise.most": most}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            result = run_recipe(small_recipe(data, start, **changes), trained[0], device="cpu")
        figures = result.work.done[-1].result.figures
        return [str(one.message) for one in told if str(one.message).startswith("noise reduction")], dict(figures)

    said, figures = noise(1)
    assert said == []
    assert figures["noise rate"] > 0.9  # each query keeps one
    (said,), figures = noise(0.5)
    assert "drops nothing: 100.0% of the unjudged candidates have p above 0" in said
    assert (figures["noise"], figures["doubted rate"]) == (0, 1)


def test_the_pointwise_model_judges_whatever_was_trained_after_it(
    trained: tuple[Path, Trained], data: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judges: list[str] = []

    def asked(work: Any, model: Path, candidates: TrainingCandidates) -> Any:
        judges.append(model.parent.name)
        return np.zeros(len(candidates), np.float32)

    monkeypatch.setattr(denoise, "_probabilities", asked)
    short = {"stages.pointwise.epochs": 1, "stages.listwise.epochs": 1}
    tree = small_recipe(data, start, **short).as_dict()
    stages = tree["stages"]
    later = {"kind": "denoise", **stages["denoise"]}
    tree["stages"] = {"pointwise": stages["pointwise"], "listwise": stages["listwise"], "later": later}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_recipe(build_recipe(tree, "small.yaml"), trained[0], device="cpu")
    assert [name.split("-")[1] for name in judges] == ["pointwise"]


def test_what_is_kept_can_be_cut_further(trained: tuple[Path, Trained]) -> None:
    work = trained[1].work
    assert work.candidates is not None
    whole = training_candidates(work)
    few = training_candidates(work, ListOptions(depth=2))
    assert few.lengths.max() < whole.lengths.max()
    assert few.per_query(~few.relevant).max() <= 2


def test_errors_name_the_stage_as_the_recipe_does(data: Path, start: Path, tmp_path: Path) -> None:
    for settings, problem in (
        ({"stages.late": "{kind: duo, depth: 20}"}, "stages.late compares the first documents"),
        (
            {"stages.late": "{kind: tune, encoder: null, folds: 999}"},
            "stages.late.folds is 999, but dev has 14 queries",
        ),
        ({"stages": "{early: {kind: denoise}, pointwise: {}}"}, "stages.early needs a pointwise stage before it"),
    ):
        with pytest.raises(RankwellError, match=problem):
            run(data, start, tmp_path / "never", **settings)


def test_what_would_fail_later_is_told_before_the_first_stage(
    data: Path, start: Path, tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    hybrid = {"first_stage.hybrid": 0.5, "first_stage.encoder": tiny_bi_encoder}
    for changes, problem in (
        ({"stages.listwise.loss": "listwsie"}, "listwise"),
        ({"stages.listwise.best": "RR@ten"}, "RR"),
        ({"stages.pointwise": "off"}, "denoise needs a pointwise stage"),
        ({"stages.average": "{stages: [pointwise, pointwise]}"}, "a stage comes twice"),
        ({"stages.duo": "{depth: 20}"}, "`compare` says how many"),
        ({"stages.duo": "{labels: grade}"}, r"stages\.duo\.labels is grade"),
        ({"model.template": "duo"}, "model.template is duo, which is not for one query and document"),
        ({"stages.tune": "{encoder: nowhere}"}, "nowhere: no such folder"),
        ({"stages.deepct": "{}", **hybrid}, "a stage that builds an index searches that index only"),
        ({"stages": "{classify: {train: nowhere.tsv}, pointwise: {}}"}, "nowhere.tsv: no such file"),
    ):
        with pytest.raises(RankwellError, match=problem):
            run(data, start, tmp_path / "never", **changes)
        assert not list((tmp_path / "never").glob("stages/*"))


@pytest.mark.parametrize("kind", ["windows", "duo"])
def test_what_goes_on_from_a_ranker_needs_one(data: Path, tiny_bi_encoder: Path, tmp_path: Path, kind: str) -> None:
    with pytest.raises(RankwellError, match=f"stages.{kind} needs a ranker: a stage before it"):
        run(data, tiny_bi_encoder, tmp_path / "never", stages=f"{{{kind}: {{}}}}")


def test_a_classifiers_row_has_its_accuracy(start: Path, tmp_path: Path) -> None:
    for name, rows in (("train", 16), ("test", 4)):
        lines = ["numeric\thow many bees" if row % 2 else "person\twho keeps bees" for row in range(rows)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    tree = {"data": str(tmp_path), "model": {"start": str(start)}, "stages": {"classify": {"epochs": 1}}}
    trained = run_recipe(build_recipe(tree, "types.yaml"), tmp_path / "out", device="cpu")
    accuracy = trained.table.data["rows"][0]["figures"]["accuracy"]
    assert f"| classify | {accuracy:.4f} |" in (tmp_path / "out" / "table.md").read_text()
