"""The tokenizer of a checkpoint folder, which turns batches of texts into :class:`Pieces`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import pack_strings
from rankwell.core.errors import InputError, MissingExtraError, RankwellError
from rankwell.core.jsonfile import read_json
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.lexicon import Lexicon
from rankwell.inputs.pieces import Pieces, stem_number
from rankwell.inputs.templates import MARKER_PAIRS, SpecialTokens

_ENCODE_BATCH = 1024
# The version of what :meth:`Tokenizer.encode` returns; stored tokens of other versions are not used.
_VERSION = 1
_SPECIAL_NAMES = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "mask_token": "[MASK]",
}


def marker_names() -> list[str]:
    """``[e1] [/e1] [e2] [/e2] …``: the tokens MarkedBERT adds to a vocabulary."""
    return [name for k in range(1, MARKER_PAIRS + 1) for name in (f"[e{k}]", f"[/e{k}]")]


class Tokenizer:
    """A fast tokenizer behind a lock, because it must not be used by two threads at once."""

    def __init__(self, backend: Any, names: dict[str, str] | None = None, max_length: int | None = None):
        self._backend = backend
        self._backend.no_truncation()
        self._backend.no_padding()
        # A text that spells [SEP] or [e1] gets brackets and letters: only templates write special tokens.
        self._backend.encode_special_tokens = True
        self._names = {**_SPECIAL_NAMES, **(names or {})}
        self.max_length = max_length
        """The sequence length the checkpoint was made for, if it says so."""
        self._lock = Lock()
        self._analyzer = Analyzer.english()

    @classmethod
    def open(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of a checkpoint folder: ``tokenizer.json``, or a BERT ``vocab.txt``."""
        try:
            import tokenizers
        except ImportError:
            raise MissingExtraError("tokenizers", "models", "re-ranking") from None
        folder = Path(folder)
        settings = _read_json(folder / "tokenizer_config.json")
        if (folder / "tokenizer.json").is_file():
            try:
                backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            except Exception as error:  # the package raises nothing more precise
                raise InputError(folder / "tokenizer.json", None, f"not a tokenizer ({error})") from None
        elif (folder / "vocab.txt").is_file():
            from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

            lower = bool(settings.get("do_lower_case", True))
            backend = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=lower)._tokenizer
        else:
            raise InputError(folder, None, "no tokenizer here: expected tokenizer.json or vocab.txt")
        names = {key: _token_text(settings[key]) for key in _SPECIAL_NAMES if settings.get(key)}
        length = settings.get("model_max_length")
        # transformers writes 10^30 for "unlimited".
        return cls(backend, names, length if isinstance(length, int) and 8 <= length < 2**20 else None)

    def save(self, folder: Path, max_length: int | None = None) -> None:
        """Write ``tokenizer.json`` and what plain transformers needs beside it."""
        self._backend.save(str(folder / "tokenizer.json"))
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            # Without it, transformers leaves the segments out and scores differ.
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        }
        settings |= {key: name for key, name in self._names.items() if self.token_id(name) >= 0}
        if max_length is not None:
            settings["model_max_length"] = max_length
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

    @cached_property
    def digest(self) -> str:
        """Identifies this tokenizer's output; stored tokens are named by it."""
        return hashlib.blake2b(f"{_VERSION} {self._backend.to_str()}".encode(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def token_id(self, name: str) -> int:
        """The id of a token, -1 if it is not in the vocabulary."""
        number = self._backend.token_to_id(name)
        return -1 if number is None else int(number)

    def token_names(self, ids: Sequence[int] | NDArray[np.integer]) -> list[str]:
        """The tokens with these ids."""
        return [self._backend.id_to_token(int(number)) or "?" for number in ids]

    @property
    def pad(self) -> int:
        """The id that fills padding."""
        return max(self.token_id(self._names["pad_token"]), 0)

    @property
    def special(self) -> SpecialTokens:
        """The ids templates write."""
        cls, sep = self.token_id(self._names["cls_token"]), self.token_id(self._names["sep_token"])
        if cls < 0 or sep < 0:
            raise RankwellError(f"the vocabulary has no {self._names['cls_token']} or {self._names['sep_token']}")
        return SpecialTokens(cls, sep, self._first_marker, self._separators)

    @cached_property
    def _separators(self) -> int:
        """How many separators stand between two texts: one in BERT, two in MPNet and RoBERTa."""
        with self._lock:
            ids = self._backend.encode("", "").ids
        return max(1, int(ids.count(self.token_id(self._names["sep_token"]))) - 1)

    @cached_property
    def _first_marker(self) -> int:
        """The id of ``[e1]`` if all markers follow it in order, else -1: templates count from the first."""
        ids = [self.token_id(name) for name in marker_names()]
        return ids[0] if ids[0] >= 0 and ids == list(range(ids[0], ids[0] + len(ids))) else -1

    def add_markers(self) -> list[list[int]]:
        """Add the marker tokens; returns, for each in order, the ids of the pieces its embedding starts from.

        Empty if the vocabulary has them already.
        """
        if self._first_marker >= 0:
            return []
        from tokenizers import AddedToken

        names = marker_names()
        known = next((name for name in names if self.token_id(name) >= 0), None)
        if known is not None:
            raise RankwellError(f"the vocabulary already has the token {known}, but not all markers in order")
        pieces = [self._backend.encode(name, add_special_tokens=False).ids for name in names]
        self._backend.add_tokens([AddedToken(name, normalized=False, special=True) for name in names])
        for stale in ("digest", "_first_marker"):
            self.__dict__.pop(stale, None)
        return pieces

    def encode(self, texts: Sequence[str], *, stems: bool = False) -> Pieces:
        """Tokenize ``texts`` without special tokens; ``stems`` also finds the words that markers can match."""
        ids: list[NDArray[np.int32]] = [np.zeros(0, np.int32)]
        continues: list[NDArray[np.bool_]] = [np.zeros(0, np.bool_)]
        numbers: list[NDArray[np.int32]] = [np.zeros(0, np.int32)]
        opens: list[NDArray[np.bool_]] = [np.zeros(0, np.bool_)]
        lengths: list[int] = []
        for first in range(0, len(texts), _ENCODE_BATCH):
            batch = [_encodable(text) for text in texts[first : first + _ENCODE_BATCH]]
            with self._lock:
                encodings = self._backend.encode_batch(batch, add_special_tokens=False)
            sizes = [len(encoding.ids) for encoding in encodings]
            lengths += sizes
            ids.append(np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int32, sum(sizes)))
            words = np.fromiter(
                chain.from_iterable((-1 if w is None else w for w in e.word_ids) for e in encodings),
                np.int32,
                sum(sizes),
            )
            same = np.concatenate([[False], (words[1:] == words[:-1]) & (words[1:] >= 0)])[: len(words)]
            starts = np.cumsum([0, *sizes])[:-1]
            same[starts[starts < len(same)]] = False
            continues.append(same)
            if stems:
                begins = chain.from_iterable((begin for begin, _ in e.offsets) for e in encodings)
                stem_numbers, openings = self._match_words(
                    batch, np.array(sizes), np.fromiter(begins, np.int64, sum(sizes))
                )
                numbers.append(stem_numbers)
                opens.append(openings)
        return Pieces(
            np.concatenate(ids),
            np.concatenate(continues),
            np.cumsum(np.array(lengths, np.int64)),
            np.concatenate(numbers),
            np.concatenate(opens),
        )

    def _match_words(
        self, texts: list[str], sizes: NDArray[np.int64], begins: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """For each piece the number of its word's stem (-1 in stop words, between words), and whether it opens one.

        ``sizes`` are the texts' numbers of pieces, ``begins`` the character of its text at which each piece begins.
        """
        packed, ends = pack_strings(texts)
        spans, _ = self._analyzer.spans(packed, ends)
        forms = Lexicon(fold_case=True)
        form_of = forms.intern(packed, spans)
        with self._lock:  # an analyser's stemmer, too, must not be used by two threads at once
            terms = self._analyzer.stems(forms.strings(range(len(forms))))
        number_of = np.fromiter((-1 if term is None else stem_number(term) for term in terms), np.int32, len(terms))
        numbers = number_of[form_of]
        spans, numbers = spans[numbers >= 0], numbers[numbers >= 0]
        stems, opens = np.full(len(begins), -1, np.int32), np.zeros(len(begins), np.bool_)
        if not len(spans):
            return stems, opens
        # Bytes to characters, both counted through all texts: a byte of the form 10xxxxxx does not begin a character.
        characters = np.concatenate([[0], np.cumsum((packed & 0xC0) != 0x80)])
        words = characters[spans]
        places = begins + np.repeat(characters[np.concatenate([[0], ends[:-1]])], sizes)
        owner = np.searchsorted(words[:, 0], places, side="right") - 1
        inside = (owner >= 0) & (places < words[owner, 1])
        stems[inside] = numbers[owner[inside]]
        opens[inside] = np.diff(owner[inside], prepend=-1) != 0
        return stems, opens


def _encodable(text: str) -> str:
    """The text with question marks for lone surrogates, which JSON may contain and tokenizers refuse."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except FileNotFoundError:
        return {}
    return value if isinstance(value, dict) else {}


def _token_text(value: Any) -> str:
    """A token as transformers writes it: a string, or an object with its content."""
    return str(value.get("content", "")) if isinstance(value, dict) else str(value)
