"""Fit a whole search system to a collection and its judged queries, in a given time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import remove_leftovers
from rankwell.core.locks import lock
from rankwell.core.manifest import digest, read_object, write_json
from rankwell.corpus.datasets import open_dataset
from rankwell.evaluation.notation import parse_measure
from rankwell.models.checkpoints.names import BACKBONE, DEFAULT, default_start, find_model
from rankwell.models.devices import chosen_device
from rankwell.rank.system import System, refuse_taken
from rankwell.rank.texts import is_system
from rankwell.retrieve.index import Index
from rankwell.training.data.prepare import open_collection
from rankwell.training.fit.ladder import Climb, Clock, climb, interval_of
from rankwell.training.fit.parts import SET_ASIDE, Kind, Parts, divide, write_headed, write_parts
from rankwell.training.fit.report import card_text, figures_of, query_table, report_page
from rankwell.training.fit.rungs import FitTask

SAVING = 0.03
"""The part of the time that is kept for writing the system and its report."""
NO_QUERIES = (
    "Without judged queries nothing can be measured or tuned. What would help most: 50 to 100 real queries with a "
    "relevant document each. `--queries-from titles` (or headings) takes those of the documents as queries, and "
    "`rankwell expand --queries` writes queries for documents to train with."
)


@dataclass(frozen=True)
class FitRequest:
    """What to fit, and how long it may take."""

    data: str
    out: Path
    minutes: float = 20.0
    device: str | None = None
    seed: int = 1
    measure: str = "RR@10"
    train: str | None = None
    report: str | None = None
    encoder: str = DEFAULT
    start: str = BACKBONE
    queries_from: Kind | None = None

    @property
    def work(self) -> Path:
        """``OUT.work``, the folder for unfinished work."""
        return self.out.absolute().with_name(f"{self.out.name}.work")

    def check(self) -> None:
        """Raise for options that cannot be right, before anything is read."""
        parse_measure(self.measure)
        if not self.minutes > 0:
            raise RankwellError(f"--minutes {self.minutes:g}: expected more than 0")
        if not self.out.absolute().name:
            raise RankwellError(f"--out {self.out}: expected the name of a new folder")
        chosen_device(self.device)


def fit(
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    minutes: float = 20.0,
    device: str | None = None,
    seed: int = 1,
    measure: str = "RR@10",
    train: str | None = None,
    report: str | None = None,
    encoder: str = DEFAULT,
    start: str | None = None,
    queries_from: Kind | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> System:
    """Fit a system to the documents and judged queries of a data set, as ``rankwell fit`` does.

    ``train`` and ``report`` name splits. ``encoder`` is the bi-encoder to begin with, ``start`` the checkpoint that
    bi-encoders and re-rankers are trained from: by default MiniLM or, if its package is not installed, rankwell-mini.
    For data without judged queries, ``queries_from`` takes the documents' ``titles`` or ``headings`` as queries. If
    interrupted, call it again to resume.

    >>> system = fit("my-data", "my-system", minutes=10)                           # doctest: +SKIP
    >>> system.search("how do bees keep warm")                                     # doctest: +SKIP
    """
    start = start or default_start()
    request = FitRequest(
        os.fspath(data), Path(out), minutes, device, seed, measure, train, report, encoder, start, queries_from
    )
    request.check()
    fitted = _fit_judged(request, say) if queries_from is None else _fit_headed(request, queries_from, say)
    for line in fitted.summary:
        say(line)
    return fitted.system


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A system and the lines that tell what it is; none if it was made before."""

    system: System
    summary: tuple[str, ...] = ()


def _fit_judged(request: FitRequest, say: Callable[[str], None], asked: FitRequest | None = None) -> _Fitted:
    """Fit to judged queries. Report and summary name the data, folder and command of ``asked``, what a user wants."""
    asked = asked or request
    work, minutes, measure = request.work, request.minutes, request.measure
    if not work.exists():
        refuse_taken(request.out)
    dataset = open_dataset(request.data)
    parts = divide(dataset, train=request.train, report=request.report, seed=request.seed)
    if len(parts.fit):
        find_model(request.start)  # raises if it is missing, before the first rungs take their time
    with lock(work, wait=False):
        remove_leftovers(work)
        remove_leftovers(request.out.absolute().parent, of=request.out.name)
        _claim(request, dataset.digest(), parts)
        if is_system(request.out):  # finished, but killed before its work folder was removed
            shutil.rmtree(work, ignore_errors=True)
            return _Fitted(System.open(request.out, device=request.device))
        write_parts(dataset, parts, work / "parts")
        collection = open_collection(str(work / "parts"), work)
        say(f"{len(collection.index):,} documents; {parts.describe()}")
        for line in advice(parts):
            say(line)
        measured = f", measured by {measure} on the queries to choose" if len(parts.choose) else ""
        say(f"up to {minutes:g} minute{'s' * (minutes != 1)}{measured}:")
        task = FitTask(
            work,
            work / "parts",
            collection.index,
            parts,
            request.encoder,
            request.start,
            str(parse_measure(measure)),
            request.seed,
            request.device,
        )
        climbed = climb(task, Clock(60 * minutes * (1 - SAVING)), say)
        system = _save(request.out, asked, task, climbed)
        shutil.rmtree(work, ignore_errors=True)
    return _Fitted(system, ("", *summary(asked.out, task, climbed)))


