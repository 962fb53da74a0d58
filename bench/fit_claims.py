"""What docs/fitting.md and docs/your-engine.md claim of `rankwell fit` on a CPU, measured on cuts of the public data.

    export PYTHONPATH=.
    python bench/fit_claims.py halves docs/results/fit     # fitted to half of the queries, measured on the other half
    python bench/fit_claims.py engines docs/results/fit    # engines, and what is fitted on top of them
    python bench/fit_claims.py clicks docs/results/fit     # fitted to simulated clicks instead of judgments
    python bench/fit_claims.py curve docs/results/fit --data insuranceqa --device cuda --minutes 10 --dev 1000 \
        --steps hybrid adapter encoder words                # by the number of judged queries
    python bench/fit_claims.py picture docs/results/fit    # docs/images/curve.png
    python bench/fit_claims.py grades docs/results/fit     # documents that simulated clicks take for relevant
    python bench/fit_claims.py small docs/results/fit --minutes 0.6    # many fits to 15 to 60 queries
    python bench/fit_claims.py turns docs/results/fit --train 3300 --dev 1000 --documents 7500 --sizes 100 300 1000 2000
    python bench/fit_claims.py shuffled docs/results/fit --fits 60     # steps kept where nothing can be gained
    python bench/fit_claims.py tables docs/results/fit

``NAME.csv.gz`` has a row for each query and a column DATA/SETTING/SYSTEM with its RR@10. The index and the
vectors of a cut are made once, in ``--work``. ``curve`` has a file for each data set, written after every fit; repeat
the command to add the fits that are missing.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.training.fit.engines import ENGINES, MissingError, run_of

from harness import DATA, Table, make_parser, read_columns, write_json
from rankwell.core.files import atomic_text, link_tree
from rankwell.corpus.datasets import FolderDataset
from rankwell.corpus.formats import write_documents, write_qrels, write_queries, write_run
from rankwell.corpus.formats.clicks import read_clicks
from rankwell.corpus.records import Document, Qrels, Query, Ranking, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.significance import mean_interval, paired_t_test
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.plots.pictures import new_picture, save_picture
from rankwell.rank.dense import search_both
from rankwell.rank.fusion import Shares, before_rest, fuse
from rankwell.rank.system import System
from rankwell.rank.tuning import share_grid, tune_fusion
from rankwell.training.data.prepare import open_collection
from rankwell.training.fit import climb, steps
from rankwell.training.fit import split as division
from rankwell.training.fit.fit import fit
from rankwell.training.fit.judge import LEVEL, judge
from rankwell.training.fit.results import Bests, Plan, Result
from rankwell.training.fit.split import FEW, LEAST_ASIDE, SET_ASIDE, Part, Parts, divide, only, write_parts
from rankwell.training.fit.steps import all_steps
from rankwell.training.fit.task import FitTask
from rankwell.training.loop.contrastive import in_batch_softmax
from rankwell.training.stage_options.first_stages import AdapterOptions
from rankwell.training.stages.adapter import MapModel

MEASURE = "RR@10"
SPLITS = {"insuranceqa": ("train", "valid"), "medquad": ("train", "dev"), "wiki": ("questions.train", "questions.dev")}
CLASSIC = ("cranfield", "cacm", "med")
HALVES = 10
SHOWN, SEEN, CLICKED, BY_CHANCE = 10, 20, 0.7, 0.1
"""The results that a user sees, of few queries more, and the probabilities of a click on a relevant and on any other
one that is read."""
SIZES = (100, 300, 1_000, 3_000, 10_000)
Judged = tuple[list[Query], Qrels]
Row = tuple[str, str, str, dict[str, float]]


@dataclass
class Cut:
    """Some documents of a data set and judged queries, with an index and vectors that all fits share."""

    name: str
    documents: list[Document]
    parts: dict[str, Judged]
    options: argparse.Namespace
    fits: int = field(default=0)

    @classmethod
    def take(cls, name: str, options: argparse.Namespace) -> Cut:
        """Some queries of the training and dev split, and the documents of :attr:`argparse.Namespace.documents`."""
        source, parts, needed = FolderDataset(DATA / name), dict[str, Judged](), set[str]()
        splits = SPLITS.get(name, ("test",))
        for split, own, count in zip(("train", "dev"), splits, (options.train, options.dev), strict=False):
            qrels, queries = source.qrels(own), source.queries(own)
            order = np.random.default_rng(7).permutation(len(queries)).tolist()
            some = [queries[place] for place in order if queries[place].qid in qrels][:count]
            parts[split] = some, Qrels({query.qid: qrels[query.qid] for query in some})
            needed |= {docid for query in some for docid in qrels[query.qid]}
        documents = list(source.documents())
        count = len(documents) if options.documents is None else options.documents
        drawn = np.random.default_rng(7).permutation(len(documents))[: max(0, count - len(needed))]
        needed |= {documents[place].docid for place in drawn.tolist()}
        return cls(name, [document for document in documents if document.docid in needed], parts, options)

    @property
    def work(self) -> Path:
        """The folder of this cut."""
        return Path(self.options.work) / f"{self.name}-{len(self.documents)}"

    def write(self, folder: Path, parts: dict[str, Judged], runs: dict[str, Run] | None = None) -> Path:
        """The cut as a data set."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_documents(self.documents, folder / "corpus.jsonl")
        for split, (queries, qrels) in parts.items():
            write_queries(queries, folder / f"queries.{split}.jsonl")
            own = Qrels({query.qid: qrels[query.qid] for query in queries})
            write_qrels(own, folder / f"qrels.{split}.tsv", format="beir")
        for split, run in (runs or {}).items():
            write_run(run, folder / f"run.{split}.txt")
        return folder

    def untrained(self, encoder: str = DEFAULT, hybrid: float | None = 0.7) -> System:
        """BM25 and a bi-encoder, nothing fitted; vectors and word vectors are computed if they are not there."""
        pool = self.work / "pool"
        if not (pool / "parts").exists():
            dataset = FolderDataset(self.write(pool / "whole", self.parts))
            write_parts(dataset, divide(dataset, train=None, report=None, seed=1), pool / "parts")
        system = System.of_index(
            open_collection(str(pool / "parts"), pool).index, hybrid=hybrid, encoder=encoder, device=self.options.device
        )
        first = system.first_stage
        replace(first, words=0.5 * bool(first.share)).prepare()
        return system

    def fit(self, folder: Path, **options: Any) -> System:
        """Fit a system to a data set of the same documents."""
        self.fits += 1
        out = self.work / f"system-{self.fits}"
        for leftover in (out, out.with_name(f"{out.name}.work")):
            shutil.rmtree(leftover, ignore_errors=True)
        link_tree(self.work / "pool" / "data", out.with_name(f"{out.name}.work") / "data")
        return fit(folder, out, minutes=self.options.minutes, device=self.options.device, say=print, **options)


