"""Which models work, and how: the table of docs/models.md, over tiny random checkpoints of every family.

    python bench/model_table.py                           the table, as Markdown
    python bench/model_table.py --only qwen3,qwen2        some of its rows
    python bench/model_table.py --no-table --speed 60     its last column: speed on a CPU beside CrossEncoder

Scores are compared with sentence-transformers' CrossEncoder, or for the language models that it cannot prompt with
transformers. Training runs two steps on the bundled sample; exports are compared with the model by rank_agreement.
Speed is measured with models of six layers of width 384 on pairs of up to 180 tokens: the CPU time of CrossEncoder at
its best (sorted pairs, sdpa, the best of several batch sizes) divided by that of rankwell, in alternating rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import tiny_models as tiny
from rankwell import Ranker
from rankwell.models.checkpoints.export import export_model
from rankwell.rank.engines.agreement import rank_agreement
from rankwell.sample import FOLDER

SHAPE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
DISTIL_SHAPE = {"dim": 384, "n_layers": 6, "n_heads": 12, "hidden_dim": 1536}
MORE: dict[str, dict[str, Any]] = {
    "electra": {"embedding_size": 384},
    "albert": {"embedding_size": 128},
    "deberta-v2": {"position_buckets": 256},
    "modernbert": {"local_attention": 128},
}
BATCHES = (16, 32)
LENGTH = 180
ROUNDS = 3


def their_scores(folder: Path, pairs: list[tuple[str, str]]) -> Any:
    torch: Any = import_module("torch")
    peer: Any = import_module("sentence_transformers")
    return peer.CrossEncoder(str(folder), device="cpu").predict(pairs, activation_fn=torch.nn.Identity())


def difference(folder: Path) -> str:
    found = Ranker(folder).predict(tiny.PAIRS)
    return f"{np.abs(found - their_scores(folder, tiny.PAIRS)).max():.0e}"


def trains(start: Path, out: Path) -> str:
    """Whether two steps change the model and the saved folder scores the same in sentence-transformers."""
    from rankwell.training.recipe_reader import build_recipe
    from rankwell.training.run import run_recipe

    tree = {
        "name": "table",
        "data": {"folder": str(FOLDER), "train_queries": 8, "dev_queries": 4},
        "first_stage": {"depth": 5},
        "evaluate": {"depth": 5, "measures": ["RR@10"]},
        "model": {"start": str(start), "max_length": 64, "max_query": 16, "long_documents": "cut"},
        "stages": {"listwise": {"max_steps": 2, "batch": 2, "negatives": 2, "evaluate_every": 10000}},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_recipe(build_recipe(tree, "table.yaml"), out, device="cpu")
    found, expected = Ranker(out / "model").predict(tiny.PAIRS), their_scores(out / "model", tiny.PAIRS)
    return "yes" if np.abs(found - expected).max() < 1e-5 else "differs"


def exported(folder: Path, out: Path) -> str:
    """The largest difference of a score in fp32, and Spearman's correlation in int8."""
    export_model(folder, out / "fp32")
    found = Ranker(out / "fp32", backend="onnx").predict(tiny.PAIRS)
    export_model(folder, out / "int8", "int8")
    agreement = rank_agreement(folder, out / "int8", "onnx", FOLDER)
    difference = np.abs(found - Ranker(folder).predict(tiny.PAIRS)).max()
    return f"{difference:.0e}, {np.mean(agreement):.3f}".replace("0.", ".")


def rows(place: Path, only: set[str]) -> list[tuple[str, ...]]:
    made: list[tuple[str, ...]] = []
    for kind in tiny.ENCODERS:
        if only and kind not in only:
            continue
        folder = tiny.make(kind, place / kind)
        bare = tiny.make(kind, place / f"{kind}-bare", labels=None)
        computed = "rankwell" if kind in tiny.OWN else "transformers"
        export = exported(folder, place / f"{kind}-out")
        made.append((kind, computed, difference(folder), trains(bare, place / f"{kind}-trained"), export))
    if not only or "modular" in only:
        modular = tiny.make_modular("modernbert", place / "modular", norm=True)
        made.append(("modular cross-encoder", "as its encoder", difference(modular), "its encoder", "no"))
    for kind in ("qwen3", "qwen2"):
        if not only or kind in only:
            folder = tiny.make_language_model(kind, place / f"{kind}-chat")
            made.append((f"{kind}, chat template", "transformers", difference(folder), "no", "no"))
    if not only or "qwen3" in only:
        folder = tiny.make("qwen3", place / "qwen3-classifier")
        made.append(("qwen3, classifier", "transformers", difference(folder), "no", "no"))
    return made


def speed(place: Path, count: int, only: set[str]) -> list[tuple[str, ...]]:
    """CPU seconds of CrossEncoder and of rankwell for the same pairs, and their ratio."""
    torch: Any = import_module("torch")
    peer: Any = import_module("sentence_transformers")
    lines = (FOLDER / "collection.tsv").read_text(encoding="utf-8").splitlines()[:count]
    pairs = [("how do bees keep warm in winter", line.partition("\t")[2]) for line in lines]
    pairs.sort(key=lambda pair: -len(pair[1]))
    made: list[tuple[str, ...]] = []
    for kind in tiny.ENCODERS:
        if only and kind not in only:
            continue
        shape = DISTIL_SHAPE if kind == "distilbert" else SHAPE
        folder = tiny.make(kind, place / f"{kind}-large", **{**shape, **MORE.get(kind, {})})
        model = peer.CrossEncoder(str(folder), device="cpu", max_length=LENGTH)
        ranker = Ranker(folder, windows=None, max_length=LENGTH)
        options = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False}
        seconds: dict[int | None, list[float]] = {size: [] for size in (*BATCHES, None)}
        for turn in range(1 + ROUNDS):  # the first warms up
            for size, taken in seconds.items():
                begin = time.process_time()
                if size is None:
                    ranker.predict(pairs[: 8 if turn == 0 else None])
                else:
                    model.predict(pairs[: 8 if turn == 0 else None], batch_size=size, **options)
                taken += [time.process_time() - begin] if turn else []
        ours, best = float(np.median(seconds.pop(None))), min(float(np.median(taken)) for taken in seconds.values())
        made.append((kind, f"{best:.2f}", f"{ours:.2f}", f"{best / ours:.2f}"))
        print(made[-1], flush=True)
    return made


def markdown(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ("---",) * len(head), *lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=int, metavar="PAIRS", help="also measure rates on this many pairs")
    parser.add_argument("--no-table", action="store_true", help="measure rates only")
    parser.add_argument("--only", default="", metavar="TYPE,TYPE,...", help="rows of these types only")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    with tempfile.TemporaryDirectory() as place:
        if not options.no_table:
            head = ("type", "computed by", "difference", "trains", "ONNX")
            print(markdown(head, rows(Path(place), only)))
        if options.speed:
            columns = ("type", "CrossEncoder, s", "rankwell, s", "ratio")
            print(markdown(columns, speed(Path(place), options.speed, only)))


if __name__ == "__main__":
    main()
