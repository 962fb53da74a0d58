"""Each measure on rankings small enough to compute by hand."""

from __future__ import annotations

from math import log2

import pytest

from rankwell.evaluation.notation import UNJUDGED, judge, parse_measure

# Rank:      1      2      3      4      5
RANKING = ["d1", "d2", "d3", "d4", "d5"]
# Relevant at ranks 2, 4 and 5; d3 is not in the qrels; d8 and d9 are relevant but not retrieved, n7 is judged 0.
GRADES = {"d1": 0, "d2": 2, "d4": 1, "d5": 3, "d8": 1, "d9": 2, "n7": 0}


def value(measure: str, ranking: list[str] | None = None, grades: dict[str, int] | None = None) -> float:
    judged = judge(RANKING if ranking is None else ranking, GRADES if grades is None else grades)
    return parse_measure(measure).function()(judged)


DCG = 2 / log2(3) + 1 / log2(5) + 3 / log2(6)
IDEAL = 3 / log2(2) + 2 / log2(3) + 2 / log2(4) + 1 / log2(5) + 1 / log2(6)
EXP_DCG = 3 / log2(3) + 1 / log2(5) + 7 / log2(6)
EXP_IDEAL = 7 / log2(2) + 3 / log2(3) + 3 / log2(4) + 1 / log2(5) + 1 / log2(6)


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("RR", 1 / 2),
        ("RR@1", 0.0),
        ("RR(rel=3)", 1 / 5),
        ("RR(rel=3)@4", 0.0),
        ("Success@1", 0.0),
        ("Success@2", 1.0),
        ("Success(rel=3)@4", 0.0),
        ("P@2", 1 / 2),
        ("P@5", 3 / 5),
        ("P@10", 3 / 10),
        ("P(rel=2)@5", 2 / 5),
        ("R@2", 1 / 5),
        ("R@1000", 3 / 5),
        ("R(rel=2)@1000", 2 / 3),
        ("Rprec", 3 / 5),
        ("Rprec@0.4", 1 / 2),
        ("Rprec@2.0", 3 / 10),
        ("Rprec(rel=2)", 1 / 3),
        ("Judged@2", 1.0),
        ("Judged@5", 4 / 5),
        ("Judged@10", 4 / 5),
        ("Judged", 4 / 5),
        ("AP", (1 / 2 + 2 / 4 + 3 / 5) / 5),
        ("AP@4", (1 / 2 + 2 / 4) / 5),
        ("AP(rel=2)", (1 / 2 + 2 / 5) / 3),
        ("IPrec@0.0", 3 / 5),
        ("IPrec@0.6", 3 / 5),
        ("IPrec@0.7", 0.0),
        ("IPrec", 7 * (3 / 5) / 11),
        # 0.65 of five documents is 3.25: three documents in trec_eval 10, four in trec_eval 9.
        ("IPrec@0.65", 3 / 5),
        ("IPrec(trec_eval=9)@0.65", 0.0),
        # One judged non-relevant document above each relevant one; min(R, N) = min(5, 2).
        ("Bpref", 3 * (1 - 1 / 2) / 5),
        ("RBP", 0.2 * (0.8 + 0.8**3 + 0.8**4)),
        ("RBP(p=0.5)@4", 0.5 * (0.5 + 0.5**3)),
        ("RBP(p=0.5, rel=3)", 0.5 * 0.5**4),
        ("nDCG", DCG / IDEAL),
        ("nDCG@2", (2 / log2(3)) / (3 / log2(2) + 2 / log2(3))),
        ("nDCG@1", 0.0),
        ("nDCG(dcg=exp-log2)", EXP_DCG / EXP_IDEAL),
        ("ERR", 3 / 16 / 2 + 13 / 16 * (1 / 16) / 4 + 13 / 16 * 15 / 16 * (7 / 16) / 5),
        ("ERR@2", 3 / 16 / 2),
        ("ERR(max_rel=3)@2", 3 / 8 / 2),
        ("SetP", 3 / 5),
        ("SetR", 3 / 5),
        ("SetR(rel=2)", 2 / 3),
        ("SetF", 3 / 5),
        ("SetF(rel=2)", 2 * (2 / 5) * (2 / 3) / (2 / 5 + 2 / 3)),
        ("SetF(rel=2, beta=2)", 3 * (2 / 5) * (2 / 3) / (2 * 2 / 5 + 2 / 3)),
        ("NumQ", 1.0),
        ("NumRet", 5.0),
        ("NumRel", 5.0),
        ("NumRel(rel=2)", 3.0),
        ("NumRelRet", 3.0),
    ],
)
def test_measure_on_a_small_ranking(measure: str, expected: float) -> None:
    assert value(measure) == pytest.approx(expected, abs=1e-12)


def test_a_negative_grade_is_pooled_but_unjudged() -> None:
    ranking = judge(["a", "b", "c"], {"a": -1, "b": 0, "z": -2})
    assert ranking.grades.tolist() == [UNJUDGED, 0, UNJUDGED]
    assert ranking.judged.tolist() == [0]
    assert value("Judged", ["a", "b", "c"], {"a": -1, "b": 0}) == pytest.approx(1 / 3)


def test_bpref_ignores_unjudged_documents() -> None:
    grades = {"r": 1, "n": 0}
    assert value("Bpref", ["x", "y", "r", "n"], grades) == value("Bpref", ["r", "n"], grades) == 1.0
    assert value("Bpref", ["n", "x", "r"], grades) == 0.0


def test_bpref_counts_no_more_nonrelevant_documents_than_relevant_ones() -> None:
    grades = {"r1": 1, "r2": 1, "n1": 0, "n2": 0, "n3": 0}
    assert value("Bpref", ["n1", "r1", "n2", "n3", "r2"], grades) == pytest.approx(((1 - 1 / 2) + (1 - 2 / 2)) / 2)


FINDING_MEASURES = (
    "RR RR@10 Success@5 P@5 R@5 Rprec Rprec@0.5 AP AP@5 IPrec IPrec@0.0 Bpref RBP nDCG ERR SetP SetR SetF NumRelRet"
)


@pytest.mark.parametrize("measure", FINDING_MEASURES.split())
@pytest.mark.parametrize(
    ("ranking", "grades"),
    [(["a", "b"], {"a": 0}), (["a", "b"], {}), ([], {"a": 0}), ([], {}), (["a"], {"a": -1})],
    ids=["nothing relevant", "nothing judged", "nothing retrieved", "nothing at all", "nothing but unjudged"],
)
def test_nothing_to_find_is_zero(measure: str, ranking: list[str], grades: dict[str, int]) -> None:
    assert value(measure, ranking, grades) == 0.0


@pytest.mark.parametrize("measure", [*FINDING_MEASURES.split(), "Judged", "Judged@10", "NumRet"])
def test_a_query_without_results_is_zero(measure: str) -> None:
    assert value(measure, []) == 0.0


@pytest.mark.parametrize("measure", ["RR", "AP", "nDCG", "nDCG@2", "Bpref", "Rprec", "IPrec", "SetF", "R@3", "P@3"])
def test_the_ideal_ranking_scores_one(measure: str) -> None:
    assert value(measure, ["a", "b", "c"], {"a": 3, "b": 2, "c": 1, "n": 0}) == pytest.approx(1.0, abs=1e-12)


def test_grade_zero_can_count_as_relevant() -> None:
    assert value("P(rel=0)@2", ["a", "b"], {"a": 0}) == 0.5
