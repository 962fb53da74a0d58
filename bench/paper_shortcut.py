"""Does a ranker take passages without any of the query's words for relevant?

Two layers, trained for some minutes on a CPU, are enough to see what the training data teach.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from paper_collect import read_columns, write_table
from paper_recipes import ROWS, Source, pointwise_stage, ranking_recipe
from paper_runs import made_once, set_aside
from rankwell.core.types import Values
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.datasets import FolderDataset
from rankwell.models.checkpoints.names import find_model
from rankwell.rank.ranker import Ranker
from rankwell.retrieve.bm25 import BM25
from rankwell.training.data.prepare import open_collection
from rankwell.training.run import run_recipe

LAYERS, LENGTH, RATE, CHECKED = 2, 112, 2e-4, 5
UNMATCHED = 10
"""Passages without a query word, drawn for each query."""
FIGURES = ("unmatched over candidates", "unmatched over relevant", "relevant over candidates")


def train_small(
    source: Source, start: str, row: str, found_only: bool, steps: int, out: Path, pool: Path, device: str | None
) -> Ranker:
    """Train the first layers of ``start`` pointwise, as a row of Table 1."""
    data = set_aside(source, pool / f"{source.folder.name}-{source.train}-{source.dev}-{source.aside}-all")
    stages = {"pointwise": {**pointwise_stage(RATE, steps), "found_only": found_only}}
    small = first_layers(find_model(start), pool / "first-layers")
    recipe = ranking_recipe(
        "shortcut", data, source, str(small), ROWS[row], stages, 1, checked=CHECKED, max_length=LENGTH
    )
    trained = run_recipe(recipe, out, pool=pool, device=device, say=print)
    return Ranker.from_pretrained(trained.work.model, device=device)


def first_layers(model: Path, out: Path) -> Path:
    """A copy of a BERT with its first layers alone; made once."""
    if out.exists():
        return out
    with made_once(out) as folder:
        shutil.copytree(model, folder, dirs_exist_ok=True)
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": LAYERS}), encoding="utf-8")
        weights = load_file(model / "model.safetensors")
        kept = {name: array for name, array in weights.items() if _layer(name) < LAYERS}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return out


def _layer(name: str) -> int:
    """The layer of a weight, -1 for those outside."""
    number = re.search(r"\.layer\.(\d+)\.", name)
    return -1 if number is None else int(number[1])


def measure_shortcut(source: Source, ranker: Ranker, name: str, queries: int, out: Path, pool: Path) -> None:
    """Add the columns of one ranker to ``out``: how often it scores passages of one kind above those of another.

    The kinds are a relevant passage, each tenth of BM25's other candidates, and passages without a query word.
    """
    dataset, analyzer, random = FolderDataset(source.folder), Analyzer.english(), np.random.default_rng(1)
    texts = {document.docid: document.text for document in dataset.documents()}
    ids, qrels = sorted(texts), dataset.qrels(source.dev)
    asked = [query for query in dataset.queries(source.dev) if query.qid in qrels][:queries]
    index = open_collection(str(source.folder), pool).index
    run = index.search(asked, k=100, bm25=BM25(source.k1, source.b, source.k2))
    rows = []
    for query in asked:
        terms = set(analyzer.terms_batch([query.text])[0])
        relevant = [docid for docid, grade in qrels[query.qid].items() if grade >= 1]
        candidates = [docid for docid in run[query.qid].docids if docid not in relevant][::10]
        unmatched: list[str] = []
        while len(unmatched) < UNMATCHED:
            docid = ids[random.integers(len(ids))]
            if not terms & set(analyzer.terms_batch([texts[docid]])[0]) and docid not in relevant:
                unmatched.append(docid)
        pairs = [(query.text, texts[docid]) for docid in (relevant[0], *candidates, *unmatched)]
        scores = np.asarray(ranker.predict(pairs), np.float64)
        parts = np.split(scores, [1, 1 + len(candidates)])
        rows.append([_above(parts[2], parts[1]), _above(parts[2], parts[0]), _above(parts[0], parts[1])])
    columns = read_columns(out) if out.exists() else {"qid": [query.qid for query in asked]}
    for figure, values in zip(FIGURES, zip(*rows, strict=True), strict=True):
        columns[f"{name} {figure}/seed 1"] = [f"{value:.5g}" for value in values]
        print(name, figure, round(float(np.mean(values)), 4))
    write_table(out, [list(columns), *zip(*columns.values(), strict=True)])


def _above(some: Values, others: Values) -> float:
    """How often a score of ``some`` is above one of ``others``."""
    return float((some[:, None] > others[None]).mean()) if len(others) else 0.0
