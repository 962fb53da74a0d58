"""What holds for every ranking and all judgments."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rankwell.corpus.records import Qrels, Run
from rankwell.evaluation.evaluate import evaluate

DOCIDS = [f"d{i}" for i in range(12)]
FRACTIONS = (
    "RR RR@3 Success@3 P@3 R@3 Rprec Rprec@0.5 Judged@3 AP AP@3 IPrec IPrec@0.3 Bpref RBP "
    "RBP(p=0.5)@3 nDCG nDCG@3 nDCG(dcg=exp-log2)@3 ERR ERR@3 SetP SetR SetF AP(rel=2) R(rel=2)@3"
)

grades = st.dictionaries(st.sampled_from(DOCIDS), st.integers(-1, 4), min_size=1)
# Few distinct scores, so that ties are common.
scores = st.dictionaries(st.sampled_from(DOCIDS), st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1)
few = settings(max_examples=150, deadline=None)


def means(judgments: dict[str, int], run: dict[str, float], measures: str) -> dict[str, float]:
    return dict(evaluate(Qrels({"q": judgments}), Run.from_scores({"q": run}), measures).mean)


@few
@given(grades, scores)
def test_fractions_lie_between_0_and_1(judgments: dict[str, int], run: dict[str, float]) -> None:
    for measure, value in means(judgments, run, FRACTIONS).items():
        assert 0.0 <= value <= 1.0 + 1e-12, measure


@few
@given(grades, scores, st.integers(1, 12))
def test_deeper_is_never_worse(judgments: dict[str, int], run: dict[str, float], depth: int) -> None:
    for name in ("RR", "R", "AP", "Success", "ERR", "RBP"):
        values = means(judgments, run, f"{name}@{depth} {name}@{depth + 1}")
        assert values[f"{name}@{depth}"] <= values[f"{name}@{depth + 1}"] + 1e-12


@few
@given(grades, scores)
def test_an_unjudged_tail_changes_nothing(judgments: dict[str, int], run: dict[str, float]) -> None:
    measures = "RR AP nDCG R@20 Bpref Rprec IPrec ERR RBP NumRelRet"
    longer = run | {f"unknown{i}": -1.0 - i for i in range(5)}
    assert means(judgments, longer, measures) == means(judgments, run, measures)


@few
@given(grades, scores, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(
    judgments: dict[str, int], run: dict[str, float], shuffler: random.Random
) -> None:
    items, judged = list(run.items()), list(judgments.items())
    shuffler.shuffle(items)
    shuffler.shuffle(judged)
    assert means(dict(judged), dict(items), FRACTIONS) == means(judgments, run, FRACTIONS)


@few
@given(grades, scores)
def test_only_the_order_of_the_scores_matters(judgments: dict[str, int], run: dict[str, float]) -> None:
    stretched = {docid: 3.0 * score - 7.0 for docid, score in run.items()}
    assert means(judgments, stretched, FRACTIONS) == means(judgments, run, FRACTIONS)


@few
@given(grades, scores)
def test_moving_a_relevant_document_to_the_top_never_hurts(judgments: dict[str, int], run: dict[str, float]) -> None:
    best = max(judgments, key=lambda docid: judgments[docid])
    improved = run | {best: 99.0}
    for measure in ("RR", "AP", "nDCG", "nDCG@3", "ERR", "RBP", "P@3", "R@3", "Bpref"):
        before, after = means(judgments, run, measure)[measure], means(judgments, improved, measure)[measure]
        if judgments[best] >= 1:
            assert after >= before - 1e-12, measure


@few
@given(grades, scores, st.integers(1, 4))
def test_a_relevance_level_is_the_same_as_binary_judgments(
    judgments: dict[str, int], run: dict[str, float], level: int
) -> None:
    binary = {docid: grade if grade < 0 else int(grade >= level) for docid, grade in judgments.items()}
    for name, at in [("RR", ""), ("AP", ""), ("P", "@3"), ("R", "@3"), ("Bpref", ""), ("Rprec", "")]:
        ours = means(judgments, run, f"{name}(rel={level}){at}")
        assert list(ours.values()) == list(means(binary, run, f"{name}{at}").values())


@few
@given(grades, scores)
def test_measures_agree_where_they_must(judgments: dict[str, int], run: dict[str, float]) -> None:
    values = means(judgments, run, "P@1 Success@1 RR@1 SetR R@1000 nDCG nDCG@1000 AP AP@1000 Rprec Rprec@1.0")
    assert values["P@1"] == values["Success@1"] == values["RR@1"]
    assert values["SetR"] == values["R@1000"]
    assert values["nDCG"] == values["nDCG@1000"]
    assert values["AP"] == values["AP@1000"]
    assert values["Rprec"] == values["Rprec@1.0"]
