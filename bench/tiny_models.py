"""Tiny random checkpoints of every family of models, as transformers and sentence-transformers save them.

    make("xlm-roberta", folder)                a cross-encoder of one score
    make("xlm-roberta", folder, labels=None)   the bare encoder
    make_bi_encoder("mpnet", folder, pooling="mean")

Two layers of width 32 with wide weights, so that scores differ; tokenizers of each family's kind, trained on the
bundled sample and a few sentences in other languages. Tests and ``bench/model_table.py`` use them.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
WIDE = {"initializer_range": 0.15}
VOCABULARY = 700
SENTENCES = [
    "Die Bienen halten sich im Winter warm, indem sie eine Traube bilden.",
    "Wie viele Bienen leben in einem Bienenstock?",
    "Les abeilles gardent la ruche au chaud pendant l'hiver.",
    "Combien coûte une assurance automobile à Paris ?",
    "蜜蜂在冬天聚集成团来保持温暖。",
    "北京是中国的首都，人口众多。",
    "ミツバチは冬の間、群れを作って暖かさを保ちます。",
    "東京タワーはどこにありますか。",
]
PAIRS = [
    ("how do bees keep warm?", "The cluster of bees shivers, which keeps the hive warm in winter."),
    ("what is the cost of car insurance", "Insurance costs more in the city; ask the company for a price."),
    ("Wie viele Bienen leben im Stock?", "Die Bienen halten sich im Winter warm."),
    ("Combien coûte une assurance ?", "Les abeilles gardent la ruche au chaud pendant l'hiver."),
    ("北京在哪里", "北京是中国的首都，人口众多。"),
    ("東京タワー", "東京タワーはどこにありますか。ミツバチは冬の間、群れを作ります。"),
    ("insouciantly", "Numerically bogus: e-mail, U.S. and 3,14 (100 %)!"),
    ("tea", "Tea"),
]
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {"tokenizer": "wordpiece", **SIZES, **WIDE},
    "electra": {"tokenizer": "wordpiece", **SIZES, **WIDE, "embedding_size": 32},
    "roberta": {"tokenizer": "bytes", **SIZES, **WIDE, "max_position_embeddings": 514, "type_vocab_size": 1},
    "xlm-roberta": {"tokenizer": "unigram", **SIZES, **WIDE, "max_position_embeddings": 514, "type_vocab_size": 1},
    "camembert": {"tokenizer": "unigram", **SIZES, **WIDE, "max_position_embeddings": 514, "type_vocab_size": 1},
    "distilbert": {"tokenizer": "wordpiece", "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, **WIDE},
    "mpnet": {"tokenizer": "wordpiece-pairs", **SIZES, **WIDE, "max_position_embeddings": 514},
    "albert": {"tokenizer": "unigram-cls", **SIZES, **WIDE, "embedding_size": 16},
    "deberta-v2": {
        "tokenizer": "unigram-cls",
        **SIZES,
        **WIDE,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 16,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "type_vocab_size": 0,
        "position_biased_input": False,
        "max_relative_positions": -1,
    },
    "modernbert": {
        "tokenizer": "bytes-cls",
        **SIZES,
        **WIDE,
        "num_hidden_layers": 4,
        "local_attention": 8,
        "global_attn_every_n_layers": 3,
        "classifier_pooling": "mean",
        "max_position_embeddings": 1024,
    },
}
"""Encoders by model type: the tokenizer's kind, and the settings of the configuration."""
OWN = ("bert", "electra", "roberta", "xlm-roberta", "camembert", "modernbert")
"""Those that rankwell computes itself; ModernBERT in inference only."""
DECODERS: dict[str, dict[str, Any]] = {
    "qwen3": {"tokenizer": "bytes-chat", **SIZES, **WIDE, "num_key_value_heads": 2, "head_dim": 8},
    "qwen2": {"tokenizer": "bytes-chat", **SIZES, **WIDE, "num_key_value_heads": 2},
    "gemma": {"tokenizer": "sentencepiece", **SIZES, **WIDE, "num_key_value_heads": 2, "head_dim": 8},
}
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen's tokenizers split a text: transformers does so for the type, whatever the folder says."""
CHAT_TEMPLATE = (
    "{%- set given = messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first -%}"
    "{%- set usual = 'Given a web search query, retrieve relevant passages that answer the query' -%}"
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {{ given or usual }}\n"
    "<Query>: {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n"
    "<Document>: {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>{{ '\\n\\n' }}"
)


