"""The package as users get it: a wheel in an empty environment, away from the checkout, and what README types.

Needs to install packages, so it runs where ``RANKWELL_ENVIRONMENTS`` names a folder (``make test-package``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACE = os.environ.get("RANKWELL_ENVIRONMENTS")
installs = pytest.mark.skipif(not PLACE, reason="RANKWELL_ENVIRONMENTS names no folder to install into")
COPIED = re.compile(r"^COPY (?!--from)(.+) \S+$", re.MULTILINE)


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
    return done.stdout


def copy_in(name: str, target: Path) -> None:
    """Copy a file or folder as the Dockerfile does, if .dockerignore lets it."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert name in allowed, f"{name} is copied by the Dockerfile and left out by .dockerignore"
    if (ROOT / name).is_dir():
        shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy(ROOT / name, target)


def test_the_image_has_what_the_wheel_is_built_from() -> None:
    names = [name for line in COPIED.findall((ROOT / "Dockerfile").read_text()) for name in line.split()]
    text = (ROOT / "pyproject.toml").read_text()
    needed = {
        "pyproject.toml",
        *re.findall(r'(?:path = |license-files = \[|force-include = \{ )"([^"]+)"', text),
        "src",
    }
    assert needed <= set(names)
    assert 'ENTRYPOINT ["rankwell"]' in (ROOT / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def wheel() -> Path:
    """A wheel built from the source archive, as package indexes have both."""
    dist = Path(PLACE or "").parent / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    text = (ROOT / "pyproject.toml").read_text()
    programs = installed("build", *tomllib.loads(text)["build-system"]["requires"])
    run(programs / "python", "-m", "hatchling", "build", "--target", "sdist", "--directory", dist, cwd=ROOT)
    (archive,) = dist.glob("rankwell-*.tar.gz")
    run(programs / "python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", dist, archive, cwd=dist)
    (built,) = dist.glob("rankwell-*.whl")
    return built


def installed(name: str, *requirements: str) -> Path:
    """The programs of a new environment with these packages."""
    folder = Path(PLACE or "") / name
    venv.create(folder, with_pip=True, clear=True)
    if requirements:
        run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements, cwd=folder)
    return folder / "bin"


@installs
def test_the_wheel_holds_the_package_and_its_recipes(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "__init__.pyi",
        "py.typed",
        "SKILL.md",
        "llms.txt",
        "sample/collection.tsv",
        "recipes/fit.yaml",
        "serve/page/index.html",
    ):
        assert f"rankwell/{name}" in names
    assert any(name.startswith("rankwell/shipped/rankwell-mini/") and name.endswith(".safetensors") for name in names)
    assert not [name for name in names if name.startswith(("tests", "bench", "docs"))]
    (metadata,) = (name for name in names if name.endswith("METADATA"))
    page = zipfile.ZipFile(wheel).read(metadata).decode()
    assert "A search ranker fitted to your documents" in page
    assert re.findall(r"\]\((?!https?:)", page) == []


@installs
def test_an_index_would_take_the_archives(wheel: Path) -> None:
    programs = installed("twine", "twine>=6.1")
    shown = run(programs / "python", "-m", "twine", "check", "--strict", *wheel.parent.iterdir(), cwd=wheel.parent)
    assert shown.count("PASSED") == 2


def use_the_core(programs: Path, folder: Path) -> None:
    """What README types without judgments and without torch."""
    rankwell = programs / "rankwell"
    write_files(folder)
    assert run(rankwell, "--version", cwd=folder).startswith("rankwell ")
    run(rankwell, "index", "collection.csv", "--out", "my-index", cwd=folder)
    run(rankwell, "index", "notes", "--out", "my-notes", cwd=folder)
    assert "Bees" in run(rankwell, "search", "my-index", "how do bees keep warm", cwd=folder)
    assert "Tea" in run(rankwell, "search", "my-index", "warm tea", "--filter", "year > 2020", cwd=folder)
    run(rankwell, "delete", "my-index", "2", cwd=folder)
    lines = "import rankwell; print(len(rankwell.Index.open('my-index')), rankwell.__version__)"
    assert run(programs / "python", "-c", lines, cwd=folder).startswith("1 0.")
    missing = subprocess.run([rankwell, "search", "my-index", "tea", "--hybrid"], cwd=folder, capture_output=True)
    assert missing.returncode == 2
    assert b"pip install 'rankwell[models]'" in missing.stderr


def write_files(folder: Path) -> None:
    (folder / "collection.csv").write_text(
        "id,title,text,year\n1,Bees,Bees keep warm in a cluster.,2019\n2,Tea,Tea is hot.,2021\n", encoding="utf-8"
    )
    (folder / "notes").mkdir()
    (folder / "notes" / "one.md").write_text("# Bees\n\nThe cluster shivers.\n", encoding="utf-8")


