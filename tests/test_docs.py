"""The examples of the documentation are true."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from rankwell.evaluation.notation import MEASURES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8")]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [page for page in PAGES if ">>>" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.name)
def test_the_examples_print_what_the_page_says(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    examples = tmp_path / page.name
    # A closing fence right under an expected output would be taken for a part of it.
    examples.write_text(re.sub(r"^```.*$", "", text, flags=re.MULTILINE), encoding="utf-8")
    # In a process of its own, because a page may register a measure.
    done = subprocess.run([sys.executable, "-m", "doctest", str(examples)], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.returncode == 0


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_examples_of_the_code_print_what_it_says(path: Path) -> None:
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    assert doctest.testmod(import_module(name)).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_to_parts_of_pages_lead_there(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    assert [(file, part) for file, part in links if part not in anchors(page.parent / file if file else page)] == []


QUESTIONS = {
    "How do I filter?": '--filter "',
    "Which model runs on a CPU?": "`rankwell-mini`",
    "How many judgments do I need?": "50 judged queries show large differences",
    "How do I use my engine's results?": "A run has a line for each result",
    "How do I use clicks?": "clicks.train.csv",
    "How do I delete a document?": "rankwell delete my-index",
    "Which language?": "--language de",
    "On a GPU?": "--device cuda",
    "How do I serve it?": "rankwell serve my-system",
    "What after the launch?": "--log searches --out my-system",
    "With Docker?": "docker run",
    "What does a score mean?": "within one query",
    "How do I know that it is better?": "rankwell evaluate qrels.txt",
    "What does it cost in memory?": "316 MiB",
}
"""What people ask, and what stands in the answer."""


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_first_page_links_to_the_answer(question: str) -> None:
    """In one click, with the answer among the first lines below the heading that is linked."""
    start = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"\[{re.escape(question)}\]\(([\w-]+\.md)(?:#([\w-]+))?\)", start)
    assert found is not None
    lines = (ROOT / "docs" / found[1]).read_text(encoding="utf-8").splitlines()
    headings = [re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in lines]
    begin = headings.index(found[2]) if found[2] else 0
    assert any(QUESTIONS[question] in line for line in lines[begin + 1 : begin + 15])


FOR_FEW = {
    "rankwell.corpus.languages import SEGMENTERS",
    "rankwell.evaluation.notation import DEPTH",
    "rankwell.training.loop.losses import TWO_LABELS",
}
"""What only parts of one's own need: a segmenter, a measure, a loss. Adapters have a module each."""


def test_pages_name_a_module_only_for_what_few_need() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    imports = re.findall(r"from (rankwell(?:\.\w+)+ import [\w, ]*\w)", text)
    assert {line for line in imports if not line.startswith("rankwell.adapters.")} == FOR_FEW


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_imports_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"^(?:>>> )?(from rankwell(?!\.adapters)[\w.]* import .+)$", text, re.MULTILINE):
        place: dict[str, object] = {}
        exec(line, place)
        assert None not in [value for name, value in place.items() if not name.startswith("__")], line


def test_the_cells_of_the_notebook_run(tmp_path: Path) -> None:
    notebook = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    # In a process of its own: the notebook's index is temporary, and removed when its process ends.
    script = tmp_path / "notebook.py"
    script.write_text("\n".join(cells), encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "re-ranked" in done.stdout
    links = re.findall(r"\]\(([\w.-]+)\)", json.dumps(notebook))
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


def test_every_measure_is_on_its_page() -> None:
    text = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    assert [name for name in MEASURES if f"`{name}`" not in text] == []


def test_what_programs_read_is_shipped_and_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """``make docs`` writes llms.txt from the lists of README; SKILL.md is short, and what it names is there."""
    import typer

    from rankwell.cli.main import app

    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    assert import_module("conf").llms_text() == (SOURCE / "rankwell" / "llms.txt").read_text(encoding="utf-8")
    skill = (SOURCE / "rankwell" / "SKILL.md").read_text(encoding="utf-8")
    assert len(skill.splitlines()) <= 80
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    named = re.findall(r"`(?:rankwell )?([a-z]+) ([^`]*)`", skill)
    known = [(verb, line) for verb, line in named if verb in commands]
    assert len(known) > 6
    for verb, line in known:
        options = {name for parameter in commands[verb].params for name in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", line)) <= options, line
