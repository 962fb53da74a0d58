"""Measures are written, read and printed in one notation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import (
    DEPTH,
    MEASURES,
    JudgedRanking,
    measure,
    our_notation,
    parse_measure,
    parse_measures,
)
from rankwell.evaluation.tables import report

EXAMPLES = (
    "RR RR@10 nDCG@10 AP AP(rel=2) P@10 R(rel=2)@1000 Success@5 Judged@10 Rprec Bpref RBP(p=0.9) ERR@10 "
    "IPrec@0.1 SetP SetR SetF NumRet NumRel NumRelRet NumQ AP@100 nDCG(dcg=exp-log2)@10"
)


@pytest.mark.parametrize("text", EXAMPLES.split())
def test_a_measure_prints_as_it_is_written(text: str) -> None:
    assert str(parse_measure(text)) == text
    assert parse_measure(str(parse_measure(text))) == parse_measure(text)


def test_every_registered_measure_reads_back() -> None:
    for name, bare in MEASURES.items():
        measure = bare @ bare.kind.cutoff.example if bare.kind.cutoff else bare
        assert str(measure).startswith(name)
        assert parse_measure(str(measure)) == measure


def test_defaults_are_left_out_so_equal_measures_are_one() -> None:
    assert parse_measures("RR(rel=1)@10 RR@10 RBP(p=0.8) RBP") == parse_measures("RR@10 RBP")
    assert len({parse_measure("RR@10"), parse_measure("MRR@10")}) == 1


def test_measures_are_separated_by_spaces_or_commas() -> None:
    text = "  RR@10 RBP(p=0.9, rel=2) AP,nDCG@10\n"
    assert [str(m) for m in parse_measures(text)] == ["RR@10", "RBP(p=0.9, rel=2)", "AP", "nDCG@10"]


def test_measures_are_also_built_in_python() -> None:
    assert str(MEASURES["AP"](rel=2) @ 100) == "AP(rel=2)@100"
    assert parse_measures(["AP", MEASURES["P"] @ 5]) == parse_measures("AP P@5")


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("ndcg@10", "nDCG@10"),
        ("map", "AP"),
        ("recip_rank", "RR"),
        ("ndcg_cut_10", "nDCG@10"),
        ("iprec_at_recall_0.10", "IPrec@0.1"),
        ("Hit@10", "Success@10"),
        ("ap(rel=2)@5", "AP(rel=2)@5"),
        ("mrr_10", "RR@10"),
    ],
)
def test_names_of_other_programs_are_understood(text: str, ours: str) -> None:
    assert str(parse_measure(text)) == ours


def test_a_relevance_level_for_all_does_not_override_a_stated_one() -> None:
    measures = parse_measures("AP RR(rel=3)@10 nDCG@10 NumRet", rel=2)
    assert [str(m) for m in measures] == ["AP(rel=2)", "RR(rel=3)@10", "nDCG@10", "NumRet"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NDGC@10", "no measure is called 'NDGC'; did you mean nDCG?"),
        ("P", "P needs a cut-off, for example P@10"),
        ("RR@0", "RR@0: the cut-off must be a whole number of 1 or more"),
        ("RR@-3", "RR@-3: the cut-off must be a whole number of 1 or more"),
        ("RR@ten", "RR@ten: the cut-off must be a whole number of 1 or more"),
        ("RR@2.5", "RR@2.5: the cut-off must be a whole number of 1 or more"),
        ("IPrec@1.5", "IPrec@1.5: the cut-off must be a recall level from 0 to 1"),
        ("IPrec@nan", "IPrec@nan: the cut-off must be a recall level from 0 to 1"),
        ("Rprec@inf", "Rprec@inf: the cut-off must be a positive multiple"),
        ("Bpref@10", "Bpref takes no cut-off (found Bpref@10)"),
        ("AP(rel=x)", "AP(rel=x): rel must be a whole number of 0 or more"),
        ("AP(rel=-1)", "AP(rel=-1): rel must be a whole number of 0 or more"),
        ("RBP(p=1)", "RBP(p=1): p must be a number between 0 and 1"),
        ("nDCG(dcg=ln)", "nDCG(dcg=ln): dcg must be log2 or exp-log2"),
        ("nDCG(rel=2)", "nDCG has no parameter 'rel' (it has: dcg)"),
        ("AP(2)", "AP(2): '2' is not a parameter; expected NAME=VALUE"),
        ("RR@10@5", "'RR@10@5' is not a measure"),
        ("AP(rel=2", "'AP(rel=2' is not a measure"),
        ("", "no measure is named"),
    ],
)
def test_a_mistake_is_explained_in_one_line(text: str, message: str) -> None:
    with pytest.raises(RankwellError) as error:
        parse_measures(text)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_every_name_elsewhere_that_the_guide_lists_is_hinted_at() -> None:
    guide = (Path(__file__).parents[2] / "docs/evaluation.md").read_text(encoding="utf-8")
    rows = [row.split("|") for row in guide.splitlines() if row.startswith("| `") and row.count("|") == 6]
    assert len(rows) > 10
    for _, ours, _, _, elsewhere, _, _ in rows:
        names = re.findall(r"`(\w+)`", elsewhere) if "−" not in elsewhere else []
        for name in set(names) - MEASURES.keys():
            assert our_notation(name) in re.findall(r"`(\w+)`", ours)


def test_a_number_that_is_not_whole_is_no_cutoff() -> None:
    with pytest.raises(RankwellError, match=r"RR@2.5"):
        MEASURES["RR"] @ 2.5


def test_a_new_measure_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MEASURES, "_parts", dict(MEASURES))

    @measure("Last", cutoff=DEPTH)
    def last(judged: JudgedRanking, *, rel: int = 1, cutoff: int | None = None) -> float:
        """1 if the last ranked document is relevant."""
        return float(len(judged.grades) in judged.relevant_ranks(rel, cutoff))

    qrels = Qrels({"q1": {"a": 1, "b": 2}, "q2": {"a": 1}})
    run = Run.from_scores({"q1": {"a": 2.0, "b": 1.0}, "q2": {"b": 2.0, "c": 1.0}})
    found = evaluate(qrels, run, "Last Last(rel=2) Last@1 Last(rel=3)@10")
    assert found.mean == {"Last": 0.5, "Last(rel=2)": 0.5, "Last@1": 0.0, "Last(rel=3)@10": 0.0}
    assert "Last" in report(found)
    assert str(parse_measure("last@5")) == "Last@5"
