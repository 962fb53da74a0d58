"""The package as users get it: a wheel in an empty environment, away from the checkout, and what README types.

Needs to install packages, so it runs where ``RANKWELL_ENVIRONMENTS`` names a folder (``make test-package``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
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


def image_sources(target: Path) -> list[str]:
    """Copy what the Dockerfile copies, as far as .dockerignore lets it."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    names = list(
        dict.fromkeys(name for line in COPIED.findall((ROOT / "Dockerfile").read_text()) for name in line.split())
    )
    for name in names:
        assert name in allowed, f"{name} is copied by the Dockerfile and left out by .dockerignore"
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)
    return names


def test_the_image_has_what_the_wheel_is_built_from(tmp_path: Path) -> None:
    names = image_sources(tmp_path)
    text = (ROOT / "pyproject.toml").read_text()
    needed = {
        "pyproject.toml",
        *re.findall(r'(?:readme = |license-files = \[|force-include = \{ )"([^"]+)"', text),
        "src",
    }
    assert needed <= set(names)
    assert 'ENTRYPOINT ["rankwell"]' in (ROOT / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from what the image copies, and a source archive from the checkout."""
    sources = tmp_path_factory.mktemp("sources")
    image_sources(sources)
    dist = Path(PLACE or "").parent / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", dist, sources, cwd=sources)
    (built,) = dist.glob("rankwell-*.whl")
    return built


def installed(name: str, *requirements: str) -> Path:
    """The programs of a new environment with these packages."""
    folder = Path(PLACE or "") / name
    venv.create(folder, with_pip=True, clear=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements, cwd=folder)
    return folder / "bin"


@installs
def test_the_wheel_holds_the_package_and_its_recipes(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("__init__.pyi", "py.typed", "sample/collection.tsv", "recipes/fit.yaml", "serve/page/index.html"):
        assert f"rankwell/{name}" in names
    assert any(name.startswith("rankwell/shipped/rankwell-mini/") and name.endswith(".safetensors") for name in names)
    assert not [name for name in names if name.startswith(("tests", "bench", "docs"))]


def write_files(folder: Path) -> None:
    (folder / "collection.csv").write_text(
        "id,title,text,year\n1,Bees,Bees keep warm in a cluster.,2019\n2,Tea,Tea is hot.,2021\n", encoding="utf-8"
    )
    (folder / "notes").mkdir()
    (folder / "notes" / "one.md").write_text("# Bees\n\nThe cluster shivers.\n", encoding="utf-8")


@installs
def test_the_core_alone(wheel: Path, tmp_path: Path) -> None:
    programs = installed("core", "-c", str(ROOT / "constraints.txt"), str(wheel))
    rankwell = programs / "rankwell"
    write_files(tmp_path)
    assert run(rankwell, "--version", cwd=tmp_path).startswith("rankwell ")
    run(rankwell, "index", "collection.csv", "--out", "my-index", cwd=tmp_path)
    run(rankwell, "index", "notes", "--out", "my-notes", cwd=tmp_path)
    assert "Bees" in run(rankwell, "search", "my-index", "how do bees keep warm", cwd=tmp_path)
    assert "Tea" in run(rankwell, "search", "my-index", "warm tea", "--filter", "year > 2020", cwd=tmp_path)
    run(rankwell, "delete", "my-index", "2", cwd=tmp_path)
    lines = "import rankwell; print(len(rankwell.Index.open('my-index')), rankwell.__version__)"
    assert run(programs / "python", "-c", lines, cwd=tmp_path).startswith("1 0.")
    missing = subprocess.run(
        [rankwell, "search", "my-index", "tea", "--hybrid", "0.7"], cwd=tmp_path, capture_output=True
    )
    assert missing.returncode == 2
    assert b"pip install 'rankwell[models]'" in missing.stderr


@installs
@pytest.mark.parametrize("versions", ["newest", "lowest"])
def test_the_core_with_the_oldest_and_the_newest_packages(wheel: Path, tmp_path: Path, versions: str) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    (core,) = re.findall(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    pins = [line.strip(' ",\n').replace(">=", "==") for line in core.splitlines() if ">=" in line]
    programs = installed(versions, *(pins if versions == "lowest" else []), str(wheel))
    write_files(tmp_path)
    run(programs / "rankwell", "index", "collection.csv", "--out", "my-index", cwd=tmp_path)
    assert "Bees" in run(programs / "rankwell", "search", "my-index", "how do bees keep warm", cwd=tmp_path)


@installs
def test_what_the_readme_types(wheel: Path, tmp_path: Path) -> None:
    programs = installed("all", "-c", str(ROOT / "constraints.txt"), f"{wheel}[train,serve]")
    rankwell = programs / "rankwell"
    write_files(tmp_path)
    run(rankwell, "index", "collection.csv", "--out", "my-index", cwd=tmp_path)
    assert "Bees" in run(rankwell, "search", "my-index", "how do bees keep warm", "--hybrid", "0.7", cwd=tmp_path)
    sample = run(programs / "python", "-c", "from rankwell import sample; print(sample.FOLDER)", cwd=tmp_path).strip()
    assert "site-packages" in sample
    run(rankwell, "fit", sample, "--out", "my-system", "--minutes", "1", "--device", "cpu", cwd=tmp_path)
    assert run(rankwell, "search", "my-system", "how do bees keep warm", cwd=tmp_path)
    (python,) = re.findall(r"## From Python\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = "\n".join(line[4:] for line in python.splitlines() if line.startswith((">>> ", "... ")))
    run(programs / "python", "-c", lines, cwd=tmp_path)
