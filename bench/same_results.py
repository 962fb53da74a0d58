"""Two versions of the sources give the same results, byte for byte, on the bundled sample.

    git worktree add ../before COMMIT
    python bench/same_results.py ../before .

Each version runs the same commands in its own process: index, BM25, hybrid search, re-ranking (alone, in windows, fused
and blended), a system that is saved and searched, evaluation, and small recipes that have every kind of stage. Compared
are the runs, the figures and the trained weights. Everything computes on one CPU thread.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

QUERIES = 6
SYSTEM = """
from rankwell import Shares, System
shares = Shares(model=0.5, similarity=0.3, first=0.2, normalise="z-score")
how = {"hybrid": 0.7, "ranker": "rankwell-mini", "shares": shares, "depth": 5, "device": "cpu"}
System.of_index("index", **how).save("system")
"""
START = """
import shutil, sys, torch, transformers
torch.manual_seed(5)
sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
transformers.BertModel(transformers.BertConfig(vocab_size=30522, **sizes)).save_pretrained("start")
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(f"{sys.argv[1]}/{name}", "start")
"""
FEW: dict[str, Any] = {"max_steps": 2, "batch": 4}
LAST = {**FEW, "best": "last"}
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "drbert": {"pretrain": FEW, "pointwise": LAST, "denoise": {}, "listwise": LAST, "blend": {"kind": "tune"}},
    "words": {"deepct": FEW, "doc2query": {**LAST, "n": 1}},
    "vectors": {"encoder": LAST, "adapter": LAST},
    "teachers": {
        "filter": {"teachers": ["start"]},
        "distil": {**FEW, "teachers": ["start"], "depth": 20, "dense": 0},
        "again": {**FEW, "kind": "distil", "teachers": ["start"], "depth": 20, "dense": 0},
        "average": {"stages": ["distil", "again"]},
    },
    "duo": {"pointwise": LAST, "duo": {**LAST, "compare": 3}},
    "sdnet": {"sdnet": {**LAST, "hidden": 8, "max_words": 30}},
    "windows": {
        "pointwise": LAST,
        "windows": {"size": 30, "stride": 15, "depth": 5},
        "interpolate": {"kind": "tune", "encoder": None, "normalise": "min-max"},
    },
    "classify": {"classify": {**FEW, "train": "train.tsv", "test": None}},
}
"""The stages of small recipes. Earlier sources have the kinds `blend` and `interpolate` instead of `tune`."""


def write_recipes(sources: Path, folder: Path) -> None:
    """Write the recipes as this version of the sources takes them."""
    earlier = not (sources / "src/rankwell/training/stages/tune.py").exists()
    (folder / "train.tsv").write_text("numeric\thow many bees\nperson\twho keeps bees\n" * 8, encoding="utf-8")
    model = {"start": "start", "max_length": 64, "max_query": 24}
    for name, stages in RECIPES.items():
        data = "." if name == "classify" else str(sources / "src" / "rankwell" / "sample")
        if earlier:
            stages = {stage: {"kind": stage} if "tune" in kind.values() else kind for stage, kind in stages.items()}
        tree = {"data": data, "model": model, "first_stage": {"depth": 10}, "evaluate": {"depth": 3}, "seed": 7}
        # As JSON, which is YAML too: settings that two stages share would be written as an alias, which recipes refuse.
        (folder / f"{name}.yaml").write_text(json.dumps({**tree, "stages": stages}))


def commands(sources: Path) -> dict[str, list[str]]:
    """The arguments of Python, by the name of what is done."""
    sample = sources / "src" / "rankwell" / "sample"
    sets = "read_settings" in (sources / "src" / "rankwell" / "cli" / "rerank.py").read_text(encoding="utf-8")

    def rare(name: str, value: str) -> list[str]:
        return ["--set", f"{name}={value}"] if sets else [f"--{name}", value]

    rerank = ["rerank", "bm25.run", "--queries", "queries.tsv", "--collection", "index", "--device", "cpu"]
    verbs = {
        "index": ["index", str(sample / "collection.tsv"), "--out", "index"],
        "bm25": ["search", "index", "queries.tsv", "--k", "100", "--out", "bm25.run"],
        "k1, b": ["search", "index", "queries.tsv", "--k1", "1.2", "--b", "0.7", "--out", "other.run"],
        "hybrid": ["search", "index", "queries.tsv", "--hybrid", "0.7", "--k", "50", "--out", "hybrid.run"],
        "rerank": [*rerank, "--depth", "20", "--out", "model.run"],
        "windows": [*rerank, "--depth", "5", "--windows", "30", *rare("aggregate", "top3"), "--out", "windows.run"],
        "fuse": [*rerank, "--depth", "10", "--fuse", "0.3", "--out", "fused.run"],
        "blend": [*rerank, "--depth", "10", "--fuse", "0.1", "--blend", "0.3", "--out", "blended.run"],
        "strm": [*rerank, "--depth", "5", *rare("attention", "strm"), "--out", "strm.run"],
        "search the system": ["search", "system", "queries.tsv", "--k", "20", "--device", "cpu", "--out", "system.run"],
        "evaluate": ["evaluate", str(sample / "qrels.dev.txt"), "bm25.run", "hybrid.run", "fused.run", "--json"],
    }
    for name in RECIPES:
        verbs[f"train {name}"] = ["train", f"{name}.yaml", "--device", "cpu", "--out", f"trained/{name}"]
    calls = {name: ["-m", "rankwell", *arguments] for name, arguments in verbs.items()}
    start = ["-c", START, str(sources / "src/rankwell/shipped/rankwell-mini")]
    return {"start": start, "index": calls.pop("index"), "save a system": ["-c", SYSTEM], **calls}


def digests(sources: Path, folder: Path) -> dict[str, str]:
    """Run everything with one version of the sources; the hash of each result."""
    environment = os.environ | {"PYTHONPATH": str(sources / "src"), "RANKWELL_DEVICE": "cpu"}
    environment |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    queries = (sources / "src/rankwell/sample/queries.dev.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "queries.tsv").write_text("".join(queries[:QUERIES]), encoding="utf-8")
    (folder / "trained").mkdir()
    write_recipes(sources, folder)
    results = {}
    for name, arguments in commands(sources).items():
        begin = time.monotonic()
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{sources}: {name} failed: {done.stderr[-2000:]}")
        if name == "evaluate":
            results["figures"] = hashlib.sha256(done.stdout.encode()).hexdigest()
        print(f"{sources}: {name}, {time.monotonic() - begin:.1f} s", file=sys.stderr)
    outputs = {path.name: path for path in folder.glob("*.run")}
    for path in sorted(path for path in (folder / "trained").rglob("*") if path.is_file()):
        recipe, _, *place = path.relative_to(folder / "trained").parts
        if path.suffix == ".safetensors" or path.name.endswith(".run.gz"):
            stage = place[0].rpartition("-")[0] if place else ""
            kind = "run" if path.name.endswith(".run.gz") else path.name
            outputs[
                f"{recipe} {stage} {kind} {sum(name.startswith(f'{recipe} {stage} {kind}') for name in outputs)}"
            ] = path
    for name, path in outputs.items():
        data = path.read_bytes()
        results[name] = hashlib.sha256(gzip.decompress(data) if path.suffix == ".gz" else data).hexdigest()
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
