"""Fit a whole search system to a collection and its judged queries, in a given time."""

from __future__ import annotations

import os
import random
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import remove_leftovers
from rankwell.core.locks import lock
from rankwell.core.manifest import digest, read_object, write_json
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.records import Qrels
from rankwell.evaluation.notation import parse_measure
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import find_model
from rankwell.models.devices import chosen_device
from rankwell.rank.calibration import LEAST, Trial, calibrate, judged_lists
from rankwell.rank.first_stage import Scope
from rankwell.rank.relevance import Calibration
from rankwell.rank.system import System, refuse_taken
from rankwell.rank.texts import is_system
from rankwell.retrieve.index import Index
from rankwell.training.fit.climb import SAVING, Climb, Clock, climb
from rankwell.training.fit.headings import Kind, write_headed
from rankwell.training.fit.judge import figure_of, mean_of
from rankwell.training.fit.refit import (
    LAST_WEEK,
    TRAIN,
    LoggedDataset,
    NotBetterError,
    check_exchange,
    compare_systems,
    put_in_place,
)
from rankwell.training.fit.report import card_text, figures_of, query_table, report_page
from rankwell.training.fit.results import Result
from rankwell.training.fit.split import SET_ASIDE, Part, Parts, check_judged
from rankwell.training.fit.task import FitTask

NO_QUERIES = (
    "Without judged queries nothing can be measured or tuned. What would help most: 50 to 100 real queries with a "
    "relevant document each. `--queries-from titles` (or headings) takes those of the documents as queries, and "
    "`rankwell expand --queries` writes queries for documents to train with."
)

CALIBRATING, MOST_CALIBRATED = 0.05, 2000
"""The part of the time in which queries are searched to calibrate relevance, and how many at most."""
LISTED = 30
"""The documents of each query that are looked at for that."""


