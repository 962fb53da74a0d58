"""The figures of trec_eval, to all digits it prints, for each query and for all."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from rankwell.corpus.formats import read_qrels, read_run
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import parse_measure

pytestmark = pytest.mark.data

# trec_eval's names, and ours with "{rel}" for the parameter that is the level of its option -l.
SINGLE = {
    "num_q": "NumQ",
    "num_ret": "NumRet",
    "num_rel": "NumRel({rel})",
    "num_rel_ret": "NumRelRet({rel})",
    "map": "AP({rel})",
    "Rprec": "Rprec({rel})",
    "bpref": "Bpref({rel})",
    "recip_rank": "RR({rel})",
    "11pt_avg": "IPrec({rel}, trec_eval={version})",
    "ndcg": "nDCG",
    "rbp": "RBP(p=0.9, {rel})",
    "set_P": "SetP({rel})",
    "set_recall": "SetR({rel})",
    "set_F": "SetF({rel})",
}
WITH_CUTOFF = {
    "iprec_at_recall": "IPrec({rel}, trec_eval={version})",
    "P": "P({rel})",
    "recall": "R({rel})",
    "Rprec_mult": "Rprec({rel})",
    "ndcg_cut": "nDCG",
    "map_cut": "AP({rel})",
    "success": "Success({rel})",
}
LEFT_OUT = (
    "num_nonrel_judged_ret infAP binG set_relative_P set_map gm_map gm_bpref runid relstring relstring_20 utility G "
    "ndcg_rel Rndcg rbp_resid"
).split()


def our_name(theirs: str, rel: int, version: int) -> str:
    """Our notation of one of trec_eval's measures."""
    name, _, cutoff = theirs.rpartition("_")
    if theirs in SINGLE:
        text = SINGLE[theirs]
    elif name in WITH_CUTOFF and re.fullmatch(r"[\d.]+", cutoff):
        text = f"{WITH_CUTOFF[name]}@{cutoff}"
    else:
        raise KeyError(theirs)
    return str(parse_measure(text.format(rel=f"rel={rel}", version=version)))


def read_figures(path: Path) -> dict[tuple[str, str], str]:
    """What trec_eval printed, by query and measure."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {(qid, name): value for name, qid, value in rows}


T = "trec_eval/"


@pytest.mark.parametrize(
    ("output", "qrels", "run", "options", "compared"),
    [
        (T + "out.test", T + "qrels.test", T + "results.test", "", 28),
        (T + "out.test.a", T + "qrels.test", T + "results.test", "", 74),
        (T + "out.test.aq", T + "qrels.test", T + "results.test", "", 293),
        (T + "out.test.aq", T + "qrels.test.with-comments", T + "results.test", "", 293),
        (T + "out.test.aqc", T + "qrels.test", T + "results.trunc", "-c", 293),
        (T + "out.test.aqcM", T + "qrels.test", T + "results.trunc", "-c -M100", 293),
        (T + "out.test.aql", T + "qrels.rel_level", T + "results.test", "-l2", 289),
        (T + "out.test.meas_params", T + "qrels.test", T + "results.test", "", 76),
        (T + "out.comment.test", T + "qrels.comment.test", T + "results.comment.test", "", 28),
        ("dl_hard/bm25.run.eval", "dl_hard/dl_hard-passage.qrels", "dl_hard/bm25.run", "-c -l2 -9", 3672),
    ],
)
def test_figures_are_those_of_trec_eval(
    data_folder: Path, output: str, qrels: str, run: str, options: str, compared: int
) -> None:
    folder = data_folder / "trec"
    level, version = 2 if "-l2" in options else 1, 9 if "-9" in options else 10
    results = read_run(folder / run)
    expected: dict[str, dict[str, str]] = defaultdict(dict)
    for (qid, name), value in read_figures(folder / output).items():
        if not (name in LEFT_OUT or "," in name or name.startswith(("unj_", "relative_P_"))):
            expected[qid][name] = value
    if level == 2:
        # trec_eval's rbp is graded where the qrels are, and ours never.
        for figures in expected.values():
            figures.pop("rbp", None)
    if "-c" in options and version == 9:
        # With -c, trec_eval 9 adds up the documents of grade 1 and more whatever -l says.
        assert expected["all"].pop("num_rel") == "1794"

    names = {theirs: our_name(theirs, level, version) for figures in expected.values() for theirs in figures}
    evaluation = evaluate(
        read_qrels(folder / qrels),
        results.head(100) if "-M100" in options else results,
        names.values(),
        average="qrels" if "-c" in options else "both",
    )
    ours: dict[tuple[str, str], str] = {}
    for qid, figures in expected.items():
        for theirs, text in figures.items():
            if qid != "all":
                value = evaluation.per_query[names[theirs]][evaluation.qids.index(qid)]
            else:
                value = evaluation.mean[names[theirs]]
            ours[qid, theirs] = f"{value:.4f}" if "." in text else f"{value:.0f}"
    assert ours == {(qid, theirs): text for qid, figures in expected.items() for theirs, text in figures.items()}
    assert len(ours) == compared


def test_one_query_alone_has_the_figures_it_has_among_others(data_folder: Path) -> None:
    folder = data_folder / "trec" / "trec_eval"
    figures = read_figures(folder / "out.test.aq")
    evaluation = evaluate(read_qrels(folder / "qrels-302.test"), read_run(folder / "results-302.test"), "AP nDCG Bpref")
    for ours, theirs in [("AP", "map"), ("nDCG", "ndcg"), ("Bpref", "bpref")]:
        assert f"{evaluation.mean[ours]:.4f}" == figures["302", theirs]


def test_unjudged_documents_are_counted_as_trec_eval_does(data_folder: Path) -> None:
    folder = data_folder / "trec" / "trec_eval"
    for output, qrels in [("out.test.aq", "qrels.test"), ("out.test.aql", "qrels.rel_level")]:
        figures = read_figures(folder / output)
        measures = "Judged@5 Judged@10 Judged@20"
        evaluation = evaluate(read_qrels(folder / qrels), read_run(folder / "results.test"), measures)
        for depth in (5, 10, 20):
            for qid, value in zip(evaluation.qids, evaluation.per_query[f"Judged@{depth}"], strict=True):
                assert f"{1 - value:.4f}" == figures[qid, f"unj_{depth}"]


@pytest.mark.parametrize(
    ("qrels", "run", "measure", "expected"),
    [
        ("qrels.dl19-passage.txt", "trec_results_dl19_top100.txt", "nDCG@10", 0.5058),
        ("qrels.dl20-passage.txt", "trec_results_dl20_top100.txt", "nDCG@10", 0.4796),
        ("dl_hard/dl_hard-passage.qrels", "dl_hard/bm25.run", "nDCG@10", 0.3037),
    ],
)
def test_published_figures(data_folder: Path, qrels: str, run: str, measure: str, expected: float) -> None:
    folder = data_folder / "trec"
    evaluation = evaluate(read_qrels(folder / qrels), read_run(folder / run), measure)
    assert round(evaluation.mean[measure], 4) == expected