@installs
def test_the_core_alone_with_the_oldest_packages(wheel: Path, tmp_path: Path) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    (core,) = re.findall(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    pins = [line.strip(' ",\n').replace(">=", "==") for line in core.splitlines() if ">=" in line]
    use_the_core(installed("lowest", *pins, str(wheel)), tmp_path)


@installs
def test_the_steps_of_the_image_with_the_newest_packages(tmp_path: Path) -> None:
    """The stages of the image without torch, each COPY and RUN in its order, with an environment for /opt/rankwell."""
    programs, build = installed("image"), tmp_path / "build"
    build.mkdir()
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM|\Z)", text, re.MULTILINE | re.DOTALL))
    variables = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "EXTRAS": "serve", "PACKAGES": ""}
    variables.pop("PYTHONPATH", None)
    steps = re.findall(
        r"^(COPY|RUN) (?!--from|python -m venv)(.+)$", stages["base"] + stages["build-cpu"], re.MULTILINE
    )
    assert len(steps) >= 6
    for kind, line in steps:
        if kind == "COPY":
            *names, target = line.split()
            for name in names:
                copy_in(name, build / target / (name if target == "./" else ""))
            continue
        done = subprocess.run(["sh", "-c", line], cwd=build, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    (warm_up,) = re.findall(r"^RUN (\[.+\])$", stages["cpu"], re.MULTILINE)
    subprocess.run(json.loads(warm_up), env=variables, cwd=tmp_path, check=True)
    assert json.loads(re.findall(r"^ENTRYPOINT (.+)$", text, re.MULTILINE)[0]) == ["rankwell"]
    (tmp_path / "data").mkdir()
    use_the_core(programs, tmp_path / "data")


THAI = """
import pyarrow, pyarrow.parquet
rows = {"id": ["1", "2"], "text": ["ผึ้งทำน้ำผึ้ง", "ชาร้อน"]}
pyarrow.parquet.write_table(pyarrow.table(rows), "thai.parquet")
import datasets, ir_datasets, onnxruntime, textblob
"""


def use_the_extras(programs: Path, folder: Path) -> None:
    """A use, or at least the import, of what each extra brings; fitting and serving use the others."""
    rankwell = programs / "rankwell"
    run(programs / "python", "-c", THAI, cwd=folder)
    run(rankwell, "index", "thai.parquet", "--out", "thai", "--language", "th", cwd=folder)
    assert "ผึ้ง" in run(rankwell, "search", "thai", "น้ำผึ้ง", cwd=folder)
    (folder / "qrels.txt").write_text("1 0 a 1\n")
    for name, best in (("a", "b"), ("b", "a")):
        (folder / f"{name}.run").write_text(f"1 Q0 {best} 1 2 {name}\n1 Q0 c 2 1 {name}\n")
    run(rankwell, "analyse", "qrels.txt", "a.run", "b.run", "--out", "analysis", cwd=folder)
    assert list((folder / "analysis").glob("*.png"))
    run(rankwell, "export", "rankwell-mini", "--to", "onnx", "--out", "exported", cwd=folder)
    onnx = ("--model", "exported", "--backend", "onnx")
    assert "Bees" in run(
        rankwell, "rerank", "how do bees keep warm", "--collection", "collection.csv", *onnx, cwd=folder
    )


@installs
def test_what_the_readme_types(wheel: Path, tmp_path: Path) -> None:
    programs = installed("all", "-c", str(ROOT / "constraints.txt"), f"{wheel}[all]")
    rankwell = programs / "rankwell"
    write_files(tmp_path)
    use_the_extras(programs, tmp_path)
    run(rankwell, "index", "collection.csv", "--out", "my-index", cwd=tmp_path)
    assert "Bees" in run(rankwell, "search", "my-index", "how do bees keep warm", "--hybrid", "0.7", cwd=tmp_path)
    sample = run(programs / "python", "-c", "from rankwell import sample; print(sample.FOLDER)", cwd=tmp_path).strip()
    assert "site-packages" in sample
    run(rankwell, "fit", sample, "--out", "my-system", "--minutes", "1", "--device", "cpu", cwd=tmp_path)
    assert run(rankwell, "search", "my-system", "how do bees keep warm", cwd=tmp_path)
    traced = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    command = [rankwell, "serve", "my-system", "--port", "0"]
    serve = subprocess.Popen(command, cwd=tmp_path, env=traced, stderr=-1, text=True)
    assert serve.stderr is not None
    assert any("serving at" in line for line in iter(serve.stderr.readline, ""))
    serve.terminate()
    assert serve.wait(60) == 0
    (python,) = re.findall(r"## From Python\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = "\n".join(line[4:] for line in python.splitlines() if line.startswith((">>> ", "... ")))
    run(programs / "python", "-c", lines, cwd=tmp_path)
