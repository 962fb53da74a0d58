"""A system's models in other engines, by the code of docs/your-engine.md: they rank as rankwell does.

The engines are in an environment of their own (``make test-clients``), in the folder that ``RANKWELL_ENVIRONMENTS``
names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.serve.test_description import PLACE, ROOT, installed

from rankwell import Index, Run, System, evaluate, sample
from rankwell.corpus.datasets import open_dataset
from rankwell.rank.exporting import export_system
from rankwell.training.recipe_reader import build_recipe
from rankwell.training.run import run_recipe

pytestmark = pytest.mark.skipif(not PLACE, reason="RANKWELL_ENVIRONMENTS names no folder to install into")
PACKAGES = ("qdrant-client>=1.16", "lancedb>=0.30", "psycopg[binary]>=3.2", "pgserver")
AROUND = """
import os, pgserver, psycopg, shutil, tempfile
folder = tempfile.mkdtemp()  # which the server's own user may enter
os.chmod(folder, 0o777)
server = pgserver.get_server(f"{{folder}}/data")
connection = psycopg.connect(server.get_uri(), autocommit=True)
{blocks}
asked = [line.rstrip("\\n").split("\\t", 1) for line in open("queries.tsv")]
engines = {{"Qdrant": qdrant, "LanceDB": lance, "PostgreSQL": postgresql}}
runs = {{name: {{qid: dict(search(text)[:100]) for qid, text in asked}} for name, search in engines.items()}}
json.dump(runs, open("runs.json", "w"))
connection.close()
server.cleanup()
shutil.rmtree(folder, ignore_errors=True)
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> System:
    """The sample, searched with BM25 and a fitted bi-encoder: rankwell-mini with an adapter of queries."""
    folder = tmp_path_factory.mktemp("system")
    tree: dict[str, Any] = {
        "name": "adapter",
        "data": {"folder": str(sample.FOLDER)},
        "first_stage": {"hybrid": 0.7, "encoder": "rankwell-mini"},
        "model": {"start": "rankwell-mini"},
        "stages": {"adapter": {"encoder": "first_stage", "side": "query", "tune_queries": 40}},
    }
    run_recipe(build_recipe(tree, "r.yaml"), folder / "out", device="cpu")
    encoder = next((folder / "out" / "stages").glob("*-adapter-*")) / "model"
    index = Index.build(open_dataset(sample.FOLDER).documents(), folder / "index")
    return System.of_index(index, hybrid=0.7, encoder=str(encoder)).save(folder / "system")


def test_qdrant_lancedb_and_postgresql_rank_as_rankwell_does(system: System, tmp_path: Path) -> None:
    programs = installed("engines", "-c", str(ROOT / "constraints.txt"), *PACKAGES)
    site = next((programs.parent / "lib").glob("python*/site-packages"))
    (site / "project.pth").write_text("\n".join(place for place in sys.path if place.endswith("site-packages")))
    data = open_dataset(sample.FOLDER)
    export_system(system, tmp_path / "elsewhere", "sentence-transformers")
    assert sorted(path.name for path in (tmp_path / "elsewhere" / "encoder").iterdir()) == ["document", "query"]
    shutil.copy(sample.FOLDER / "collection.tsv", tmp_path)
    shutil.copy(sample.FOLDER / "queries.dev.tsv", tmp_path / "queries.tsv")
    page = (ROOT / "docs" / "your-engine.md").read_text(encoding="utf-8").split("## 5.")[1]
    program = AROUND.format(blocks="\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [programs / "python", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "runs.json").read_text())
    runs = {"rankwell": system.search(data.queries("dev"), 100)} | {
        name: Run.from_scores(rankings) for name, rankings in found.items()
    }
    figures = {name: evaluate(data.qrels("dev"), run, "RR@10").mean["RR@10"] for name, run in runs.items()}
    print(figures)
    own = figures.pop("rankwell")
    assert figures["Qdrant"] == pytest.approx(own, abs=0.001)
    assert figures["PostgreSQL"] == pytest.approx(own, abs=0.001)
    assert figures["LanceDB"] == pytest.approx(own, abs=0.02)  # by its own full-text search
