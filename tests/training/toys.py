"""Data and stage kinds that take no time, for tests of what stands around real ones."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from rankwell.core.errors import RankwellError
from rankwell.core.manifest import digest
from rankwell.corpus.formats import write_run
from rankwell.corpus.records import Run
from rankwell.inputs.templates import Template
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.training.options import STAGE_OPTIONS, Meaning, Options
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import STAGES, StageKind, StageResult, Work, process_number, stage_kinds

WORDS = "bee honey hive flower river bridge stone iron coffee tea bread salt".split()


def write_data(folder: Path, queries: int = 24, *, apart: bool = False) -> Path:
    """Twelve documents of two words, and queries with one relevant document that BM25 finds among others.

    With ``apart``, queries are in words that their documents do not have: BM25 finds nothing.
    """
    folder.mkdir(parents=True)
    n = len(WORDS)
    documents = [f"d{i}\t{WORDS[i]} {WORDS[(i + 1) % n]} market" for i in range(n)]
    (folder / "collection.tsv").write_text("\n".join(documents) + "\n")
    for split in ("train", "dev", "test"):
        words = [f"{WORDS[(i + 5) % n]} of the" if apart else WORDS[i % n] for i in range(queries)]
        asked = [f"{split}{i}\t{word} market" for i, word in enumerate(words)]
        judged = [f"{split}{i} 0 d{i % n} 1" for i in range(queries)]
        (folder / f"queries.{split}.tsv").write_text("\n".join(asked) + "\n")
        (folder / f"qrels.{split}.txt").write_text("\n".join(judged) + "\n")
    return folder


def write_start(folder: Path, tokenizer: Path) -> Path:
    """A checkpoint folder that has everything but weights, which nobody here reads."""
    folder.mkdir(parents=True)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = {"model_type": "bert", "vocab_size": 600, "max_position_embeddings": 512, **shape}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    for file in tokenizer.iterdir():
        shutil.copy(file, folder)
    ranker = RankerConfig(template=Template(max_length=80), history=[{"stage": "of old"}])
    (folder / "rankwell.json").write_text(ranker.model_dump_json())
    return folder


class FitOptions(Options):
    share: float = Field(default=0.5, description="Share of the dev queries that the model answers.")
    behaviour: Literal["works", "is killed", "is refused", "breaks"] = "works"
    budget: Annotated[int | None, Meaning.NO_EFFECT] = None
    extra: dict[str, float] = Field(default_factory=dict)


class FilterOptions(Options):
    keep: int = 2


class Toys:
    """Stage kinds ``warm``, ``fit`` and ``filter``, registered while a test runs; ``calls`` records what they did."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        reads = frozenset({"collection", "start", "seed"})
        self.kinds = {
            **stage_kinds(),
            "warm": StageKind(FitOptions, self.fit, reads=reads),
            "fit": StageKind(FitOptions, self.fit, self.check, self.measure),
            "filter": StageKind(FilterOptions, self.filter),
            "find": StageKind(FilterOptions, self.find, reads=reads, finds=True),
        }
        patch.setattr(STAGES, "_parts", self.kinds)
        patch.setattr(STAGE_OPTIONS, "_parts", {name: kind.options for name, kind in self.kinds.items()})

    def check(self, work: Work, stage: RecipeStage[FitOptions]) -> None:
        if stage.options.behaviour == "is refused":
            raise RankwellError("the toy cannot be fitted to this")

    def fit(self, work: Work, stage: RecipeStage[FitOptions], folder: Path) -> StageResult:
        options = stage.options
        self.calls.append(folder.name.rsplit("-", 1)[0])
        if process_number() > 0:  # as in real stages, the first process writes
            return StageResult(folder / "model")
        half = folder / "half-way.json"
        if options.behaviour == "is killed" and not half.exists():
            half.write_text("{}")
            raise KeyboardInterrupt
        if options.behaviour == "breaks":
            raise ZeroDivisionError("the toy broke")
        model = folder / "model"
        shutil.rmtree(model, ignore_errors=True)  # what a killed attempt left
        shutil.copytree(work.model, model)
        (model / "share.json").write_text(json.dumps({"share": options.share, "seed": work.seed}))
        return StageResult(model, figures={"resumed": half.exists(), "before": len(work.done)})

    def filter(self, work: Work, stage: RecipeStage[FilterOptions], folder: Path) -> StageResult:
        self.calls.append(folder.name.rsplit("-", 1)[0])
        path = folder / "candidates.run.gz"
        write_run(work.data.train.run.head(stage.options.keep), path)
        return StageResult(candidates=path)

    def find(self, work: Work, stage: RecipeStage[FilterOptions], folder: Path) -> StageResult:
        """A first stage of its own, which finds no more than so many documents."""
        for split in (work.data.train, work.data.dev):
            key = digest({"split": split.digest, "first stage": folder.name, "depth": work.recipe.first_stage.depth})
            write_run(split.run.head(stage.options.keep), folder / f"first-stage-{key}.run.npz")
        return StageResult(first_stage=folder)

    def measure(self, work: Work, stage: RecipeStage[FitOptions], folder: Path) -> Run:
        """The relevant document comes first for the model's share of the queries, last for the others."""
        model = json.loads((folder / "model" / "share.json").read_text())
        dev, scores = work.data.dev, {}
        for number, query in enumerate(dev.queries):
            good = number + model["seed"] - 1 < model["share"] * len(dev.queries)
            own = next(iter(dev.qrels[query.qid]))
            scores[query.qid] = {
                docid: (100.0 if good else -100.0) if docid == own else score for docid, score in dev.run[query.qid]
            }
        return Run.from_scores(scores)


def recipe_tree(data: Path, start: Path, **stages: object) -> dict[str, object]:
    return {
        "name": "toy",
        "data": {"folder": str(data)},
        "first_stage": {"depth": 12},
        "model": {"start": str(start), "max_length": 80},
        "evaluate": {"measures": ["RR@10", "P@1"]},
        "stages": stages or {"warm": None, "fit": {"share": 0.75}},
    }


if multiprocessing.parent_process() is not None:  # a job of an experiment, which was sent a recipe of these stages
    Toys(pytest.MonkeyPatch())
