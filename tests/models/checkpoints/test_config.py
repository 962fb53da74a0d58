"""``config.json`` and ``rankwell.json``, and the model card written from them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankwell.core.errors import InputError, RankwellError
from rankwell.inputs.templates import Template
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.card import model_card
from rankwell.models.checkpoints.config import RankerConfig, read_ranker_config
from rankwell.models.checkpoints.describe import describe
from rankwell.models.spec import EncoderConfig

BASE = EncoderConfig(
    vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072
)
DR_BERT = RankerConfig(
    template=Template(name="typed", max_length=180),
    attention="strm",
    head="score",
    pooler=False,
    windows=Windows(size=80, stride=40, aggregate="top3"),
    history=[
        {"stage": "pre-training", "epochs": 5, "learning_rate": 1e-6},
        {"stage": "listwise", "negatives": 5, "data": {"collection": "wiki", "queries": 1200}},
    ],
    figures={"RR@10": 0.42012, "data": "wiki dev"},
)


class TestRankerConfig:
    def test_defaults_are_monobert(self) -> None:
        config = RankerConfig()
        assert config.template == Template("mono", 512, 64)
        assert (config.attention, config.head, config.pooler, config.windows) == ("full", "two_logits", True, None)

    def test_json_and_back(self, tmp_path: Path) -> None:
        (tmp_path / "rankwell.json").write_text(DR_BERT.model_dump_json(), encoding="utf-8")
        assert read_ranker_config(tmp_path) == DR_BERT

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ('{"template": {"length": 9}}', "template.length: Unexpected keyword argument"),
            ('{"windows": {"words": 9}}', "Unexpected keyword argument"),
            ('{"template": {"max_length": 9}}', "needs a length of at least 68, not 9"),
            ('{"windows": {"size": 9, "stride": 10}}', "the stride must be from 1 to the size"),
        ],
    )
    def test_a_wrong_template_or_windows_name_the_file(self, tmp_path: Path, content: str, problem: str) -> None:
        (tmp_path / "rankwell.json").write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=f"rankwell.json: .*{problem}"):
            read_ranker_config(tmp_path)

    @pytest.mark.parametrize(
        ("written", "read"),
        [
            (None, Windows()),
            ("truncate", None),
            ({"aggregate": "mean"}, Windows(aggregate="mean")),
            ({"size": 100, "stride": 50, "aggregate": "top3"}, Windows(100, 50, "top3")),
        ],
    )
    def test_documents_are_read_in_windows_unless_truncation_was_asked_for(
        self, tmp_path: Path, written: Any, read: Windows | None
    ) -> None:
        (tmp_path / "rankwell.json").write_text(json.dumps({"windows": written}), encoding="utf-8")
        config = read_ranker_config(tmp_path)
        assert config is not None
        assert config.inference_windows == read
        assert RankerConfig.model_validate_json(config.model_dump_json()) == config

    def test_absent_is_none(self, tmp_path: Path) -> None:
        assert read_ranker_config(tmp_path) is None

    def test_changes_leave_the_original_alone(self) -> None:
        config = RankerConfig()
        changed = config.changed({"template": {"max_length": 180}, "windows": {"size": 20, "stride": 20}})
        assert config == RankerConfig()
        assert changed.template == Template(max_length=180)
        assert changed.windows == Windows(size=20, stride=20)
        assert changed.changed({"windows": {"aggregate": "mean"}}).windows == Windows(
            size=20, stride=20, aggregate="mean"
        )
        assert changed.changed({"windows": None}).windows is None

    def test_a_whole_template_may_be_given(self) -> None:
        config = DR_BERT.changed({"template": Template()})
        assert config.template == Template()

    def test_a_wrong_change_is_one_line(self) -> None:
        with pytest.raises(RankwellError, match=r"^not a ranker's configuration: head: Input should be [^\n]*$"):
            RankerConfig().changed({"head": "three"})


class TestEncoderConfig:
    def test_unknown_settings_are_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps({**asdict(BASE), "model_type": "bert", "use_cache": True}))
        assert describe(tmp_path).encoder_config() == BASE
        assert BASE.head_size == 64

    @pytest.mark.parametrize("value", [0, -1, 1.5, "2", None])
    def test_sizes_are_whole_numbers_from_1_on(self, tmp_path: Path, value: object) -> None:
        (tmp_path / "config.json").write_text(json.dumps({**asdict(BASE), "num_hidden_layers": value}))
        with pytest.raises(InputError, match="num_hidden_layers is"):
            describe(tmp_path).encoder_config()


class TestTheCard:
    @staticmethod
    def front_matter(card: str) -> dict[str, object]:
        assert card.startswith("---\n")
        found = yaml.safe_load(card.split("---\n")[1])
        assert isinstance(found, dict)
        return found

    def test_front_matter_is_hugging_faces(self) -> None:
        front = self.front_matter(model_card(DR_BERT, BASE))
        assert front["library_name"] == "rankwell"
        assert front["pipeline_tag"] == "text-ranking"
        assert front["tags"] == ["rankwell", "cross-encoder", "reranker", "text-ranking", "bert", "strm"]
        assert "strm" not in str(self.front_matter(model_card(RankerConfig(), BASE)))

    def test_names_the_library_that_loads_the_folder(self) -> None:
        front = self.front_matter(model_card(RankerConfig(), BASE))
        assert front["library_name"] == "sentence-transformers"
        assert {"sentence-transformers", "cross-encoder", "text-ranking"} <= set(front["tags"])
        for beyond in ({"markers": True}, {"name": "typed"}, {"name": "twin"}):
            card = model_card(RankerConfig(template=Template(**beyond)), BASE)
            assert self.front_matter(card)["library_name"] == "rankwell"

    def test_the_hub_reads_its_figures(self) -> None:
        from huggingface_hub import ModelCard

        figures = {"RR@10 on wiki dev": 0.4201, "nDCG@10 on wiki dev": 0.5, "note": "two seeds"}
        found = ModelCard(model_card(RankerConfig(figures=figures), BASE)).data.eval_results
        read = [(result.metric_type, result.metric_value, result.dataset_name) for result in found]
        assert read == [("RR@10", 0.4201, "wiki dev"), ("nDCG@10", 0.5, "wiki dev")]
        assert {result.task_type for result in found} == {"text-ranking"}

    def test_says_how_to_publish_it(self) -> None:
        assert "`hf upload OWNER/NAME FOLDER`" in model_card(RankerConfig(), BASE)

    def test_says_what_the_model_is(self) -> None:
        card = model_card(DR_BERT, BASE)
        assert "# A DR-BERT ranker" in card
        assert "| Encoder | bert, 12 layers, width 768, 12 heads, 30,522 tokens |" in card
        assert "`[CLS] type [SEP] query [SEP] document [SEP]`" in card
        assert "at most 180 tokens, of which 64 for the query" in card
        assert "| Attention | strm: " in card
        assert "head score, pooler False" in card
        assert "size 80, stride 40, aggregate top3" in card

    @pytest.mark.parametrize(
        ("config", "name"),
        [
            (RankerConfig(), "monoBERT"),
            (RankerConfig(template=Template(markers=True)), "MarkedBERT"),
            (RankerConfig(template=Template(name="duo")), "ranker with the template duo"),
            (RankerConfig(template=Template(name="typed")), "DR-BERT"),
        ],
    )
    def test_calls_it_what_the_papers_call_it(self, config: RankerConfig, name: str) -> None:
        assert f"# A {name}" in model_card(config, BASE)

    def test_tells_training_and_figures(self) -> None:
        card = model_card(DR_BERT, BASE)
        assert "1. pre-training: epochs 5, learning_rate 1e-06\n" in card
        assert "2. listwise: negatives 5, data collection wiki, queries 1200\n" in card
        assert "| RR@10 | 0.4201 |\n| data | wiki dev |\n" in card

    def test_is_honest_where_nothing_is_known(self) -> None:
        card = model_card(RankerConfig(), BASE)
        assert "No training is recorded" in card
        assert "Nothing was measured." in card

    def test_says_what_plain_transformers_does_not_do(self) -> None:
        assert "Plain transformers" not in model_card(RankerConfig(), BASE)
        card = model_card(DR_BERT, BASE)
        assert "Plain transformers loads these weights but knows nothing of the attention rule strm" in card
        assert "markers" in model_card(RankerConfig(template=Template(markers=True)), BASE).split("## Use")[1]

    def test_its_code_runs(self, tiny_checkpoint: Path) -> None:
        for config in (RankerConfig(), DR_BERT):
            code = model_card(config, BASE).split("```python\n")[1].split("```")[0]
            assert len(code.splitlines()) == 3
            folder = f"{str(tiny_checkpoint)!r}, template={{'name': {config.template.name!r}}}"
            lines = code.replace('"this folder"', folder).splitlines()
            names: dict[str, object] = {}
            exec("\n".join([*lines[:2], f"found = {lines[2]}"]), names)
            assert len(names["found"]) == 2  # type: ignore[arg-type]

    def test_a_bar_or_a_line_end_does_not_break_its_tables(self) -> None:
        card = model_card(RankerConfig(figures={"a|b": "x\ny"}), BASE)
        assert "| a\\|b | x y |\n" in card