def fit(
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    columns: Columns | None = None,
    minutes: float = 20.0,
    device: str | None = None,
    seed: int = 1,
    measure: str = "RR@10",
    train: str | None = None,
    report: str | None = None,
    tries: Sequence[str] = (),
    previous: str | os.PathLike[str] | None = None,
    queries_from: Kind | None = None,
    runs: Sequence[str] = (),
    log: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> System:
    """Fit a system to the documents and judged queries of a data set, as ``rankwell fit`` does.

    ``columns`` names fields of the collection, ``train`` and ``report`` splits.
    ``tries`` are models to try beside rankwell-mini: bi-encoders, cross-encoders
    and language models. Training starts from the best bi-encoder that fits into the time. On a GPU, one larger than
    rankwell-mini then teaches it, and the small one is saved as ``OUT-small``. The models of a ``previous`` system are
    tried, too, so that training continues from them if they are better. ``runs`` names what an engine of yours
    returned, as ``SPLIT=FILE``, which is then what has to be beaten. For data without judged queries,
    ``queries_from`` takes the documents' ``titles`` or ``headings`` as queries. If interrupted, call it again to
    resume.

    With the ``log`` of a service, its clicks are fitted to as well, and ``out``, which may be the place of the
    ``previous`` system, gets one that is better on the last week. Otherwise, it raises :class:`NotBetterError`, and
    nothing has changed.

    >>> system = fit("my-data", "my-system", minutes=10)                           # doctest: +SKIP
    >>> system.search("how do bees keep warm")                                     # doctest: +SKIP
    """
    measure = str(parse_measure(measure))
    if previous is not None:
        system = System.open(Path(previous))
        tries = [*tries, *(str(model) for model in (system.first_stage.encoder, system.ranker) if model is not None)]
    task = FitTask(
        os.fspath(data),
        Path(out),
        minutes,
        device,
        seed,
        measure,
        train,
        report,
        queries_from,
        tuple(runs),
        columns if columns and columns.named else None,
        tuple(dict.fromkeys(tries)),
        None if previous is None or log is None else Path(previous),
        None if log is None else Path(log),
    )
    if not minutes > 0:
        raise RankwellError(f"--minutes {minutes:g}: expected more than 0")
    if not task.out.absolute().name:
        raise RankwellError(f"--out {out}: expected the name of a new folder")
    chosen_device(device)
    for name in task.tries:
        describe(find_model(name))  # raises if it is missing, before the first steps take their time
    if task.log is not None:
        return _refit(task, task.log, say)
    system, lines = _fit_judged(task, task, say) if queries_from is None else _fit_headed(task, queries_from, say)
    for line in lines:
        say(line)
    return system


Fitted = tuple[System, list[str]]
"""A system and the lines that tell what it is; none if it was made before."""


def _fit_judged(task: FitTask, asked: FitTask, say: Callable[[str], None]) -> Fitted:
    """Fit to judged queries. Report and summary name the data, folder and command of ``asked``, what a user wants."""
    work, minutes = task.work, task.minutes
    clock = Clock(60 * minutes * (1 - SAVING))
    _refuse_taken(task)
    parts = task.parts
    with lock(work, wait=False):
        remove_leftovers(work)
        remove_leftovers(task.out.absolute().parent, of=task.out.name)
        _claim(task)
        if is_system(task.out):  # finished, but killed before its work folder was removed
            shutil.rmtree(work, ignore_errors=True)
            return System.open(task.out, device=task.device), []
        say(f"{len(task.index):,} documents; {parts.describe()}")
        for line in filter(None, [task.dataset.clicks, check_judged(task.index, parts), *advice(parts)]):
            say(line)
        measured = f", measured by {task.measure}" if len(parts.judged) else ""
        say(f"up to {minutes:g} minute{'s' * (minutes != 1)}{measured}:")
        climbed = climb(task, clock, say)
        rated = calibrated(climbed, climbed.saved)
        system = _save(asked, climbed, rated)
        shutil.rmtree(work, ignore_errors=True)
    return system, ["", *summary(asked.out, climbed, rated)]


def _fit_headed(task: FitTask, kind: Kind, say: Callable[[str], None]) -> Fitted:
    """Fit to titles or headings as queries, then save what was fitted with the documents as they are."""
    work = task.work
    _refuse_taken(task)
    if len(task.parts.judged):
        raise RankwellError(f"--queries-from {kind}: {task.data} has judged queries; leave the option out")
    with lock(work, wait=False):
        if is_system(task.out):
            shutil.rmtree(work, ignore_errors=True)
            return System.open(task.out, device=task.device), []
        write_headed(task.dataset, kind, work / kind, task.seed)
        say(f"The {kind} of the documents are the queries. Figures tell how well they find their documents, not how")
        say("well people's questions would.")
        inner = work / "fitted"
        if is_system(inner):
            fitted, lines = System.open(inner, device=task.device), list[str]()
        else:
            own = replace(task, data=str(work / kind), out=inner, columns=None)
            fitted, lines = _fit_judged(own, task, say)
        place = work / "documents"
        if not (place / "index.json").is_file():
            Index.build(task.dataset.documents(), place, columns=task.columns, analyzer=fitted.index.analyzer)
        index = Index.open(place)
        if is_system(small := _small(inner)) and not is_system(_small(task.out)):
            taught = System.open(small, device=task.device)
            taught.with_index(index).save(_small(task.out), card={**taught.card, "queries": kind})
        saved = fitted.with_index(index).save(task.out, card={**fitted.card, "queries": kind})
        shutil.rmtree(work, ignore_errors=True)
    return saved, lines


def _refit(task: FitTask, log: Path, say: Callable[[str], None]) -> System:
    """Fit to a log as well, in ``OUT.refit``, and put the system in its place if it is better on the last week."""
    if task.previous is None:
        raise RankwellError("a log needs the system that made it (--from)")
    old, out = System.open(task.previous, device=task.device), task.out.resolve()  # a symbolic link stays
    if replaces := out.exists() and out.samefile(task.previous):
        check_exchange(out)
    else:
        refuse_taken(out)
    place = out.with_name(f"{out.name}.refit")
    with lock(place, wait=False):
        task.dataset = dataset = LoggedDataset(task.dataset, log, old, task.train_split)
        key = dataset.key
        for other in place.iterdir():  # of another log, or a system that was replaced
            if other.is_dir() and other.name != key:
                shutil.rmtree(other)
        inner = replace(task, out=place / key / out.name, train_split=TRAIN, report_split=LAST_WEEK)
        inner.dataset = dataset
        inner.out.parent.mkdir(exist_ok=True)
        if is_system(inner.out) and not inner.work.exists():  # killed before, or right after, it was put in its place
            new = System.open(inner.out, device=task.device)
        else:
            new, _ = _fit_judged(inner, task, say)
        ids = old.index.docids(old.index.documents.live_numbers())
        if gone := int((new.index.documents.find(ids) < 0).sum()):
            say(f"{gone:,} of the {len(ids):,} documents of {task.previous} are not in {task.data}")
        line, better = compare_systems(inner, old, new)
        if better:
            put_in_place(inner.out, out, replaces=replaces)
        shutil.rmtree(place)
    if not better:
        raise NotBetterError(f"{task.previous} stays: {line}")
    say(f"{task.out}: {line}")
    return System.open(task.out, device=task.device)


def _small(out: Path) -> Path:
    """Where the system with a small bi-encoder is saved that a larger one taught."""
    return out.with_name(f"{out.name}-small")


def _refuse_taken(task: FitTask) -> None:
    """Raise if there is something where the systems go, unless an interrupted fit left it."""
    for place in (task.out, _small(task.out)) if task.tries else (task.out,):
        if not task.work.exists():
            refuse_taken(place)


def advice(parts: Parts) -> list[str]:
    """What can be trusted with so few queries, and what would help."""
    if not len(parts.judged):
        return [NO_QUERIES]
    if not len(parts.fit):
        return [f"With {len(parts.choose)} queries, only large differences can be told from chance: see the intervals."]
    return []


Rated = tuple[Calibration, Trial]


def calibrated(climbed: Climb, result: Result) -> Rated | None:
    """What makes a probability of a system's scores, fitted to judged queries that none of its models were trained on.

    Titles and headings say nothing about people's questions.
    """
    task, parts = climbed.task, climbed.task.parts
    # What trained on folds was trained once more on all of them; settings alone hardly know a query.
    own = parts.judged if not result.stages else parts.choose if parts.turns == (1,) else Part((), Qrels({}))
    unseen = {(query.qid, query.text): (query, part) for part in (own, parts.report) for query in part.queries}
    seconds = CALIBRATING * 60 * task.minutes
    most = max(LEAST, min(MOST_CALIBRATED, int(1000 * seconds / max(result.milliseconds, 1.0))))
    some = random.Random(task.seed).sample(list(unseen.values()), min(most, len(unseen)))
    if len(some) < LEAST or task.queries_from is not None:
        return None
    # Two splits may have the same ids.
    queries = [replace(query, qid=str(number)) for number, (query, _) in enumerate(some)]
    qrels = {str(number): part.qrels[query.qid] for number, (query, part) in enumerate(some)}
    names = result.system.signals
    found = result.system.find(queries, LISTED, Scope(signals=names), task.threads)
    return calibrate(names, judged_lists(found.signals, qrels), len(task.index))


def summary(out: Path, climbed: Climb, rated: Rated | None = None) -> list[str]:
    """What was made, what it measures, and what to do with it."""
    task, part, best, base = climbed.task, climbed.reported, climbed.bests.best, climbed.bests.base
    lines = [f"{out}: {climbed.saved.describe()}"]
    if best.report is not None and base.report is not None:
        figure, before = figure_of(part, best.report, task.measure), mean_of(part, base.report, task.measure)
        where = f"{len(part):,} queries"
        if (cross_validated := climbed.cross_validated) is not None:
            where += f" that its settings were chosen on ({cross_validated:.3f} cross-validated)"
        elif part is not task.parts.judged:
            where += " held out" if task.parts.source == SET_ASIDE else f" ({task.parts.source})"
        ours = "your engine: " if base.engine else ""
        compared = f"; {ours or 'not fitted: '}{before:.3f}" if best is not base else ""
        lines.append(f"{ours * (best is base)}{task.measure} {figure} on {where}{compared}")
        if best is base:
            others = "; try more --minutes" if any(skipped.late for skipped in climbed.skipped) else ""
            lines.append(f"Nothing was shown to be better than this on {base.count:,} queries{others}.")
    if rated is not None:
        lines.append(f"{rated[0]} (--min-relevance {rated[0].threshold:g}).")
    if (small := climbed.bests.small) is not None:
        lines.append(f"{_small(out)}: {small.describe()}, to serve without a GPU")
    if more := climbed.doubling:
        lines.append(more)
    failed = [skipped.step.title for skipped in climbed.skipped if skipped.outcome == "failed"]
    if failed:
        lines.append(f"Failed: {', '.join(failed)}. The report says why.")
    quoted = shlex.quote(str(out))
    if best.engine and best is not base:
        lines.append(f"re-rank: rankwell rerank RUN --queries QUERIES --model {quoted} --out better.run")
    return [
        *lines,
        f"report:  {out / 'report.html'}",
        f'search:  rankwell search {quoted} "a question"',
        f"serve:   rankwell serve {quoted}",
    ]


def _claim(task: FitTask) -> None:
    """Record what is fitted in the work folder. Raises if it holds the work of other options or data."""
    parts = task.parts
    queries = {
        name: [(query.qid, query.text, dict(part.qrels[query.qid])) for query in part.queries]
        for name, part in (("fit", parts.fit), ("judged", parts.judged), ("report", parts.report))
    }
    ours: dict[str, Any] = {
        "data": digest([task.dataset.digest(), queries, task.columns and asdict(task.columns)]),
        "seed": task.seed,
        "measure": task.measure,
        "models to try": list(task.tries),
    }
    if not is_system(task.out):  # a finished fit removes the folder, and with it the documents that a run is read with
        ours["run"] = digest(task.engine and {qid: list(ranking) for qid, ranking in task.engine.items()})
    path = task.work / "fit.json"
    if not path.exists():
        write_json(path, ours)
        return
    theirs = read_object(path)
    if other := next((name for name in ours if theirs.get(name) != ours[name]), None):
        problem = f"holds an unfinished fit with another {other}"
        raise InputError(task.work, None, f"{problem}; remove it, or repeat the command it was made with")


def _save(asked: FitTask, climbed: Climb, rated: Rated | None) -> System:
    """Write the system with its card and report."""
    out, figures, command = climbed.task.out, figures_of(asked.data, climbed), command_of(asked)
    files = {
        "README.md": card_text(figures, command),
        "report.html": report_page(figures, climbed, command, rated),
        "queries.tsv": query_table(climbed),
    }
    if (small := climbed.bests.small) is not None and not is_system(_small(out)):
        shown = (climbed.bests.base.step.name, small.step.name)
        results = [{**result, "kept": True} for result in figures["steps"] if result["step"] in shown]
        own = {**figures, "system": small.describe(), "steps": results}
        taught = replace(small.system, relevance=_calibration(calibrated(climbed, small)))
        taught.save(_small(out), card=own, files={"README.md": card_text(own, command)})
    return replace(climbed.saved.system, relevance=_calibration(rated)).save(out, card=figures, files=files)


def _calibration(rated: Rated | None) -> Calibration | None:
    return None if rated is None else rated[0]


def command_of(task: FitTask) -> str:
    """The command that repeats the fit, from any folder."""
    usual = FitTask(task.data, task.out)
    flags = {"queries_from": "queries-from", "previous": "from", "train_split": "train", "report_split": "report"}
    command = ["rankwell", "fit", _anywhere(task.data), "--out", str(task.out.absolute())]
    for field in fields(task):
        value = getattr(task, field.name)
        if field.name == "runs":
            command += [part for run in value for part in ("--run", run)]
        elif field.name == "columns" and value is not None:
            own = [("id", value.id), *(("text", name) for name in value.texts), ("title", value.title)]
            command += [part for flag, name in own if name is not None for part in (f"--{flag}", name)]
        elif field.name == "tries":
            command += [part for name in value for part in ("--try", _anywhere(name))]
        elif field.init and value != getattr(usual, field.name):
            value = _anywhere(str(value)) if isinstance(value, Path) else value
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            command += [f"--{flags.get(field.name, field.name)}", shown]
    return shlex.join(command)


def _anywhere(name: str) -> str:
    """A path that is there as an absolute one; the name of something else as it is."""
    return os.path.abspath(name) if os.path.exists(name) else name
