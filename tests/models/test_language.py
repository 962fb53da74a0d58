"""Language models as rankers: each scores as sentence-transformers or the publisher's own code does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")
transformers = pytest.importorskip("transformers")

from rankwell import Ranker  # noqa: E402
from rankwell.core.errors import InputError  # noqa: E402


def their_scores(folder: Path, pairs: list[tuple[str, str]]) -> Any:
    model = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    return model.predict(pairs, activation_fn=torch.nn.Identity())


@pytest.mark.parametrize("kind", ["qwen3", "qwen2"])
def test_a_chat_template_with_places_for_query_and_document(tiny_models: Any, tmp_path: Path, kind: str) -> None:
    folder = tiny_models.make_language_model(kind, tmp_path / "chat")
    found = Ranker(folder).predict(tiny_models.PAIRS)
    expected = their_scores(folder, tiny_models.PAIRS)
    assert np.abs(found - expected).max() < 1e-5
    assert expected.std() > 1e-2


def test_saved_with_a_module_logit_score_and_a_default_prompt(tiny_models: Any, tmp_path: Path) -> None:
    start = tiny_models.make_language_model("qwen3", tmp_path / "start")
    prompts = {"prompts": {"web": "Find passages about bees"}, "default_prompt_name": "web"}
    sentence_transformers.CrossEncoder(str(start), device="cpu", **prompts).save_pretrained(str(tmp_path / "saved"))
    expected = their_scores(tmp_path / "saved", tiny_models.PAIRS)
    assert np.abs(Ranker(tmp_path / "saved").predict(tiny_models.PAIRS) - expected).max() < 1e-5
    assert np.abs(Ranker(start).predict(tiny_models.PAIRS) - expected).max() > 1e-3


def test_the_classifier_form_with_a_chat_template_and_without(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make("qwen3", tmp_path / "classifier")
    plain = Ranker(folder).predict(tiny_models.PAIRS)
    assert np.abs(plain - their_scores(folder, tiny_models.PAIRS)).max() < 1e-5
    (folder / "chat_template.jinja").write_text(tiny_models.CHAT_TEMPLATE, encoding="utf-8")
    found = Ranker(folder).predict(tiny_models.PAIRS)
    assert np.abs(found - their_scores(folder, tiny_models.PAIRS)).max() < 1e-5
    assert np.abs(found - plain).max() > 1e-3


def test_bge_reranker_gemma_s_own_prompt(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make_language_model("gemma", tmp_path / "bge-reranker-v2-gemma", chat=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    prompt = (
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
        "prediction of either 'Yes' or 'No'."
    )
    expected = []
    for query, document in tiny_models.PAIRS:
        line = ids("\n")
        whole = [tokenizer.bos_token_id, *ids(f"A: {query}"), *line, *ids(f"B: {document}"), *line, *ids(prompt)]
        with torch.inference_mode():
            expected.append(float(model(torch.tensor([whole])).logits[0, -1, ids("Yes")[0]]))
    assert np.abs(Ranker(folder).predict(tiny_models.PAIRS) - np.array(expected)).max() < 1e-5


def test_mono_t5_s_own_prompt(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make_mono_t5(tmp_path / "monot5-tiny")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    answers = [tokenizer.convert_tokens_to_ids(word) for word in ("▁false", "▁true")]
    expected = []
    for query, document in tiny_models.PAIRS:
        batch = tokenizer(f"Query: {query} Document: {document} Relevant:", return_tensors="pt")
        batch.pop("token_type_ids", None)
        start = torch.tensor([[model.config.decoder_start_token_id]])
        with torch.inference_mode():
            logits = model(**batch, decoder_input_ids=start).logits[0, 0, answers]
        expected.append(float(logits.log_softmax(dim=0)[1]))
    assert np.abs(Ranker(folder).predict(tiny_models.PAIRS) - np.array(expected)).max() < 1e-5


def test_a_language_model_that_was_not_trained_to_rank_is_refused(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make_language_model("qwen3", tmp_path / "chatty", chat=False)
    with pytest.raises(InputError, match="type qwen3 with no prompt for a query and a document; add a chat_template"):
        Ranker(folder)
    template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(InputError, match="with no prompt for a query and a document"):
        Ranker(folder)


def test_qwen3_reranker_s_prompt_is_known_by_its_name(tiny_models: Any, tmp_path: Path) -> None:
    chat = tiny_models.make_language_model("qwen3", tmp_path / "chat")
    named = tiny_models.make_language_model("qwen3", tmp_path / "Qwen3-Reranker-0.6B", chat=False)
    assert np.array_equal(Ranker(named).predict(tiny_models.PAIRS), Ranker(chat).predict(tiny_models.PAIRS))


def test_long_documents_and_queries_keep_the_prompt(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make_language_model("qwen3", tmp_path / "chat")
    long = "The cluster of bees shivers in winter. " * 60
    ranker = Ranker(folder, max_length=256, windows=None)
    tokens = ranker.reader.lay_out(
        {"query": ranker.reader.encode_queries(["bees"]), "document": ranker.reader.encode([long])}
    )
    names = "".join(ranker.tokenizer.token_names(tokens.sequences.tokens))
    assert len(tokens.sequences.tokens) == 256
    assert names.startswith("<|im_start|>system")
    assert names.endswith("</think>ĊĊ")
    assert ranker.truncation.pieces_cut["document"] > 0
    assert np.isfinite(Ranker(folder, max_length=256).predict([("bees", long), ("bees " * 500, "tea")])).all()
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3"
