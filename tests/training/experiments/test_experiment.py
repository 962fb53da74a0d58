"""Experiments: variants by seeds over one pool, and a table whose numbers can be counted on fingers."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.training import toys

from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.formats import read_run
from rankwell.corpus.records import Query
from rankwell.evaluation.significance import paired_t_test
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.training.experiments.experiment import planned_stages, read_suite, run_experiment
from rankwell.training.experiments.suite_tables import ExperimentTables, split_word_groups
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import Override, read_recipe

SUITES = sorted((Path(__file__).parents[3] / "recipes" / "suites").glob("*.yaml"))


class Bench:
    """Runs a suite over toy stages."""

    def __init__(self, folder: Path, tokenizer: Path, patch: pytest.MonkeyPatch):
        self.folder = folder
        self.toys = toys.Toys(patch)
        self.data = toys.write_data(folder / "data")
        self.start = toys.write_start(folder / "start", tokenizer)
        self.out = folder / "out"
        (folder / "base.yaml").write_text(yaml.safe_dump(toys.recipe_tree(self.data, self.start), sort_keys=False))

    def write(self, **suite: object) -> Path:
        path = self.folder / "suite.yaml"
        path.write_text(yaml.safe_dump({"base": "base.yaml", **suite}, sort_keys=False))
        return path

    def run(self, *settings: Override, **suite: object) -> tuple[ExperimentTables, list[str]]:
        self.toys.calls.clear()
        experiment = read_suite(self.write(**suite), settings)
        return run_experiment(experiment, self.out), list(self.toys.calls)


@pytest.fixture
def bench(tmp_path: Path, tiny_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, tiny_tokenizer, monkeypatch)


VARIANTS = {"half": {"stages.fit.share": 0.5}, "whole": {"stages.fit.share": 1.0}}


def test_variants_share_the_stages_they_have_in_common(bench: Bench) -> None:
    _, calls = bench.run(variants=VARIANTS, seeds=[1, 2])
    assert calls == ["01-warm", "02-fit", "02-fit", "01-warm", "02-fit", "02-fit"]
    _, again = bench.run(variants=VARIANTS, seeds=[1, 2])
    assert again == []
    _, more = bench.run(variants={**VARIANTS, "most": {"stages.fit.share": 0.9}}, seeds=[1, 2])
    assert more == ["02-fit", "02-fit"]


def test_figures_are_means_over_seeds_tested_query_by_query(bench: Bench) -> None:
    # A toy answers the first share·24 + 1 − seed queries: 12 and 11 of 24, and 24 and 23.
    outcome, _ = bench.run(variants=VARIANTS, seeds=[1, 2], measures=["P@1"])
    compared = outcome.compared["dev"]
    assert compared.comparison.mean["half"]["P@1"] == pytest.approx((12 + 11) / 48)
    assert compared.comparison.mean["whole"]["P@1"] == pytest.approx((24 + 23) / 48)
    half = np.array([1.0] * 11 + [0.5] + [0.0] * 12)
    whole = np.array([1.0] * 23 + [0.5])
    contrast = compared.comparison.by_name["whole", "P@1"]
    assert contrast.p == pytest.approx(paired_t_test(whole, half))
    assert (contrast.wins, contrast.ties, contrast.losses) == (13, 11, 0)
    assert compared.deviations["half"]["P@1"] == pytest.approx(np.std([12 / 24, 11 / 24], ddof=1))
    rows = {row[0].value: row for row in outcome.table("dev").rows}
    assert list(rows) == ["first stage", "half", "whole"]
    assert rows["whole"][2].text == "0.9792*"
    assert rows["half"][2].text == "0.4792"
    assert [rows[name][1].value for name in rows] == [1, 2, 2]
    # Half of 24 queries and a little less: a standard error of 0.1, so some 0.2 to either side.
    low, high = compared.intervals["half"]["P@1"]
    assert (low, high) == (rows["half"][4].value, rows["half"][5].value)
    assert low == pytest.approx(23 / 48 - 1.96 * half.std() / 24**0.5, abs=0.03)
    assert high == pytest.approx(23 / 48 + 1.96 * half.std() / 24**0.5, abs=0.03)


def test_the_tables_are_written_for_people_and_for_programs(bench: Bench) -> None:
    bench.run(variants=VARIANTS, baseline="whole", measures=["P@1", "RR@10"])
    markdown = (bench.out / "table.md").read_text()
    assert "| whole | 1 | **1.0000** |" in markdown
    assert "differs from whole" in markdown
    results = json.loads((bench.out / "results.json").read_text())
    assert results["tables"]["dev"]["mean"]["half"]["P@1"] == 0.5
    assert results["failures"] == {}
    assert (bench.out / "runs" / "half" / "seed-1" / "model" / "share.json").is_file()


def test_other_splits_and_data_sets_are_measured_too(bench: Bench) -> None:
    toys.write_data(bench.folder / "more", queries=10)
    elsewhere = {"own test": {"split": "test"}, "more": {"folder": "more", "split": "dev", "queries": 6}}
    outcome, _ = bench.run(variants=VARIANTS, evaluate_on=elsewhere, measures=["P@1"])
    assert list(outcome.compared) == ["dev", "own test", "more"]
    assert outcome.compared["own test"].comparison.mean["half"]["P@1"] == 0.5
    assert len(outcome.compared["more"].comparison.qids) == 6
    assert [len(outcome.table(place).rows) for place in outcome.compared] == [3, 3, 3]


def test_a_bad_split_is_found_before_anything_is_trained(bench: Bench) -> None:
    with pytest.raises(RankwellError, match="no split is called 'tset'"):
        bench.run(variants=VARIANTS, evaluate_on={"own test": {"split": "tset"}})
    assert bench.toys.calls == []


def test_a_variant_that_fails_is_told_and_the_others_go_on(bench: Bench) -> None:
    broken = {"refused": {"stages.fit.behaviour": "is refused"}, "broken": {"stages.fit.behaviour": "breaks"}}
    outcome, _ = bench.run(variants={"half": VARIANTS["half"], **broken, "whole": VARIANTS["whole"]})
    assert list(outcome.compared["dev"].seeds) == ["first stage", "half", "whole"]
    assert outcome.failures["refused, seed 1"] == "the toy cannot be fitted to this"
    assert "ZeroDivisionError: the toy broke" in outcome.failures["broken, seed 1"]
    assert "in fit" in (bench.out / "runs" / "broken" / "seed-1" / "error.txt").read_text()
    assert "failed: refused, seed 1: the toy cannot" in (bench.out / "table.md").read_text()


def test_without_a_baseline_there_is_no_table(bench: Bench) -> None:
    with pytest.raises(RankwellError, match=r"the baseline 'bad' has no figures \(bad, seed 1: the toy cannot"):
        bench.run(variants={"bad": {"stages.fit.behaviour": "is refused"}, **VARIANTS})


def test_variants_on_other_queries_are_not_compared(bench: Bench) -> None:
    outcome, _ = bench.run(variants={**VARIANTS, "fewer": {"data.dev_queries": 5}})
    assert "measured on other queries of dev" in outcome.failures["fewer, seed 1"]
    assert "fewer" not in outcome.compared["dev"].seeds


def test_an_axis_is_drawn(bench: Bench) -> None:
    bench.run(variants=VARIANTS, seeds=[1, 2], axis="stages.fit.share")
    assert (bench.out / "axis.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("suite", "expected"),
    [
        ({"variants": VARIANTS, "baseline": "hlaf"}, "baseline: no variant is called 'hlaf' (variants: half, whole)"),
        ({"variants": VARIANTS, "sedes": [1]}, "sedes: no such key; did you mean seeds?"),
        ({"variants": {"a": {"stages.fit.shar": 1}}}, "variants.a: stages.fit.shar: no such key; did you mean share?"),
        ({"variants": {"a": {"stages.fti": "off"}}}, "variants.a: stages.fti: the recipe has no stage 'fti'"),
        ({"variants": {"a": {}}, "set": {"seeed": 1}}, "set: seeed: no such key; did you mean seed?"),
        ({"variants": {}}, "variants"),
        ({"variants": {"a b": {}, "a-b": {}}}, "gives the same folder a-b"),
        ({"variants": VARIANTS, "seeds": [1, 1]}, "a seed comes twice"),
        ({"variants": VARIANTS, "axis": "stages.fit.behaviour"}, "axis: stages.fit.behaviour is 'works'"),
        ({"variants": VARIANTS, "axis": "stages.fit.x"}, "stages.fit.x: the recipe half has no such key"),
        ({"variants": VARIANTS, "measures": ["RRR"]}, "no measure is called 'RRR'"),
        ({"variants": VARIANTS, "evaluate_on": {"dev": {}}}, "evaluate_on.dev: the recipe's own dev split"),
    ],
)
def test_a_wrong_suite_is_refused_with_what_is_wrong(bench: Bench, suite: dict[str, object], expected: str) -> None:
    with pytest.raises(RankwellError) as caught:
        read_suite(bench.write(**suite))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_base_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("base: none.yaml\nvariants: {a: {}}\n")
    with pytest.raises(InputError, match=r"none\.yaml: no such file"):
        read_suite(tmp_path / "s.yaml")


def test_a_base_can_be_a_recipe_that_ships(tmp_path: Path) -> None:
    suite = tmp_path / "s.yaml"
    suite.write_text("base: drbert\nvariants: {a: {}, b: {base: monobert}}\n")
    recipes = read_suite(suite, [Override("data", "/data")]).columns[""]
    assert [len(recipes[name].stages) for name in "ab"] == [4, 1]
    (tmp_path / "drbert").write_bytes((SUITES[0].parents[1] / "listwise.yaml").read_bytes())
    recipes = read_suite(suite, [Override("data", "/data")]).columns[""]
    assert [len(recipes[name].stages) for name in "ab"] == [3, 1]


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_the_suites_that_come_along_are_right(path: Path) -> None:
    experiment = read_suite(path, [Override("data", "/data")])
    assert sum(map(len, experiment.columns.values())) > 1
    command = rf"rankwell experiment (recipes/suites/{path.name}|{path.stem}) --set data="
    assert re.search(command, path.read_text(encoding="utf-8"))
    tried = read_suite(path, [Override("data", "/data"), Override("scale", 0.01)])
    for whole, few in zip(experiment.units(), tried.units(), strict=True):
        for stage, other in zip(whole.recipe.stages, few.recipe.stages, strict=True):
            steps = getattr(stage.options, "max_steps", None)
            assert getattr(other.options, "max_steps", None) == (steps and max(1, round(steps / 100)))


def test_variants_may_have_another_recipe_and_settings_go_where_they_fit(bench: Bench) -> None:
    tree = toys.recipe_tree(bench.data, bench.folder / "start", fit={"share": 0.25}, late={"kind": "fit"})
    (bench.folder / "other.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    suite = bench.write(variants={"own": {}, "other": {"base": "other.yaml"}}, set={"stages.warm.share": 0.1})
    settings = [Override("first_stage.depth", 5), Override("stages.late.share", 0.7)]
    recipes = read_suite(suite, settings).columns[""]
    assert [stage.name for stage in recipes["own"].stages] == ["warm", "fit"]
    assert [stage.name for stage in recipes["other"].stages] == ["fit", "late"]
    assert [stage.options.share for stage in recipes["other"].stages] == [0.25, 0.7]
    assert [stage.options.share for stage in recipes["own"].stages] == [0.1, 0.75]
    assert {recipe.first_stage.depth for recipe in recipes.values()} == {5}
    with pytest.raises(RankwellError, match="the recipe has no stage 'never'"):
        read_suite(suite, [Override("stages.never.share", 1)])


def test_seeds_and_baseline_can_be_set_from_outside(bench: Bench) -> None:
    chosen = (Override("seeds", [4, 5]), Override("baseline", "whole"))
    experiment = read_suite(bench.write(variants=VARIANTS, seeds=[1, 2, 3]), chosen)
    assert [(unit.name, unit.recipe.seed) for unit in experiment.units()] == [
        ("whole", 4),
        ("half", 4),
        ("whole", 5),
        ("half", 5),
    ]
    assert experiment.baseline == "whole"


def test_queries_are_compared_in_groups(bench: Bench) -> None:
    outcome, _ = bench.run(variants=VARIANTS, groups=["length"], measures=["P@1"])
    breakdown = outcome.compared["dev"].breakdowns["length"]
    # All queries have two words, so that group is the whole.
    assert list(breakdown) == ["2"]
    assert breakdown["2"].mean == outcome.compared["dev"].comparison.mean
    assert "P@1 by length" in (bench.out / "table.md").read_text()
    with gzip.open(bench.out / "values.dev.P-1.csv.gz", "rt") as file:
        assert [float(row["half/seed 1"]) for row in csv.DictReader(file)] == [1.0] * 12 + [0.0] * 12


def test_a_query_with_a_split_word_is_one_with_a_word_of_several_pieces(tiny_tokenizer: Path) -> None:
    tokenizer = Tokenizer.open(tiny_tokenizer)
    queries = [Query(str(n), text) for n, text in enumerate(["honey", "zzyzx honey", "", "what is it?"])]
    found = split_word_groups(queries, tokenizer)
    words = {query.qid: query.text.replace("?", " ?").split() for query in queries}
    cut = {qid for qid, own in words.items() if any(len(tokenizer.encode([word]).ids) > 1 for word in own)}
    assert found == {"with a split word": frozenset(cut), "without": frozenset(words) - cut}
    assert "1" in cut
    assert "2" not in cut


def test_all_rank_the_candidates_of_one_variant(bench: Bench) -> None:
    variants = {"learned": {"stages": {"find": {"keep": 3}, "fit": {"share": 0.1}}}, **VARIANTS}
    outcome, _ = bench.run(variants=variants, candidates="learned", measures=["P@1"])
    assert outcome.failures == {}
    recipes = [yaml.safe_load(path.read_text()) for path in sorted(bench.out.glob("runs/*/seed-1/recipe.yaml"))]
    given = {one["name"]: one["first_stage"]["dev_run"] for one in recipes}
    assert given["learned"] is None
    assert given["half"] == given["whole"]
    assert {len(ranking) for ranking in read_run(given["half"]).values()} == {3}
    assert "all variants rank the candidates of learned" in (bench.out / "table.md").read_text()


def test_candidates_need_a_variant_that_learns_a_first_stage(bench: Bench) -> None:
    with pytest.raises(RankwellError, match="the candidates of half: it learns no first stage"):
        bench.run(variants=VARIANTS, candidates="half")


def test_a_check_finds_what_would_fail_at_its_turn(bench: Bench) -> None:
    variants = {**VARIANTS, "refused": {"stages.fit.behaviour": "is refused"}}
    experiment = read_suite(bench.write(variants=variants))
    with pytest.raises(RankwellError, match="refused, seed 1: the toy cannot be fitted to this"):
        planned_stages(experiment, bench.out)


def test_a_recipe_is_no_suite_nor_a_suite_a_recipe(bench: Bench) -> None:
    suite = bench.write(variants=VARIANTS)
    with pytest.raises(InputError, match="this is a suite, whose variants `rankwell experiment` trains"):
        read_recipe(suite)
    recipe = Path(__file__).parents[3] / "recipes" / "drbert.yaml"
    with pytest.raises(InputError, match="this is a recipe, which `rankwell train` carries out"):
        read_suite(recipe)


def test_several_at_once_give_what_one_after_the_other_gives(bench: Bench) -> None:
    variants = {**VARIANTS, "refused": {"stages.fit.behaviour": "is refused"}}
    experiment = read_suite(bench.write(variants=variants))
    said: list[str] = []
    outcome = run_experiment(experiment, bench.out, jobs=2, say=said.append)
    assert outcome.failures == {"refused, seed 1": "the toy cannot be fitted to this"}
    assert outcome.compared["dev"].comparison.mean["half"]["P@1"] == 0.5
    assert len(list(bench.out.glob("stages/01-warm-*"))) == 1
    log = (bench.out / "runs" / "whole" / "seed-1.log").read_text()
    assert "stage 1 of 2, warm: done before" in log
    assert any(line.startswith("half, seed 1, dev: RR@10") for line in said)


def test_table1_does_what_variants_share_once(bench: Bench) -> None:
    """The real recipes, planned on toy data."""
    suite = next(path for path in SUITES if path.stem == "drbert-table1")
    data = toys.write_data(bench.out.parent / "more", queries=30)
    (bench.start / "rankwell.json").unlink()  # a bare encoder
    given = {"data": str(data), "seeds": [1], "model.start": str(bench.start), "model.adapt": True}
    experiment = read_suite(suite, [Override(path, value) for path, value in given.items()])
    planned = planned_stages(experiment, bench.out)
    for column in experiment.columns:
        keys = {
            name.removesuffix(f", {column}, seed 1"): {p.stage.name: p.key for p in own}
            for name, own in planned.items()
            if column in name
        }
        whole = keys["DR-BERT"]
        pretrained = {name: own.get("pretrain") for name, own in keys.items()}
        assert {name for name, key in pretrained.items() if key == whole["pretrain"]} == {
            "DR-BERT",
            "without pointwise",
            "without types",
            "without listwise",
            "without noise reduction",
        }
        assert pretrained["without STRM"] not in (None, whole["pretrain"])
        assert keys["without noise reduction"]["pointwise"] == whole["pointwise"]
        assert keys["without noise reduction"]["listwise"] != whole["listwise"]


def test_the_losses_of_the_suite_exist() -> None:
    losses = pytest.importorskip("rankwell.training.loop.losses")
    experiment = read_suite(next(path for path in SUITES if path.stem == "losses"), [Override("data", "/data")])
    chosen = {recipe.stages[-1].options.loss for recipe in experiment.columns[""].values()}
    assert chosen <= set(losses.LOSSES)
    assert len(chosen) == len(experiment.columns[""])


def test_the_ablations_are_those_of_the_paper() -> None:
    path = next(path for path in SUITES if path.stem == "drbert-table1")
    columns = read_suite(path, [Override("data", "/data")]).columns
    for recipes in columns.values():
        kinds = {name: [stage.kind for stage in recipe.stages] for name, recipe in recipes.items()}
        assert kinds == {
            "BERT": ["pointwise"],
            "BERT, then listwise": ["pointwise", "listwise"],
            "DR-BERT": ["pretrain", "pointwise", "denoise", "listwise"],
            "without pre-training": ["pointwise", "denoise", "listwise"],
            "without pointwise": ["pretrain", "listwise"],
            "without types": ["pretrain", "pointwise", "denoise", "listwise"],
            "without listwise": ["pretrain", "pointwise"],
            "without STRM": ["pretrain", "pointwise", "denoise", "listwise"],
            "without noise reduction": ["pretrain", "pointwise", "listwise"],
        }
        assert recipes["without types"].model.template == "mono"
        assert recipes["without STRM"].model.attention == "full"
    last = {name: recipe.stages[-1].options for name, recipe in columns["as published"].items()}
    assert last["without pointwise"].epochs == last["DR-BERT"].epochs + 1
    assert pairs_of(columns["at equal training"]) == {144_000}


def pairs_of(recipes: Mapping[str, Recipe]) -> set[int]:
    """The pairs that each recipe trains on in its ranking stages."""
    ranking = ("pointwise", "listwise", "mono")
    return {
        sum(
            stage.options.max_steps * stage.options.batch * (stage.options.positives + stage.options.negatives)
            for stage in recipe.stages
            if stage.name in ranking
        )
        for recipe in recipes.values()
    }


def test_lists_of_each_length_see_the_same_pairs() -> None:
    path = next(path for path in SUITES if path.stem == "drbert-figure5")
    equal = read_suite(path, [Override("data", "/data")]).columns["at equal training"]
    lists = [recipe.stages[-1].options for recipe in equal.values()]
    assert [16 * stage.max_steps * (1 + stage.negatives) for stage in lists] == pytest.approx([105_600] * 4, rel=0.002)
