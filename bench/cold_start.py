"""A fresh installation: how much is installed, and how long its first commands and the first answer of a service take.

    python bench/cold_start.py                     # installs into a folder of its own; minutes
    python bench/cold_start.py --environment DIR   # one that is kept, and used again

The environment has rankwell and what serving an ONNX model needs: no torch, no transformers, no compiler of graphs. In
it `rankwell serve` starts with an index of the sample and the shipped model, exported here. A start is timed from the
process to the first answer of /ready, and to that of a search whose 20 candidates are re-ranked; the processor's time
until then does not depend on what else the machine does. The first start of all compiles the first stage's kernels;
later ones find them (medians). The scores must be those that torch gives here. For comparison the same
service starts in this environment, with torch.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from harness import ROOT, Table, make_parser, memory, write_json
from rankwell import sample
from rankwell.corpus.datasets import open_dataset
from rankwell.retrieve.index import Index
from serve import OURS, cpu_seconds, free_port

# Of the extra onnx only what scores; onnx makes graphs.
NEEDED = ("fastapi", "uvicorn", "prometheus-client", "onnxruntime", "tokenizers")
QUERY, DEPTH = "what kind of fish is bogue", 20
HEAVY = ("torch", "transformers", "onnx")


def make_environment(folder: Path, needed: tuple[str, ...] = NEEDED) -> Path:
    """A virtual environment with rankwell and ``needed``, what serving an exported model needs; its Python."""
    python = folder / "bin" / "python"
    fresh = not python.exists()
    if fresh:
        venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    more = ["-c", str(ROOT / "constraints.txt"), *needed] if fresh else ["--no-deps", "--force-reinstall"]
    subprocess.run([*pip, str(ROOT), *more], check=True)
    code = f"from importlib.util import find_spec; print([name for name in {HEAVY} if find_spec(name)])"
    found = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    if found != "[]":
        raise SystemExit(f"{folder} has {found}, which serving should not need")
    return python


def size_of(folder: Path) -> dict[str, float]:
    """Megabytes on disk: all, and the largest packages."""
    packages = next((folder / "lib").glob("python*/site-packages"))
    sizes = {path.name: _bytes(path) / 1e6 for path in packages.iterdir() if path.is_dir()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:6]
    return {"all": round(_bytes(folder) / 1e6, 1), **{name: round(sizes[name], 1) for name in largest}}


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def ask(port: int, method: str, path: str, body: Any = None) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        found = json.loads(answer.read())
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status}: {found}")
        return found
    finally:
        connection.close()


def start(python: str | Path, options: list[str], cache: Path) -> dict[str, Any]:
    """One start: seconds to /ready and to the first search, the answer, memory."""
    port = free_port()
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    command = [str(python), "-c", OURS, *options, "--port", str(port)]
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        while True:
            try:
                ask(port, "GET", "/ready")
                break
            except OSError:
                if process.poll() is not None:
                    said = process.stderr.read().decode() if process.stderr else ""
                    raise SystemExit(f"did not start: {said[-500:]}") from None
                time.sleep(0.005)
        ready = time.perf_counter() - begin
        found = ask(port, "POST", "/search", {"query": QUERY, "depth": DEPTH, "k": DEPTH})
        answered = time.perf_counter() - begin
        used = {"cpu_seconds": cpu_seconds(process.pid), "resident_mib": memory("VmRSS", process.pid)}
        return {"ready": ready, "answered": answered, **used, "found": found["results"]}
    finally:
        process.terminate()
        process.communicate(timeout=60)


def check(found: list[dict[str, Any]], expected: dict[str, float]) -> None:
    """The answer is torch's, to rounding."""
    worst = max(abs(row["score"] - expected[row["id"]]) for row in found)
    if len(found) != len(expected) or worst > 1e-4:
        raise SystemExit(f"other scores than torch's: {len(found)} of {len(expected)} documents, {worst} apart")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--environment", type=Path, help="where it is made, or was before")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        environment = chosen.environment or scratch / "environment"
        began = time.perf_counter()
        python = make_environment(environment)
        installed = time.perf_counter() - began
        from rankwell.models.checkpoints.export import export_model
        from rankwell.models.checkpoints.names import find_model
        from rankwell.rank.ranker import Ranker

        model = find_model()
        export_model(model, scratch / "exported")
        index = Index.build(open_dataset(sample.FOLDER).documents(), scratch / "index")
        docids = index.rank(QUERY, k=DEPTH).docids
        scores = Ranker.from_pretrained(model).predict([(QUERY, text) for text in index.texts(docids)])
        expected = dict(zip(docids, scores.tolist(), strict=True))
        systems = {
            "onnx, without torch": (python, ["--model", str(scratch / "exported"), "--backend", "onnx"]),
            "torch": (Path(sys.executable), ["--model", str(model), "--precision", "fp32"]),
        }
        sizes = size_of(environment)
        print(f"installed in {installed:.0f} s: {sizes}\n")
        table = Table("system", "start", "ready", "answered", "processor", "resident", labels=2)
        records: dict[str, Any] = {"installed_mb": sizes, "systems": {}}
        for number, (system, (own, options)) in enumerate(systems.items()):
            cache = scratch / f"kernels-{number}"
            starts = [start(own, [*options, str(index.folder)], cache) for _ in range(1 + chosen.starts)]
            for one in starts:
                check(one.pop("found"), expected)
            for title, some in (("first", starts[:1]), ("later", starts[1:])):
                if not some:
                    continue
                shown = {part: statistics.median(one[part] for one in some) for part in some[0]}
                seconds = [f"{shown[part]:.2f} s" for part in ("ready", "answered", "cpu_seconds")]
                table.row(system, title, *seconds, f"{shown['resident_mib']:.0f} MiB")
            records["systems"][system] = starts
    write_json(chosen.out, records)


if __name__ == "__main__":
    main()