def _fit_headed(request: FitRequest, kind: Kind, say: Callable[[str], None]) -> _Fitted:
    """Fit to titles or headings as queries, then save what was fitted with the documents as they are."""
    work = request.work
    if not work.exists():
        refuse_taken(request.out)
    dataset = open_dataset(request.data)
    if len(divide(dataset, train=request.train, report=request.report, seed=request.seed).choose):
        raise RankwellError(f"--queries-from {kind}: {request.data} has judged queries; leave the option out")
    with lock(work, wait=False):
        if is_system(request.out):
            shutil.rmtree(work, ignore_errors=True)
            return _Fitted(System.open(request.out, device=request.device))
        write_headed(dataset, kind, work / kind, request.seed)
        say(f"The {kind} of the documents are the queries. Figures tell how well they find their documents, not how")
        say("well people's questions would.")
        inner = work / "fitted"
        if is_system(inner):
            done = _Fitted(System.open(inner, device=request.device))
        else:
            own = replace(request, data=str(work / kind), out=inner, queries_from=None)
            done = _fit_judged(own, say, request)
        fitted = done.system
        place = work / "documents"
        index = Index.open(place) if (place / "index.json").is_file() else Index.build(dataset.documents(), place)
        first = replace(fitted.first_stage, index=index)
        system = System(first, ranker=fitted.ranker, depth=fitted.depth, shares=fitted.shares)
        texts = {
            name: (inner / name).read_text(encoding="utf-8") for name in ("README.md", "report.html", "queries.tsv")
        }
        saved = system.save(request.out, card={**fitted.card, "queries": kind}, files=texts)
        shutil.rmtree(work, ignore_errors=True)
    return replace(done, system=saved)


def advice(parts: Parts) -> list[str]:
    """What can be trusted with so few queries, and what would help."""
    if not len(parts.choose):
        return [NO_QUERIES]
    if not len(parts.fit):
        return [f"With {len(parts.choose)} queries, only large differences can be told from chance: see the intervals."]
    return []


def summary(out: Path, task: FitTask, climbed: Climb) -> list[str]:
    """What was made, what it measures, and what to do with it."""
    best, base, part = climbed.best, climbed.rungs[0], task.parts.report
    lines = [f"{out}: {best.system.describe()}"]
    if best.report is not None and base.report is not None:
        mean, (low, high) = interval_of(part, best.report, task.measure)
        before, _ = interval_of(part, base.report, task.measure)
        where = f"{len(part):,} queries"
        if task.parts.cross_validated:
            where += " (cross-validated)"
        else:
            where += " set aside" if task.parts.source == SET_ASIDE else f" ({task.parts.source})"
        compared = f"; BM25: {before:.3f}" if best is not base else ""
        lines.append(f"{task.measure} {mean:.3f} [{low:.3f}, {high:.3f}] on {where}{compared}")
    if best is base and climbed.late:
        lines.append("No better system was made in this time; try more --minutes.")
    failed = [skipped.step.title for skipped in climbed.skipped if skipped.outcome == "failed"]
    if failed:
        lines.append(f"Failed: {', '.join(failed)}. The report says why.")
    return [
        *lines,
        f"report:  {out / 'report.html'}",
        f'search:  rankwell search {out} "a question"',
        f"serve:   rankwell serve {out}",
    ]


def _claim(request: FitRequest, documents: str, parts: Parts) -> None:
    """Record what is fitted in the work folder. Raises if it holds the work of other options or data."""
    queries = {
        name: [(query.qid, query.text, dict(part.qrels[query.qid])) for query in part.queries]
        for name, part in (("fit", parts.fit), ("choose", parts.choose), ("report", parts.report))
    }
    ours: dict[str, Any] = {
        "data": digest([documents, queries]),
        "seed": request.seed,
        "measure": request.measure,
        "encoder": request.encoder,
        "model": request.start,
    }
    path = request.work / "fit.json"
    if not path.exists():
        write_json(path, ours)
        return
    theirs = read_object(path)
    if other := next((name for name in ours if theirs.get(name) != ours[name]), None):
        problem = f"holds an unfinished fit with another {other}"
        raise InputError(request.work, None, f"{problem}; remove it, or repeat the command it was made with")


def _save(out: Path, asked: FitRequest, task: FitTask, climbed: Climb) -> System:
    """Write the system with its card and report."""
    figures = figures_of(asked.data, task, climbed)
    command = command_of(asked)
    files = {
        "README.md": card_text(figures, command),
        "report.html": report_page(figures, task, climbed, command),
        "queries.tsv": query_table(task, climbed),
    }
    return climbed.best.system.save(out, card=figures, files=files)


def command_of(request: FitRequest) -> str:
    """The command that repeats the fit."""
    usual = FitRequest(request.data, request.out)
    flags = {"start": "model", "queries_from": "queries-from"}
    chosen = {
        flags.get(field.name, field.name): value
        for field in fields(request)
        if (value := getattr(request, field.name)) != getattr(usual, field.name)
    }
    shown = {name: f"{value:g}" if isinstance(value, float) else value for name, value in chosen.items()}
    given = "".join(f" --{name} {value}" for name, value in shown.items())
    return f"rankwell fit {request.data} --out {request.out.name}{given}"
