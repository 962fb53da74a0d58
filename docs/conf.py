"""Builds the web site (``make docs``): these pages, and references generated from the commands and the public API.

The sections and pages of the site's menu are the headings and links of ``README.md``.
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib.metadata import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import typer

sys.path.insert(0, str(Path(__file__).parent))

from option_tables import option_tables

import rankwell
from rankwell.cli.main import app as command_line

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
REFERENCE = DOCS / "reference"
LLMS = DOCS.parent / "src" / "rankwell" / "llms.txt"

project = "rankwell"
copyright = "the rankwell authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
exclude_patterns = ["results", "figures"]
html_theme = "furo"
html_title = "rankwell"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_extra_path = ["results/fit/report", "../src/rankwell/llms.txt", "../src/rankwell/SKILL.md"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
smartquotes = False  # would turn the dashes of options into one
# Links to files of the repository, headings that skip a level, examples of formats that Pygments does not know.
suppress_warnings = ["myst.xref_missing", "myst.header", "misc.highlighting_failure"]


def commands_page() -> str:
    """The help of every verb as one page."""
    root = typer.main.get_command(command_line)
    context = root.make_context("rankwell", [], resilient_parsing=True)
    parts = ["# Commands\n"]
    for name in root.list_commands(context):  # type: ignore[attr-defined]
        verb = root.get_command(context, name)  # type: ignore[attr-defined]
        parts.append(f"## rankwell {name}\n\n{inspect.cleandoc(verb.help or '')}\n")
        parts.append("| option | default | |\n|---|---|---|")
        for parameter in verb.params:
            names = ", ".join(f"`{text}`" for text in parameter.opts + parameter.secondary_opts)
            label = f"`{parameter.name.upper()}`" if parameter.param_type_name == "argument" else names
            default = parameter.default
            shown = f"`{default}`" if isinstance(default, str | int | float) and default not in ("", False) else ""
            text = str(getattr(parameter, "help", None) or "").replace("|", "\\|")
            if label != "`--help`":
                parts.append(f"| {label} | {shown} | {text} |")
        parts.append("")
    return "\n".join(parts)


def python_page() -> str:
    """The public names of the package, documented from their docstrings."""
    lines = ["# Python API\n", "Everything here is imported from `rankwell`.\n"]
    for name in sorted(rankwell.__all__, key=str.lower):
        thing = getattr(rankwell, name)
        kind = "autoclass" if isinstance(thing, type) else "autofunction" if callable(thing) else "autodata"
        options = "\n   :members:\n   :exclude-members: model_config" if kind == "autoclass" else ""
        lines.append(f"## {name}\n\n```{{eval-rst}}\n.. {kind}:: rankwell.{name}{options}\n```\n")
    return "\n".join(lines)


def llms_text() -> str:
    """``llms.txt``: the pages of README.md with what they are about, for readers that are programs."""
    lines = ["# rankwell", f"> {metadata('rankwell')['Summary']}"]
    lines.append("How to use it well is in SKILL.md beside this file. Every command takes --help, and --json.")
    for section in (DOCS / "README.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        pages = re.findall(r"^- (\[[^\]]+\]\([a-z0-9-]+\.md\))(.*)", body, re.MULTILINE)
        if title != "Questions" and pages:
            lines += [f"## {title}", "\n".join(f"- {link}{about.partition('; [')[0]}" for link, about in pages)]
    return "\n\n".join(lines) + "\n"


def write_references(app: Sphinx) -> None:
    """Write the generated pages before Sphinx looks for sources."""
    LLMS.write_text(llms_text(), encoding="utf-8")
    REFERENCE.mkdir(exist_ok=True)
    options = f"# Options of recipes and suites\n\n{option_tables()}\n"
    for name, text in {"commands": commands_page(), "python": python_page(), "options": options}.items():
        (REFERENCE / f"{name}.md").write_text(text, encoding="utf-8")


def prepare(app: Sphinx, docname: str, source: list[str]) -> None:
    """Open the kept report rather than download it, and add a hidden table of contents for each section of README."""
    source[0] = re.sub(r"\[([^\]]+)\]\(results/fit/report/([\w.]+)\)", r'<a href="\2">\1</a>', source[0])
    if docname != root_doc:
        return
    for section in source[0].split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        if title == "Questions":  # its pages are in the other sections
            continue
        pages = re.findall(r"\]\(([a-z0-9-]+)\.md\)", body)
        pages += ["reference/commands", "reference/options", "reference/python"] if title == "Reference" else []
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(pages) + "\n```\n"


def setup(app: Sphinx) -> None:
    """Connect the two steps above."""
    app.connect("builder-inited", write_references)
    app.connect("source-read", prepare)