def corpus() -> list[str]:
    """Texts of the bundled sample and of other languages."""
    from rankwell.sample import FOLDER

    lines = (FOLDER / "collection.tsv").read_text(encoding="utf-8").splitlines()
    return [line.partition("\t")[2] for line in lines[:300]] + SENTENCES * 20


@cache
def _tokenizer(kind: str) -> Any:
    import tokenizers

    transformers: Any = import_module("transformers")
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

    texts = corpus()
    family, _, form = kind.partition("-")
    classic = family == "wordpiece" or form == "cls"
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    if not classic:
        names = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>"}
    if form == "chat":
        names = {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    if family in ("sentencepiece", "t5"):
        names = {"pad_token": "<pad>", "eos_token": "</s>" if family == "t5" else "<eos>", "unk_token": "<unk>"}
        names |= {} if family == "t5" else {"bos_token": "<bos>"}
    # RoBERTa's padding has the id 1, which its positions are counted from.
    order = ["<s>", "<pad>", "</s>", "<unk>"] if names.get("cls_token") == "<s>" else list(names.values())
    special: dict[str, Any] = {"special_tokens": order, "vocab_size": VOCABULARY, "show_progress": False}
    if family == "wordpiece":
        made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.train_from_iterator(texts, trainers.WordPieceTrainer(**special, continuing_subword_prefix="##"))
    elif family == "bytes":
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if form == "chat":
            split = pre_tokenizers.Split(tokenizers.Regex(QWEN_WORDS), "isolated")
            bare = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            made.pre_tokenizer = pre_tokenizers.Sequence([split, bare])
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        words = ["yes"] * 500 + ["no"] * 500
        made.train_from_iterator([*texts, *words], trainers.BpeTrainer(**special, initial_alphabet=alphabet))
        if form == "chat":
            made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    elif family == "sentencepiece":  # as Gemma: no words before the pieces
        made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
        made.normalizer = normalizers.Replace(" ", "▁")
        made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
        made.train_from_iterator([*texts, *["Yes No"] * 500], trainers.BpeTrainer(**special))
        made.pre_tokenizer = None
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    else:  # unigram, t5
        made = tokenizers.Tokenizer(models.Unigram())
        one_space = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
        made.normalizer = normalizers.Sequence([normalizers.NFKC(), one_space])
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Metaspace()
        made.train_from_iterator(texts, trainers.UnigramTrainer(**special, unk_token=names["unk_token"]))
    if family == "t5":
        made.add_tokens(["▁true", "▁false"])
    made.post_processor = _post_processor(processors, made, family, form, classic, names)
    segments = ["token_type_ids"] if kind in ("wordpiece", "unigram-cls") else []
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=512,
        model_input_names=["input_ids", *segments, "attention_mask"],
        padding_side="left" if form == "chat" or family == "sentencepiece" else "right",
        **names,
    )


def _post_processor(processors: Any, made: Any, family: str, form: str, classic: bool, names: dict[str, str]) -> Any:
    def template(single: str, pair: str) -> Any:
        used = {token for token in f"{single} {pair}".replace(":0", "").replace(":1", "").split() if token[0] in "[<"}
        ids = [(token, made.token_to_id(token)) for token in sorted(used)]
        return processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)

    if form == "chat":
        return processors.ByteLevel(trim_offsets=False)
    if family == "sentencepiece":
        return template("<bos> $A", "<bos> $A <bos>:1 $B:1")
    if family == "t5":
        return template("$A </s>", "$A </s> $B:1 </s>:1")
    if form == "pairs":  # MPNet: two separators
        return template("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B:1 [SEP]:1")
    if classic:
        return template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    return template("<s> $A </s>", "<s> $A </s> </s> $B:1 </s>:1")


