"""The report of a fit: a page that can be opened anywhere, the card, and the same figures as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rankwell.core.manifest import machine
from rankwell.core.progress import duration
from rankwell.corpus.records import Query, Run
from rankwell.evaluation.compare import compare
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.significance import mean_interval
from rankwell.plots.fit_steps import Bar, draw_costs, draw_steps, draw_thresholds
from rankwell.plots.pictures import page, table
from rankwell.rank.calibration import LEAST, Trial
from rankwell.rank.relevance import Calibration
from rankwell.training.fit.climb import Climb
from rankwell.training.fit.judge import LEAST_FOR_INTERVAL, LEVEL, figure_of, interval_of, mean_of, p_value
from rankwell.training.fit.results import Result, Skipped
from rankwell.training.fit.split import Part
from rankwell.training.fit.task import FitTask

SHOWN = 10
EXCERPT = 280


def measures_of(measure: str) -> list[str]:
    """The measures that a report shows: the one to choose by, and two of the usual ones."""
    return list(dict.fromkeys([measure, "nDCG@10", "R@100"]))


def figures_of(data: str, climbed: Climb) -> dict[str, Any]:
    """Everything that was measured, for ``system.json``."""
    task, parts, reported = climbed.task, climbed.task.parts, climbed.reported
    return {
        "data": data,
        "documents": len(task.index),
        "queries": {
            "judged": len(parts.judged),
            "fit": len(parts.fit),
            "choose": len(parts.choose),
            "report": len(reported),
        },
        "reported on": "steps were chosen on them" if reported is parts.judged else parts.source,
        "clicks": task.dataset.clicks,
        "measure": task.measure,
        "seed": task.seed,
        "machine": machine(),
        "system": climbed.bests.best.describe(),
        "base": climbed.bests.base.step.title,
        "twice the queries": climbed.doubling,
        "steps": [_figures(tried, task, reported) for tried in climbed.tried],
    }


def _figures(tried: Result | Skipped, task: FitTask, reported: Part) -> dict[str, Any]:
    name = {"step": tried.step.name, "title": tried.step.title}
    if isinstance(tried, Skipped):
        return {**name, tried.outcome: tried.reason}
    record: dict[str, Any] = {**name, "kept": tried.kept, "system": tried.describe()}
    times = {name: round(getattr(tried, name), 1) for name in ("seconds", "estimated")}
    record |= {"milliseconds": round(tried.milliseconds, 2), **times, "queries": tried.count}
    for part_name, part, run in (
        ("judged", task.parts.judged.head(tried.count), tried.run),
        ("report", reported, tried.report),
    ):
        if run is not None and len(part):
            values = evaluate(part.qrels, run, measures_of(task.measure)).per_query
            record[part_name] = {
                measure: {
                    "mean": float(row.mean()),
                    "interval": list(mean_interval(row)) if len(row) >= LEAST_FOR_INTERVAL else None,
                }
                for measure, row in values.items()
            }
    if tried.contrast is not None:
        contrast = tried.contrast
        record["against the step below"] = {
            "difference": contrast.difference,
            "interval": list(contrast.interval),
            "p": contrast.p,
            "level": tried.level,
            "wins": contrast.wins,
            "losses": contrast.losses,
        }
    return record


def query_table(climbed: Climb) -> str:
    """The measure of every query to report under each step that was kept, as tab-separated lines."""
    results, part = [result for result in climbed.results if result.report is not None], climbed.reported
    names, measure = [result.step.name for result in results], climbed.task.measure
    again = [name if names.index(name) == place else f"{name} again" for place, name in enumerate(names)]
    rows = [["query", *again]]
    if results and len(part):
        evaluations = [evaluate(part.qrels, result.report or Run(), [measure]) for result in results]
        columns = [evaluation.per_query[measure].tolist() for evaluation in evaluations]
        rows += [
            [qid, *(f"{value:.6g}" for value in values)]
            for qid, *values in zip(evaluations[0].qids, *columns, strict=True)
        ]
    return "".join("\t".join(row) + "\n" for row in rows)


def card_text(figures: Mapping[str, Any], command: str) -> str:
    """The text of ``README.md``."""
    lines = [
        "# A fitted search system",
        "",
        f"{figures['system']}, over {figures['documents']:,} documents. Made with rankwell:",
        "",
        f"    {command}",
        "",
    ]
    reported = [
        step for step in figures["steps"] if "report" in step and (step["kept"] or step["title"] == figures["base"])
    ]
    if reported:
        names = list(reported[0]["report"])
        lines += [
            f"Measured on {figures['queries']['report']:,} queries ({figures['reported on']}):",
            "",
            f"| step | {' | '.join(names)} | ms a query |",
            f"|---|{'--:|' * (len(names) + 1)}",
        ]
        for result in reported:
            means = " | ".join(f"{result['report'][name]['mean']:.3f}" for name in names)
            lines.append(f"| {result['title']} | {means} | {result['milliseconds']:.0f} |")
    else:
        lines.append("Nothing was measured: there were no judged queries.")
    missing = [
        f"- {step['title']}: {outcome}, {step[outcome]}"
        for step in figures["steps"]
        for outcome in ("skipped", "failed")
        if outcome in step
    ]
    if missing:
        lines += ["", "Not measured:", "", *missing]
    lines += ["", 'Search it with `rankwell search FOLDER "a question"` or `System.open(FOLDER).search("a question")`.']
    return "\n".join(lines) + "\n"


def report_page(
    figures: Mapping[str, Any], climbed: Climb, command: str, rated: tuple[Calibration, Trial] | None = None
) -> str:
    """The text of ``report.html``."""
    body = [*_lead(climbed), *_steps(climbed), *_relevance(rated)]
    if climbed.bests.best.report is not None and climbed.bests.base.report is not None:
        body += _queries(climbed)
    body += _settings(figures, climbed, command)
    return page(f"Search fitted to {Path(figures['data']).name}", body)


def _lead(climbed: Climb) -> Iterator[str]:
    task, part, best, base = climbed.task, climbed.reported, climbed.bests.best, climbed.bests.base
    measure, cross_validated = task.measure, climbed.cross_validated
    trained = f"; trained: {', '.join(stages)}" if (stages := best.stages) else ""
    words = f"{escape(best.describe())}{trained}."
    if best.report is not None and base.report is not None:
        where = f"{len(part):,} queries that nothing was fitted to or chosen on ({escape(task.parts.source)})"
        if part is task.parts.judged:
            where = f"{len(part):,} queries, the same that steps were chosen on"
        if cross_validated is not None:
            where += f"; cross-validated, the system has {cross_validated:.3f}"
        title = escape(base.step.title) + ("" if base.engine else ", not fitted")
        mean, _, interval = figure_of(part, best.report, measure).partition(" ")
        figure = f'{measure} <b class="good">{mean}</b> {interval}'.rstrip()
        if best is base:
            yield f'<p class="lead">{figure} on {where}. Nothing was shown to be better than {title}.</p>'
        else:
            # Where settings were chosen on these queries, the gain is that with those chosen without each.
            runs = {"base": base.report, "system": best.report if cross_validated is None else best.run}
            [gain] = compare(part.qrels, runs, measure, baseline="base").contrasts
            below, above = gain.interval
            yield (
                f'<p class="lead">{figure}, {gain.difference:+.3f} over {title} '
                f"[{below:+.3f}, {above:+.3f}]{' cross-validated' * (cross_validated is not None)}, on {where}.</p>"
            )
            before = "" if base.engine else f"; not fitted, {base.milliseconds:.0f} ms"
            words += f" A query takes {best.milliseconds:.0f} ms{before}."
    else:
        yield '<p class="lead">Nothing was measured: there were no judged queries.</p>'
    yield f"<p>{words}</p>"
    if more := climbed.doubling:
        yield f"<p>{escape(more)}</p>"
    clicks = f"; {escape(task.dataset.clicks)}" if task.dataset.clicks else ""
    yield f'<p class="dim">{len(task.index):,} documents; {escape(task.parts.describe())}{clicks}.</p>'


def _steps(climbed: Climb) -> Iterator[str]:
    task = climbed.task
    part, measure = task.parts.judged, task.measure
    if not len(part):
        return
    trained = "; trained ones on queries that the model was not trained on" * bool(task.parts.fit)
    untested = " The weight of a bi-encoder that so few queries choose is kept without a test." * (not task.parts.fit)
    yield (
        f"<h2>Step by step</h2><p>Each step is compared with the one kept before it, on {len(part):,} judged "
        f"queries{trained}. It is kept if it is better by a paired t-test, two-sided, at its share of a level of "
        f"{LEVEL:g} for all tests; BM25 with a bi-encoder as it is stays unless it is shown to be worse. Bars are 95 % "
        f"intervals.{untested}</p>"
    )
    bars = []
    for result in climbed.results:
        some = part.head(result.count)
        mean = mean_of(some, result.run, measure)
        low, high = interval_of(some, result.run, measure) or (mean, mean)
        bars.append(Bar(result.step.title, mean, low, high, result.kept, result.milliseconds))
    yield draw_steps(bars, measure)
    heads = ["step", measure, "gain", "p", "ms a query", "made in"]
    yield table(heads, [_tried_cells(tried, task) for tried in climbed.tried])
    yield f"<h2>{measure} against time</h2>"
    yield draw_costs(bars, measure)
    reported, names = climbed.reported, measures_of(measure)
    standing = [result for result in climbed.results if "best" in result.becomes]
    yield f"<h2>On the {len(reported):,} queries of the report</h2>"
    yield table(["step kept", *names], [_report_cells(result, reported, names) for result in standing])


def _tried_cells(tried: Result | Skipped, task: FitTask) -> str:
    name = escape(tried.step.title)
    if isinstance(tried, Skipped):
        words = f"{tried.outcome}: {escape(tried.reason)}"
        return f'<tr class="dim"><td>– {name}</td><td class="words" colspan="5">{words}</td></tr>'
    cells = ["", "", ""]
    if tried.count:
        cells[0] = _mean(task.parts.judged.head(tried.count), tried.run, task.measure)
    if tried.contrast is not None:
        cells[1:] = [f"{tried.contrast.difference:+.3f}", escape(p_value(tried.contrast.p).removeprefix("= "))]
    cells += [f"{tried.milliseconds:.0f}" if tried.milliseconds else "", duration(tried.seconds)]
    mark = '<span class="good">✓</span>' if tried.kept else "·"
    return f"<tr><td>{mark} {name}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _report_cells(result: Result, part: Part, names: Sequence[str]) -> str:
    run = result.report or Run()
    cells = "".join(f"<td>{_mean(part, run, name)}</td>" for name in names)
    return f"<tr><td>{escape(result.step.title)}</td>{cells}</tr>"


def _mean(part: Part, run: Run, measure: str) -> str:
    mean, _, interval = figure_of(part, run, measure).partition(" ")
    return f'{mean} <span class="dim">{interval}</span>'


# Relevance


def _relevance(rated: tuple[Calibration, Trial] | None) -> Iterator[str]:
    yield "<h2>When nothing fits</h2>"
    if rated is None:
        yield (
            f"<p>Answers have no relevance: that needs {LEAST} judged queries that no model was trained on, "
            f"{LEAST // 5} of them with a relevant document first.</p>"
        )
        return
    calibration, trial = rated
    yield f"<p>{calibration} (<code>--min-relevance {calibration.threshold:g}</code>).</p>"
    yield draw_thresholds(**trial.curves(), threshold=calibration.threshold)
    yield (
        f'<p class="dim">Measured on {calibration.queries:,} queries, cross-validated; those without an answer are the '
        "same queries without their relevant documents. Of the first answers of both, the probability is "
        f"{calibration.error:.3f} off on average.</p>"
    )


# Queries


def _queries(climbed: Climb) -> Iterator[str]:
    task, part, best, base = climbed.task, climbed.reported, climbed.bests.best, climbed.bests.base
    measure = task.measure
    assert best.report is not None
    assert base.report is not None
    if best is not base:
        ours, theirs = (evaluate(part.qrels, run, [measure]) for run in (best.report, base.report))
        gaps = ours.per_query[measure] - theirs.per_query[measure]
        gap_of = dict(zip(ours.qids, gaps.tolist(), strict=True))
        yield f"<h2>Query by query: {escape(best.step.title)} against {escape(base.step.title)}</h2>"
        better, worse = (sum(sign * gap > 0 for gap in gap_of.values()) for sign in (1, -1))
        yield f"<p>{better:,} queries better, {len(gap_of) - better - worse:,} equal, {worse:,} worse.</p>"
        ordered = sorted(part.queries, key=lambda query: -gap_of[query.qid])
        for title, kind, some in (
            ("Largest gains", "good", [query for query in ordered if gap_of[query.qid] > 0][:SHOWN]),
            ("Largest losses", "bad", [query for query in reversed(ordered) if gap_of[query.qid] < 0][:SHOWN]),
        ):
            if some:
                yield f"<h3>{title}</h3>"
                for query in some:
                    yield _query(task, part, best.report, query, base.report, kind)
    lost = [query for query in part.queries if _rank(part, best.report, query) is None]
    if lost:
        yield "<h2>Failures to look at</h2>"
        yield (
            f"<p>{len(lost):,} of {len(part):,} queries have no relevant document among the first 100. Is the judged "
            "document really the answer? Does it use other words, or is it too long? The first of them:</p>"
        )
        for query in lost[:SHOWN]:
            yield _query(task, part, best.report, query)


def _rank(part: Part, run: Run, query: Query) -> int | None:
    """The rank of the best relevant document, from 1."""
    grades, ranking = part.qrels[query.qid], run.get(query.qid)
    docids = () if ranking is None else ranking.docids
    return next((rank for rank, docid in enumerate(docids, 1) if grades.get(docid, 0) > 0), None)


def _query(task: FitTask, part: Part, run: Run, query: Query, base: Run | None = None, kind: str = "bad") -> str:
    """A query with its relevant document, what was found first, and, with ``base``, the ranks before and after."""
    grades = part.qrels[query.qid]
    relevant = next((docid for docid, grade in grades.items() if grade > 0), None)
    before, after = (_rank(part, each, query) for each in (base or run, run))
    ranks = "" if before == after else f"{_place(before)} → {_place(after)}"
    lines = [f'<summary>{escape(query.text)} <span class="{kind}">{ranks}</span></summary>']
    if relevant is not None:
        lines.append(f"<p><b>relevant:</b> {_document(task, relevant)}</p>")
    ranking = run.get(query.qid)
    if ranking is not None and len(ranking) and ranking.docids[0] != relevant:
        lines.append(f"<p><b>found first:</b> {_document(task, ranking.docids[0])}</p>")
    return f"<details>{''.join(lines)}</details>"


def _place(rank: int | None) -> str:
    return "not found" if rank is None else f"rank {rank}"


def _document(task: FitTask, docid: str) -> str:
    if docid not in task.index:
        return f'<span class="dim">{escape(docid)}: not in the collection</span>'
    text = task.index.text(docid)
    shown = text if len(text) <= EXCERPT else f"{text[:EXCERPT]}…"
    return f'{escape(shown)} <span class="dim">({escape(docid)})</span>'


# Settings


def _settings(figures: Mapping[str, Any], climbed: Climb, command: str) -> Iterator[str]:
    task, system = climbed.task, climbed.saved.system
    rows = {
        "documents": f"{len(task.index):,}",
        "first stage": ", ".join(f"{name} {value}" for name, value in system.first_stage.describe().items()),
        "re-ranker": f"the best {system.depth} documents, {system.shares or 'alone'}" if system.ranker else "none",
        "trained stages": ", ".join(climbed.bests.best.stages) or "none",
        "seed": task.seed,
        "machine": ", ".join(f"{name} {value}" for name, value in figures["machine"].items()),
    }
    yield "<h2>Settings</h2>"
    yield table(
        (), [f'<tr><td>{name}</td><td class="words">{escape(str(value))}</td></tr>' for name, value in rows.items()]
    )
    yield "<h2>Repeat it, use it</h2>"
    folder = shlex.quote(task.out.name)
    lines = [
        command,
        f'rankwell search {folder} "a question"',
        f"rankwell search {folder} queries.tsv --k 100 --out system.run",
        f'rankwell evaluate qrels.txt system.run --measures "{" ".join(measures_of(task.measure))}"',
        f"rankwell serve {folder}",
    ]
    yield f"<pre>{escape(chr(10).join(lines))}</pre>"
    yield "<h2>Card</h2>"
    yield f"<pre>{escape(card_text(figures, command))}</pre>"
