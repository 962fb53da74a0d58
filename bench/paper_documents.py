"""CCNU's document ranker: windows scored by an entailment model, alone and interpolated with BM25."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from harness import ROOT, write_json
from paper_runs import write_values
from paper_sdnet import MEASURES
from rankwell.evaluation.evaluate import evaluate
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import build_recipe
from rankwell.training.run import run_recipe

RECIPE = ROOT / "recipes" / "ccnu-document.yaml"


def documents_recipe(data: Path, dev: str, nli: Path, start: str, seed: int, steps: int | None) -> Recipe:
    """The recipe of the repository on a data set, with entailment pairs from the folder ``nli``."""
    tree: dict[str, Any] = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    tree |= {"seed": seed, "data": {"folder": str(data.resolve()), "dev": dev}}
    tree["model"] |= {"start": start}
    pairs = {name: str((nli / f"snli.{split}.tsv").resolve()) for name, split in (("train", "train"), ("test", "dev"))}
    tree["stages"]["nli"] |= {**pairs, "max_steps": steps}
    return build_recipe(tree, Path.cwd() / "recipe.yaml")


def train_documents(recipe: Recipe, data: str, out: Path, pool: Path, device: str | None) -> None:
    """Train the entailment model, rank, and write the values of all dev queries: ``out/windows``, ``out/interpolate``.

    The shares of the sum are chosen by cross-validation: each query is ranked with those chosen without its fold.
    """
    trained = run_recipe(recipe, out, pool=pool, device=device, say=print)
    dev, stages = trained.work.data.dev, trained.work.done
    tokenizer, first = Tokenizer.open(trained.work.model), evaluate(dev.qrels, dev.run, MEASURES)
    for number, done in enumerate(stages):
        if done.run is None:
            continue
        found = evaluate(dev.qrels, done.run, MEASURES)
        arm = {"study": "document", "data": data, "row": done.stage.name, "seed": recipe.seed, "measures": MEASURES}
        figures = {each.stage.name: {"figures": each.result.figures} for each in stages[: number + 1]}
        folder = out / done.stage.name
        write_values(folder, dev.queries, tokenizer, first, found)
        result = {"arm": arm, "recipe": recipe.as_dict(), "stages": figures, "dev": dict(found.mean)}
        write_json(folder / "result.json", result)
        print(done.stage.name, {measure: round(value, 4) for measure, value in found.mean.items()})
