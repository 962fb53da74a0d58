"""Language models as rankers: each scores as sentence-transformers or the publisher's own code does."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers

from rankwell import Ranker
from rankwell.core.errors import InputError, RankwellError
from rankwell.rank.cache import ScoreCache


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


@pytest.mark.parametrize(
    ("positions", "stated", "length"), [(40_960, 131_072, 8192), (4096, 131_072, 4096), (40_960, 700, 700)]
)
def test_pairs_are_as_long_as_model_and_tokenizer_allow(
    tiny_models: Any, tmp_path: Path, positions: int, stated: int, length: int
) -> None:
    folder = tiny_models.make_language_model("qwen3", tmp_path / "chat")
    for name, setting in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        settings = json.loads((folder / name).read_text())
        settings[setting] = positions if name == "config.json" else stated
        (folder / name).write_text(json.dumps(settings))
    ranker = Ranker(folder, windows=None)
    reader = ranker.reader
    assert reader.template.max_length == length
    fields = {"query": reader.encode_queries(["bees"]), "document": reader.encode(["honey " * length])}
    assert reader.lay_out(fields).sequences.lengths()[0] == pytest.approx(length, abs=2)


def test_a_pair_of_thousands_of_tokens_scores_as_in_sentence_transformers(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make_language_model("qwen3", tmp_path / "chat")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 131_072}))
    pairs = [("bees", "honey " * 1300 + "bees"), ("tea", "tea")]
    assert np.abs(Ranker(folder, windows=None).predict(pairs) - their_scores(folder, pairs)).max() < 1e-5


JUDGE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
INSTRUCT = "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
ANSWER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
EXPERT = (
    "You are a search relevance expert who evaluates how well documents match search queries. For each query-document "
    "pair, carefully analyze the semantic relationship between them, then provide your binary relevance judgment (0 "
    "for not relevant, 1 for relevant).\nRelevance:"
)
SYSTEM = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
PREDICT = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
    "prediction of either 'Yes' or 'No'."
)
NAMES = {"qwen3": "Qwen3-Reranker-0.6B", "qwen2": "mxbai-rerank-base-v2", "gemma": "bge-reranker-v2-gemma"}


class Published:
    """A folder as its publisher's code reads it: parts tokenised apart, and the logits after the last token."""

    def __init__(self, folder: Path):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def logits(self, parts: list[str]) -> Any:
        with torch.inference_mode():
            return self.model(torch.tensor([[number for part in parts for number in self.ids(part)]])).logits[0, -1]

    def answer(self, word: str) -> int:
        return self.ids(word)[0]