def _config(kind: str, settings: dict[str, Any], tokenizer: Any, **more: Any) -> Any:
    transformers: Any = import_module("transformers")

    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if kind == "modernbert":
        ids |= {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
    settings = {name: value for name, value in settings.items() if name != "tokenizer"}
    return transformers.AutoConfig.for_model(kind, vocab_size=len(tokenizer), **{**settings, **ids, **more})


def make(kind: str, folder: Path, *, labels: int | None = 1, seed: int = 5, **changes: Any) -> Path:
    """Save a random classifier of an encoder's type, or without ``labels`` the encoder alone."""
    import torch

    transformers: Any = import_module("transformers")

    settings = ENCODERS.get(kind) or DECODERS[kind]
    tokenizer = _tokenizer(settings["tokenizer"])
    torch.manual_seed(seed)
    config = _config(kind, settings, tokenizer, **changes)
    if labels is None:
        model = transformers.AutoModel.from_config(config)
    else:
        config.num_labels = labels
        model = transformers.AutoModelForSequenceClassification.from_config(config)
    _shake(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _shake(model: Any) -> None:
    """Give biases and norms other values than 0 and 1, so that a forgotten one shows."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif "classifier" in name or "score" in name:
                parameter.mul_(3)


def make_language_model(kind: str, folder: Path, *, chat: bool = True, seed: int = 5) -> Path:
    """Save a random causal language model; with ``chat`` its template has a place for query and document."""
    import torch

    transformers: Any = import_module("transformers")

    tokenizer = _tokenizer(DECODERS[kind]["tokenizer"])
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(_config(kind, DECODERS[kind], tokenizer))
    _shake(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if chat:
        (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return folder


def make_mono_t5(folder: Path, *, seed: int = 5) -> Path:
    """Save a random T5, as monoT5 is saved."""
    import torch

    transformers: Any = import_module("transformers")

    tokenizer = _tokenizer("t5")
    torch.manual_seed(seed)
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_factor=1.0,
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_modular(kind: str, folder: Path, *, pooling: str = "mean", norm: bool = False) -> Path:
    """Save a CrossEncoder of the modules Transformer, Pooling, Dense, (LayerNorm,) Dense, as Ettin's rerankers are."""
    import torch
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling

    start = make(kind, folder.with_name(f"{folder.name}-start"), labels=None)
    torch.manual_seed(7)
    inner = Dense(32, 48, activation_function=torch.nn.GELU())
    outer = Dense(48, 1, activation_function=None, module_output_name="scores")
    modules = [Transformer(str(start)), Pooling(32, pooling_mode=pooling), inner]
    modules += [LayerNorm(48)] if norm else []
    CrossEncoder(modules=[*modules, outer], device="cpu").save_pretrained(str(folder))
    return folder


def make_bi_encoder(
    kind: str,
    folder: Path,
    *,
    pooling: str = "mean",
    normalize: bool = True,
    similarity: Any = "cosine",
    dense: int | None = None,
    truncate: int | None = None,
    prompts: dict[str, str] | None = None,
) -> Path:
    """Save a SentenceTransformer."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    start = make(kind, folder.with_name(f"{folder.name}-start"), labels=None)
    torch.manual_seed(7)
    modules: list[Any] = [Transformer(str(start)), Pooling(32, pooling_mode=pooling)]
    modules += [Dense(32, dense)] if dense else []
    modules += [Normalize()] if normalize else []
    model = SentenceTransformer(
        modules=modules, device="cpu", similarity_fn_name=similarity, truncate_dim=truncate, prompts=prompts
    )
    model.save_pretrained(str(folder))
    if truncate is not None:  # recorded by hand: some versions do not save it
        path = folder / "config_sentence_transformers.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "truncate_dim": truncate}))
    return folder
