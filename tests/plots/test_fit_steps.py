"""The pictures of a fitted system's page."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from rankwell.plots.fit_steps import Bar, draw_costs, draw_steps

BARS = [Bar("BM25", 0.31, 0.29, 0.33, True, 1.2), Bar("<b>&", 0.49, 0.47, 0.51, False, 45.0)]


@pytest.mark.parametrize("draw", [draw_steps, draw_costs])
def test_pictures_are_well_formed_and_escaped(draw: object) -> None:
    picture = draw(BARS, "RR@10")  # type: ignore[operator]
    texts = [element.text for element in ElementTree.fromstring(picture).iter("text")]
    assert {"BM25", "<b>&"} <= set(texts)


def test_steps_have_their_means_in_order_from_below() -> None:
    root = ElementTree.fromstring(draw_steps(BARS, "RR@10"))
    circles = [(float(circle.get("cx", 0)), float(circle.get("cy", 0))) for circle in root.iter("circle")]
    (upper_x, upper_y), (lower_x, lower_y) = circles
    assert upper_x > lower_x
    assert upper_y < lower_y
    assert [circle.get("class") for circle in root.iter("circle")] == ["left", "kept"]


@pytest.mark.parametrize("bars", [BARS[:1], [Bar("all equal", 0.0, 0.0, 0.0, True, 0.0)] * 2])
def test_one_step_or_equal_steps_can_be_drawn(bars: list[Bar]) -> None:
    for draw in (draw_steps, draw_costs):
        assert "nan" not in draw(bars, "RR@10")


def test_a_label_does_not_cover_the_point_of_another_step() -> None:
    bars = [Bar("BM25", 0.281, 0.26, 0.31, True, 1.7), Bar("BM25, tuned", 0.291, 0.27, 0.32, True, 1.2), BARS[1]]
    root = ElementTree.fromstring(draw_costs(bars, "RR@10"))
    labels = {element.text: element for element in root.iter("text")}
    tuned = labels["BM25, tuned"]
    begin, line = float(tuned.get("x", 0)), float(tuned.get("y", 0))
    for circle in root.iter("circle"):
        x, y = float(circle.get("cx", 0)), float(circle.get("cy", 0))
        assert not (begin < x < begin + 70 and abs(y - line) < 10)


def test_the_measure_is_explained_if_it_is_a_usual_one() -> None:
    told = [ElementTree.fromstring(draw_steps(BARS, name)).findtext("p") for name in ("RR@10", "nDCG@10", "ERR@20")]
    assert str(told[0]).startswith("RR@10, a mean over queries: 1 for a query whose first document is relevant")
    assert (str(told[1]).startswith("nDCG@10"), told[2]) == (True, "")