def test_qwen3_reranker_as_its_model_card_computes_it(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make_language_model("qwen3", tmp_path / NAMES["qwen3"], chat=False)
    published = Published(folder)
    yes, no = published.answer("yes"), published.answer("no")
    logits = [
        published.logits([JUDGE, f"{INSTRUCT}<Query>: {query}\n<Document>: {document}", ANSWER])[[no, yes]]
        for query, document in tiny_models.PAIRS
    ]
    expected = torch.stack(logits).log_softmax(dim=1)[:, 1].exp().numpy()
    ranker = Ranker(folder)
    assert np.abs(ranker.predict(tiny_models.PAIRS, activation="probability") - expected).max() < 1e-5
    differences = torch.stack(logits).diff(dim=1)[:, 0].numpy()
    assert np.abs(ranker.predict(tiny_models.PAIRS) - differences).max() < 1e-5


def test_an_instruction_takes_the_place_of_the_published_one(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make_language_model("qwen3", tmp_path / NAMES["qwen3"], chat=False)
    published, told = Published(folder), "Find what keeps bees warm"
    yes, no = published.answer("yes"), published.answer("no")
    expected = []
    for query, document in tiny_models.PAIRS:
        asked = f"<Instruct>: {told}\n<Query>: {query}\n<Document>: {document}"
        expected.append(published.logits([JUDGE, asked, ANSWER])[[no, yes]].diff().item())
    usual, ranker = Ranker(folder), Ranker(folder, instruction=told)
    assert np.abs(ranker.predict(tiny_models.PAIRS) - np.array(expected)).max() < 1e-5
    assert np.abs(ranker.predict(tiny_models.PAIRS) - usual.predict(tiny_models.PAIRS)).max() > 1e-3
    assert np.abs(copy.deepcopy(ranker).predict(tiny_models.PAIRS) - np.array(expected)).max() < 1e-5  # by its folder
    cache = ScoreCache(tmp_path / "scores.db")
    identities = {Ranker(folder, cache=cache, instruction=text).identity for text in (None, told, "Other")}
    assert len(identities) == 3
    bare = tiny_models.make("bert", tmp_path / "bare")
    with pytest.raises(RankwellError, match="instruction: the model's prompt has no place for one"):
        Ranker(bare, instruction=told)


def test_mxbai_rerank_v2_as_its_package_computes_it(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make_language_model("qwen2", tmp_path / NAMES["qwen2"], chat=False)
    published = Published(folder)
    user = f"{SYSTEM}<|im_start|>user\n"
    end = "<|im_end|>\n<|im_start|>assistant\n"
    expected = []
    for query, document in tiny_models.PAIRS:
        logits = published.logits([user, f"query: {query}", "\n", f"document: {document}", "\n", EXPERT, end])
        expected.append(float(logits[published.answer("1")] - logits[published.answer("0")]))
    assert np.std(expected) > 1e-2
    assert np.abs(Ranker(folder).predict(tiny_models.PAIRS) - np.array(expected)).max() < 1e-5


def test_bge_reranker_gemma_as_flag_embedding_computes_it(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make_language_model("gemma", tmp_path / NAMES["gemma"], chat=False)
    published = Published(folder)
    expected = []
    for query, document in tiny_models.PAIRS:
        logits = published.logits(["<bos>", f"A: {query}", "\n", f"B: {document}", "\n", PREDICT])
        expected.append(float(logits[published.answer("Yes")]))
    assert np.abs(Ranker(folder).predict(tiny_models.PAIRS) - np.array(expected)).max() < 1e-5


def test_mono_t5_as_pygaggle_computes_it(tiny_models: Any, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["jina-reranker-v3", "ctxl-rerank-v2", "zerank-2-reranker"])
def test_other_rerankers_of_a_known_type_have_other_prompts(tiny_models: Any, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="type qwen3 with no prompt for a query and a document"):
        Ranker(tiny_models.make_language_model("qwen3", tmp_path / name, chat=False))


def test_a_language_model_that_was_not_trained_to_rank_is_refused(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make_language_model("qwen3", tmp_path / "chatty", chat=False)
    with pytest.raises(InputError, match="type qwen3 with no prompt for a query and a document; add a chat_template"):
        Ranker(folder)
    template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(InputError, match="with no prompt for a query and a document"):
        Ranker(folder)


def test_qwen3_reranker_is_known_by_its_name(tiny_models: Any, tmp_path: Path) -> None:
    chat = tiny_models.make_language_model("qwen3", tmp_path / "chat")
    expected = Ranker(chat).predict(tiny_models.PAIRS)
    cached = tmp_path / "models--Qwen--Qwen3-Reranker-0.6B" / "snapshots" / "e61197e"
    tiny_models.make_language_model("qwen3", cached, chat=False)
    assert np.array_equal(Ranker(cached).predict(tiny_models.PAIRS), expected)
    # The usual chat template has no place for a query and a document, and says nothing about them.
    template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    (cached / "chat_template.jinja").write_text(template)
    assert np.array_equal(Ranker(cached).predict(tiny_models.PAIRS), expected)
    classifier = tiny_models.make("qwen3", tmp_path / "Qwen3-Reranker-0.6B-seq-cls")
    found = Ranker(classifier).predict(tiny_models.PAIRS)
    (classifier / "chat_template.jinja").write_text(tiny_models.CHAT_TEMPLATE, encoding="utf-8")
    assert np.array_equal(found, Ranker(classifier).predict(tiny_models.PAIRS))


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