def values(judged: Judged, run: Run) -> dict[str, float]:
    """The measure of each query."""
    evaluation = evaluate(judged[1], run, [MEASURE])
    return dict(zip(evaluation.qids, evaluation.per_query[MEASURE].tolist(), strict=True))


def halves(options: argparse.Namespace) -> Iterator[Row]:
    """Fit to a random half, measure on the other."""
    for name in options.data or CLASSIC:
        cut = Cut.take(name, argparse.Namespace(**{**vars(options), "train": None, "documents": 1 << 30}))
        untrained, (queries, qrels) = cut.untrained(), cut.parts["train"]
        for seed in range(HALVES):
            order = np.random.default_rng(seed).permutation(len(queries)).tolist()
            ours, theirs = ([queries[place] for place in part] for part in np.array_split(order, 2))
            system = cut.fit(cut.write(cut.work / "half", {"train": (ours, qrels)}))
            judged = theirs, Qrels({query.qid: qrels[query.qid] for query in theirs})
            yield name, str(seed), "hybrid", values(judged, untrained.search(theirs, 100))
            yield name, str(seed), system.describe(), values(judged, system.search(theirs, 100))


def small(options: argparse.Namespace) -> None:
    """Fit to 15 to 60 queries, measure on the others, and compare what is reported with what is found.

    In three of ten nothing can be gained: relevant are three random documents of the unfitted search's best 20.
    """
    cuts, rows = dict[str, Cut](), list[dict[str, Any]]()
    for seed in range(options.begin, options.begin + options.fits):
        random, name, drawn = np.random.default_rng([11, seed]), CLASSIC[seed % 3], seed // 3 % 10 >= 7
        everything = argparse.Namespace(**{**vars(options), "train": None, "documents": 1 << 30})
        cut = cuts.get(name) or cuts.setdefault(name, Cut.take(name, everything))
        untrained, (queries, qrels) = cut.untrained(), cut.parts["train"]
        order = random.permutation(len(queries)).tolist()
        size = min(int(random.integers(15, 61)), len(queries) // 2)
        if drawn:
            qrels = without_gain(untrained.search(queries, 20), random)
        ours, theirs = ([queries[place] for place in part] for part in (order[:size], order[size:]))
        system = cut.fit(cut.write(cut.work / "half", {"train": (ours, qrels)}))
        [*_, said] = (
            step for step in system.card["steps"] if "report" in step and step["system"] == system.card["system"]
        )
        own, rest = (Qrels({query.qid: qrels[query.qid] for query in part}) for part in (ours, theirs))
        fitted, before = (
            evaluate(rest, one.search(theirs, 100), [MEASURE]).per_query[MEASURE] for one in (system, untrained)
        )
        row = {"data": name, "seed": seed, "nothing to gain": drawn, "queries": size, "system": system.describe()}
        row |= {"reported": said["report"][MEASURE]["mean"], "fitted": fitted.mean(), "unfitted": before.mean()}
        row |= {"found": evaluate(own, system.search(ours, 100), [MEASURE]).mean[MEASURE]}
        row |= {"kept": [step["step"] for step in system.card["steps"] if step.get("kept")]}
        rows.append({**row, "p": 1.0 if np.array_equal(fitted, before) else paired_t_test(fitted, before)})
        write_json(options.out / "small.json", rows)


def without_gain(found: Run, random: np.random.Generator) -> Qrels:
    """Judgments that say nothing: three random documents of each query are relevant."""
    drawn = {qid: random.choice(own.docids, 3, replace=False).tolist() for qid, own in found.items() if len(own) > 2}
    return Qrels({qid: dict.fromkeys(own, 1) for qid, own in drawn.items()})


def shuffled(options: argparse.Namespace) -> None:
    """Try the weight and word vectors on 15 to 60 queries, in every second division where nothing can be gained.

    Figures are of the queries that are left: those of what is kept less those of the unfitted search.
    """
    rows = list[dict[str, Any]]()
    for name in options.data or CLASSIC:
        cut = Cut.take(name, argparse.Namespace(**{**vars(options), "train": None, "documents": 1 << 30}))
        untrained, (queries, judged) = cut.untrained(), cut.parts["train"]
        first, found = untrained.first_stage, untrained.search(queries, 100)
        both = search_both(first.index, first.dense, queries, first.bm25)
        vars(steps)["search_both"] = lambda index, dense, some, bm25, both=both, **_: {
            side: only(run, some) for side, run in both.items()
        }
        for seed in range(options.begin, options.begin + 2 * options.fits):
            random = np.random.default_rng([12, seed])
            qrels = without_gain(found.head(20), random) if seed % 2 else judged
            order = random.permutation(len(queries)).tolist()
            size = min(int(random.integers(15, 61)), len(queries) // 2)
            part, rest = (Part.of([queries[place] for place in own], qrels) for own in (order[:size], order[size:]))
            task, level, kept = FitTask(name, Path(name), device=options.device, seed=seed), LEVEL, list[str]()
            vars(task)["parts"] = Parts(part, part.head(0), part, part, SET_ASIDE, "train")
            bests = Bests.begin(Result(untrained, only(found, part.queries), count=size, becomes=("best",)))
            tried = [step for step in all_steps(task) if step.name in ("tuned", "words")][:2]
            for place, step in enumerate(tried):
                made = replace(step.make(task, bests.below(step), Plan()), step=step, key=step.name, count=size)
                result = judge(task, made, bests, level / (len(tried) - place))
                bests, level = bests.after(result), level - (0.0 if result.kept else result.level)
                kept += [step.name] * result.kept
            gain = 0.0
            if kept:
                fitted = evaluate(rest.qrels, bests.best.system.search(rest.queries, 100), [MEASURE]).mean[MEASURE]
                gain = fitted - evaluate(rest.qrels, only(found, rest.queries), [MEASURE]).mean[MEASURE]
            rows.append({"data": name, "seed": seed, "nothing to gain": bool(seed % 2), "kept": kept, "gain": gain})
        write_json(options.out / "shuffled.json", rows)
    for null in (False, True):
        some = [row for row in rows if row["nothing to gain"] == null]
        gains, changed = [row["gain"] for row in some], sum(bool(row["kept"]) for row in some)
        worse = sum(gain < 0 for gain in gains)
        print(f"nothing to gain: {null}; {len(some)} divisions, {changed} kept, {worse} worse, {np.mean(gains):+.4f}")


def turns(options: argparse.Namespace) -> None:
    """Train adapters on stored vectors, chosen by a fifth of the judged queries or, on folds, by all of them.

    ``claimed`` and ``p`` are those of the queries that choose, ``true`` is the gain over the unfitted search on dev.
    """
    grid = [shares for shares in share_grid(("first", "similarity")) if shares.similarity]
    for name in options.data or ("insuranceqa", "medquad"):
        cut, rows = Cut.take(name, options), list[dict[str, Any]]()
        first = cut.untrained().first_stage
        [store] = first.index.documents.stores
        vectors = torch.from_numpy(first.dense.vectors(store).at(np.arange(len(store))).astype(np.float32))
        docids, place_of = first.index.docids(np.arange(len(store))), first.index.documents.numbers
        dev, (queries, qrels) = Part.of(*cut.parts["dev"]), cut.parts["train"]
        everyone = [*queries, *dev.queries]
        encoded = dict(zip((query.qid for query in everyone), first.dense.encode(everyone).vectors, strict=True))
        words = first.index.search(everyone, first.bm25, k=1000)

        def search(model: MapModel, part: Part, known: Any = (vectors, docids, encoded, words)) -> dict[str, Run]:
            vectors, docids, encoded, words = known
            asked = torch.from_numpy(np.stack([encoded[qid] for qid in part.qrels]).astype(np.float32))
            with torch.no_grad():
                mapped = model(asked, vectors)
                scores, best = (mapped[: len(asked)] @ mapped[len(asked) :].T).topk(1000)
            found = zip(part.qrels, best.tolist(), scores.numpy(), strict=True)
            run = Run({qid: Ranking.of([docids[place] for place in places], own) for qid, places, own in found})
            return {"first": only(words, part.queries), "similarity": run}

        def train(part: Part, seed: int, known: Any = (vectors, encoded, place_of)) -> MapModel:
            (vectors, encoded, place_of), how = known, AdapterOptions()
            qids = list(part.qrels)
            pairs = [(row, d) for row, qid in enumerate(qids) for d, grade in part.qrels[qid].items() if grade > 0]
            rows, columns = np.array([row for row, _ in pairs]), place_of([docid for _, docid in pairs])
            relevant, size = set(zip(rows.tolist(), columns.tolist(), strict=True)), min(how.batch, len(pairs))
            asked = torch.from_numpy(np.stack([encoded[qid] for qid in qids]).astype(np.float32))
            model, random = MapModel(vectors.shape[1], how.side), np.random.default_rng(seed)
            optimiser = torch.optim.AdamW(model.parameters(), lr=how.learning_rate, weight_decay=how.weight_decay)
            steps = max(1, round(how.epochs * len(pairs) / size))
            order = np.concatenate([random.permutation(len(pairs)) for _ in range(steps * size // len(pairs) + 1)])
            for step in range(steps):
                optimiser.param_groups[0]["lr"] = how.learning_rate * (1 - step / steps)
                batch = order[step * size : (step + 1) * size]
                mapped = model(asked[rows[batch]], vectors[columns[batch]])
                ignored = [
                    [(row, other) in relevant for other in columns[batch].tolist()] for row in rows[batch].tolist()
                ]
                masked = torch.tensor(ignored) & ~torch.eye(size, dtype=torch.bool)
                costs = in_batch_softmax(mapped[:size], mapped[size:], torch.arange(size), masked, how.scale)
                optimiser.zero_grad()
                torch.autograd.backward(costs.mean())
                torch.nn.utils.clip_grad_norm_(model.parameters(), how.clip)
                optimiser.step()
            return model

        unfitted = MapModel(vectors.shape[1], "both")
        before = values((list(dev.queries), dev.qrels), fuse(search(unfitted, dev), Shares.hybrid(0.7)))
        for seed, size in product(options.seeds, [size for size in options.sizes if size <= len(queries)]):
            some = [
                queries[place] for place in np.random.default_rng([13, seed, size]).permutation(len(queries))[:size]
            ]
            aside = max(LEAST_ASIDE, size // 5)
            judged, choose, fit = (Part.of(own, qrels) for own in (some, some[:aside], some[aside:]))
            parts = Parts(judged, fit, choose, dev, "dev", "train")
            for count in (1, 2, 5):
                folds, joined = parts.folds(count), defaultdict[str, dict[str, Ranking]](dict)
                models = [train(part, seed) for _, part, _ in folds]
                for model, (*_, own) in zip(models, folds, strict=True):
                    for side, run in search(model, own).items():
                        joined[side] |= run
                runs, part = (
                    {side: Run(run) for side, run in joined.items()},
                    judged.head(sum(len(f[2]) for f in folds)),
                )
                tuned = tune_fusion(runs, part.qrels, grid, folds=5, seed=seed)
                ours, theirs = (
                    np.array(list(values((list(part.queries), part.qrels), run).values()))
                    for run in (fuse(runs, tuned.setting_for), fuse(search(unfitted, part), Shares.hybrid(0.7)))
                )
                saved = fuse(search(train(parts.whole[1], seed) if count > 1 else models[0], dev), tuned.best)
                after = values((list(dev.queries), dev.qrels), saved)
                row = {"data": name, "seed": seed, "queries": size, "folds": count, "p": paired_t_test(ours, theirs)}
                row |= {
                    "claimed": (ours - theirs).mean(),
                    "true": np.mean([after[qid] - before[qid] for qid in before]),
                }
                rows.append(
                    {key: float(value) if isinstance(value, np.floating) else value for key, value in row.items()}
                )
            write_json(options.out / f"turns-{name}.json", rows)
        for size, count in product(options.sizes, (1, 2, 5)):
            tried = [row for row in rows if (row["queries"], row["folds"]) == (size, count)]
            kept = [row["true"] * (row["claimed"] > 0 and row["p"] < LEVEL / 4) for row in tried]
            if tried:
                print(f"{name} {size:,}, {count} folds: {len(list(filter(None, kept)))} of {len(kept)} kept, ", end="")
                print(f"{np.mean(kept):+.4f}; if all were, {np.mean([row['true'] for row in tried]):+.4f}")


def engines(options: argparse.Namespace) -> Iterator[Row]:
    """Re-rank what each engine that is installed returns, with a system that was fitted beside it."""
    for name in options.data or SPLITS:
        cut = Cut.take(name, options)
        cut.untrained()
        system, (queries, _) = cut.fit(cut.write(cut.work / "engine", cut.parts)), cut.parts["dev"]
        for engine in ENGINES:
            try:
                run = run_of(engine, cut.documents, queries)
            except MissingError as error:
                print(f"{engine}: {error}")
                continue
            yield name, engine, "engine", values(cut.parts["dev"], run)
            better = before_rest(system.rerank(run, queries), run)
            yield name, engine, f"re-ranked by {system.describe()}", values(cut.parts["dev"], better)


def draw_clicks(shown: Run, judged: Judged, impressions: int) -> Iterator[tuple[str, str, int, int]]:
    """Query, document, position and clicks, where users read a list from the top and are sometimes wrong."""
    draw, (queries, qrels) = np.random.default_rng(impressions), judged
    for query in queries:
        for position, docid in enumerate(shown[query.qid].docids if query.qid in shown else (), 1):
            likely = CLICKED if qrels[query.qid].get(docid, 0) > 0 else BY_CHANCE
            yield query.qid, docid, position, int(draw.binomial(impressions, likely / position))


def write_clicks(path: Path, rows: Iterable[tuple[str, str, int, int]], impressions: int) -> None:
    """Clicks as a file."""
    lines = (f"{qid},{docid},{position},{impressions},{count}\n" for qid, docid, position, count in rows)
    path.write_text("query_id,doc_id,position,impressions,clicks\n" + "".join(lines), encoding="utf-8")


def grades(options: argparse.Namespace) -> None:
    """Write the precision and recall of the documents that clicks on BM25's lists take for relevant."""
    names, found = options.data or [*CLASSIC, *SPLITS], defaultdict[int, list[str]](list)
    for name in names:
        documents = 1 << 30 if name in CLASSIC else options.documents
        cut = Cut.take(name, argparse.Namespace(**{**vars(options), "documents": documents}))
        judged = cut.parts["train"]
        shown = cut.untrained(hybrid=None).search(judged[0], SEEN if name in CLASSIC else SHOWN)
        relevant = {
            (qid, docid)
            for qid, ranking in shown.items()
            for docid in ranking.docids
            if judged[1][qid].get(docid, 0) > 0
        }
        for impressions in options.impressions:
            write_clicks(cut.work / "clicks.csv", draw_clicks(shown, judged, impressions), impressions)
            qrels, _ = read_clicks(cut.work / "clicks.csv")
            taken = {(qid, docid) for qid, own in qrels.items() for docid, grade in own.items() if grade}
            both = len(taken & relevant)
            found[impressions].append(f"{both / max(1, len(taken)):.2f} / {both / max(1, len(relevant)):.2f}")
    write_json(options.out / "grades.json", {"data": names, "precision / recall by impressions": found})
    table = Table("impressions", *names)
    for impressions, cells in found.items():
        table.row(f"{impressions:,}", *(cell.replace("0.", ".") for cell in cells))


def clicks(options: argparse.Namespace) -> Iterator[Row]:
    """Fit to the clicks of users who read BM25's list from the top, and are sometimes wrong."""
    for name in options.data or SPLITS:
        cut = Cut.take(name, options)
        cut.untrained()
        shown, dev = cut.untrained(hybrid=None).search(cut.parts["train"][0], SHOWN), cut.parts["dev"]
        runs = {"train": shown, "dev": cut.untrained(hybrid=None).search(dev[0], 100)}
        yield name, "", "engine", values(dev, runs["dev"])
        _, run = answers(cut, cut.write(cut.work / "clicks", cut.parts, runs), runs, dev)
        yield name, "", "judgments", values(dev, run)
        for impressions in options.impressions:
            rows, naive = (
                list(draw_clicks(shown, cut.parts["train"], impressions)),
                defaultdict[str, dict[str, int]](dict),
            )
            for qid, docid, _, count in rows:
                naive[qid][docid] = int(count / impressions >= BY_CHANCE)
            for kind in ("clicks", "click-through rates"):
                folder = cut.write(cut.work / "clicks", cut.parts, runs)
                (folder / "qrels.train.tsv").unlink()
                if kind == "clicks":
                    write_clicks(folder / "clicks.train.csv", rows, impressions)
                else:
                    write_qrels(Qrels(naive), folder / "qrels.train.tsv", format="beir")
                yield name, str(impressions), kind, values(dev, answers(cut, folder, runs, dev)[1])


def answers(cut: Cut, folder: Path, runs: dict[str, Run], dev: Judged) -> tuple[str, Run]:
    """What a fit made of an engine's results, and what it answers."""
    system = cut.fit(folder)
    best = system.card["system"]
    if best == "your engine":
        return best, runs["dev"]
    if not best.startswith("your engine"):
        return best, system.search(dev[0], 100)
    joined = system.join(runs["dev"], dev[0])
    return best, joined if system.ranker is None else before_rest(system.rerank(joined, dev[0]), joined)


def curve(options: argparse.Namespace) -> Iterator[Row]:
    """Fit to growing numbers of judged queries. For each fit: what it keeps up to each trained step, and at its end."""
    for name in options.data or SPLITS:
        cut = Cut.take(name, options)
        (queries, qrels), dev = cut.parts["train"], cut.parts["dev"]
        finished = read_values(options.out / f"curve-{name}.csv.gz")
        yield name, "0", "hybrid", values(dev, cut.untrained().search(dev[0], 100))
        for seed in options.seeds:
            for size in [size for size in options.sizes if size <= len(queries)]:
                if f"{name}/{size}/{seed} all" in finished:
                    continue
                order = np.random.default_rng(seed).permutation(len(queries))[:size].tolist()
                some = [queries[place] for place in order]
                cut.fit(cut.write(cut.work / "curve", {"train": (some, qrels), "dev": dev}), seed=seed)
                for step, own in kept_steps(cut.work / f"system-{cut.fits}" / "queries.tsv").items():
                    yield name, str(size), f"{seed} {step}", own
                shutil.rmtree(cut.work / f"system-{cut.fits}")


def kept_steps(path: Path) -> dict[str, dict[str, float]]:
    """The values of the last step that a fit kept up to its adapter, up to its bi-encoder, and at all."""
    with path.open(encoding="utf-8", newline="") as file:
        (_, *steps), *rows = csv.reader(file, delimiter="\t")
    last = {"all": len(steps) - 1}
    last["encoder"] = steps.index("encoder") if "encoder" in steps else last["all"]
    untrained = [place for place, step in enumerate(steps) if step in ("bm25", "hybrid", "tuned")]
    last["adapter"] = steps.index("adapter") if "adapter" in steps else untrained[-1]
    return {step: {qid: float(found[last[step]]) for qid, *found in rows} for step in ("adapter", "encoder", "all")}


def read_values(path: Path) -> dict[str, dict[str, float]]:
    """The columns that were measured before, by query."""
    columns = read_columns(path)
    qids = columns.pop("query", [])
    return {
        name: {qid: float(cell) for qid, cell in zip(qids, cells, strict=True) if cell}
        for name, cells in columns.items()
    }


def draw_curve(options: argparse.Namespace) -> None:
    """Draw the gain over the unfitted hybrid by the number of judged queries, the mean of the seeds."""
    figure, axes = new_picture("drawing a learning curve", 5.4, 3.4)
    styles, names = {"all": "-", "encoder": "--", "adapter": ":"}, {"encoder": "bi-encoder", "adapter": "adapter"}
    for colour, path in enumerate(sorted(options.out.glob("curve-*.csv.gz"))):
        (_, untrained), *measured = read_values(path).items()
        gains = defaultdict[tuple[str, int], list[list[float]]](list)
        for column, own in measured:
            _, size, system = column.split("/", 2)
            gains[system.split()[1], int(size)].append([own[qid] - untrained[qid] for qid in own])
        name = path.name.removeprefix("curve-").removesuffix(".csv.gz")
        for step, style in styles.items():
            sizes = sorted(size for other, size in gains if other == step)
            of_queries = [np.mean(gains[step, size], axis=0) for size in sizes]
            bars = [own.mean() - mean_interval(own)[0] for own in of_queries] if step == "all" else None
            label = f"{name}: {'all steps' if step == 'all' else f'up to the {names[step]}'}"
            means = [own.mean() for own in of_queries]
            axes.errorbar(
                sizes, means, bars, color=f"C{colour}", linestyle=style, marker="o", markersize=3, label=label
            )
    axes.set_xscale("log")
    axes.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
    axes.minorticks_off()
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xlabel("judged queries")
    axes.set_ylabel(f"gain in {MEASURE} over the unfitted hybrid")
    axes.legend(frameon=False, fontsize=7)
    save_picture(figure, options.out.parents[1] / "images" / "curve.png")


def tables(options: argparse.Namespace) -> None:
    """Print the mean of each system, and its difference to the first of the same data and setting."""
    for path in (
        path for claim in ("halves", "engines", "clicks", "curve") for path in options.out.glob(f"{claim}*.csv.gz")
    ):
        name, systems = path.name.split("-")[0].removesuffix(".csv.gz"), read_values(path)
        print(f"\n{name}")
        first: dict[str, float] = {}
        before = ""
        for column, own in systems.items():
            data, setting, system = column.split("/", 2)
            group = data if name in ("clicks", "curve") else f"{data} {setting}"
            first, before = (own, group) if group != before else (first, before)
            ours, theirs = (np.array([one[qid] for qid in own]) for one in (own, first))
            line = f"{data:12} {setting:10} {system[:90]:90} {ours.mean():.3f}"
            if own is not first:
                p = 1.0 if np.array_equal(ours, theirs) else paired_t_test(ours, theirs)
                line += f" {(ours - theirs).mean():+.3f} p {p:.3f}"
            print(line)


def main() -> None:
    """Measure one claim, or print the tables of all."""
    measured = {claim.__name__: claim for claim in (halves, engines, clicks, curve)}
    others = {claim.__name__: claim for claim in (grades, small, shuffled, turns, tables)} | {"picture": draw_curve}
    parser = make_parser(__doc__)
    parser.add_argument("claim", choices=[*measured, *others])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", nargs="*", help="data sets; default: all")
    parser.add_argument("--train", type=int, help="training queries of a cut; default: 300, of `curve` all")
    parser.add_argument("--dev", type=int, default=500, help="dev queries of a cut")
    parser.add_argument("--documents", type=int, help="documents of a cut; default: 3,000, of `curve` all")
    parser.add_argument("--few", type=int, default=FEW, help="with fewer judged queries, they train and choose in turn")
    parser.add_argument("--minutes", type=float, default=3.0, help="time of each fit")
    parser.add_argument("--work", type=Path, default=Path("out/fit-claims"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--impressions", type=int, nargs="*", default=[1, 10, 100], help="of each query of `clicks`")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="numbers of judged queries of `curve`")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3], help="of `curve`")
    parser.add_argument("--fits", type=int, default=200, help="fits of `small`, divisions of each kind of `shuffled`")
    parser.add_argument("--begin", type=int, default=0, help="the seed of the first of them")
    parser.add_argument("--steps", nargs="*", help="the steps of a fit to try; default: all")
    options = parser.parse_args()
    division.FEW = options.few
    if options.claim not in ("curve", "turns"):
        options.train, options.documents = options.train or 300, options.documents or 3000
    if options.steps:
        vars(climb)["all_steps"] = lambda task: [step for step in all_steps(task) if step.name in options.steps]
    if options.claim in others:
        others[options.claim](options)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    files: dict[Path, dict[str, dict[str, float]]] = {}
    for data, setting, system, found in measured[options.claim](options):
        print(f"--- {data} {setting} {system}: {np.mean(list(found.values())):.4f}", flush=True)
        by_data = options.claim == "curve"
        path = options.out / (f"curve-{data}.csv.gz" if by_data else f"{options.claim}.csv.gz")
        columns = files.setdefault(path, read_values(path) if by_data else {})
        columns[f"{data}/{setting}/{system}"] = found
        with atomic_text(path) as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["query", *columns])
            for qid in dict.fromkeys(qid for column in columns.values() for qid in column):
                row = [column.get(qid) for column in columns.values()]
                table.writerow([qid, *("" if value is None else f"{value:.6g}" for value in row)])


if __name__ == "__main__":
    main()
