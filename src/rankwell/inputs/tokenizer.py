"""The tokenizer of a checkpoint folder, which turns batches of texts into :class:`Pieces`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import pack_strings
from rankwell.core.errors import InputError, MissingExtraError, RankwellError, one_line
from rankwell.core.manifest import read_json
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.lexicon import Lexicon
from rankwell.inputs.pieces import Pieces, stem_number
from rankwell.inputs.prompts import Frame, Prompt
from rankwell.inputs.templates import MARKER_PAIRS, SpecialTokens

if TYPE_CHECKING:
    from _thread import LockType

LONGEST_WORD = 500
"""The longest word, in characters, that a tokenizer may split; BERT's split words of up to 100."""
_ENCODE_BATCH = 1024
_FAILED = "the model's tokenizer failed on a text"
# The version of what :meth:`Tokenizer.encode` returns; stored tokens of other versions are not used.
_VERSION = 1
_WORDS_VERSION = 2  # of tokenizers whose words are found by the analyser
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

    def __init__(
        self,
        backend: Any,
        names: dict[str, str] | None = None,
        max_length: int | None = None,
        *,
        prompt: Prompt | None = None,
        lock: LockType | None = None,
    ):
        """``lock`` is that of another tokenizer with this backend."""
        self._backend = backend
        if lock is None:
            self._backend.no_truncation()
            self._backend.no_padding()
            # A text that spells [SEP] or [e1] gets brackets and letters: only templates write special tokens.
            self._backend.encode_special_tokens = True
        self._names = {**_SPECIAL_NAMES, **(names or {})}
        self.max_length = max_length
        """The sequence length the checkpoint was made for, if it says so."""
        self._lock = lock or Lock()
        self._analyzer = Analyzer.english()
        self.prompt = prompt
        """What a language model reads around query and document."""

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
            path = folder / "tokenizer.json"
            with _native_errors(lambda error: InputError(path, None, f"not a tokenizer ({error})")):
                backend = tokenizers.Tokenizer.from_file(str(path))
            # The time to split a word grows with the cube of its length.
            limit = getattr(backend.model, "max_input_chars_per_word", 0)
            if limit > LONGEST_WORD:
                raise InputError(path, None, f"max_input_chars_per_word is {limit:,}; expected at most {LONGEST_WORD}")
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
        # Not by its own ``save``, whose error on a full disk is no OSError.
        (folder / "tokenizer.json").write_text(self._backend.to_str(pretty=True), encoding="utf-8")
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
        before = self.prompt.before_document if self.prompt is not None else ""
        version = _VERSION if self._gives_words else _WORDS_VERSION
        return hashlib.blake2b(f"{version}{before} {self._backend.to_str()}".encode(), digest_size=8).hexdigest()

    @cached_property
    def _gives_words(self) -> bool:
        """Whether the tokenizer's own words are those of BERT: runs of letters and digits, single marks and ideographs.

        In others a word may include the marks around it, or there are no words at all; the analyser finds them there.
        """
        with self._lock:
            words = self._backend.encode("a b, 東京", add_special_tokens=False).word_ids
        return len(set(words)) == 5

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
        if self.frame is not None:
            return SpecialTokens(0, 0, -1, between=0)  # the frame takes their places
        if cls < 0 or sep < 0:
            raise RankwellError(f"the vocabulary has no {self._names['cls_token']} or {self._names['sep_token']}")
        return SpecialTokens(cls, sep, self._first_marker, self._separators)

    @cached_property
    def frame(self) -> Frame | None:
        """The tokens around a sequence of a language model: those of its prompt, or those that the tokenizer adds.

        None for encoders: templates write their ``[CLS]`` and ``[SEP]``.
        """
        if self.prompt is not None:
            return Frame(self.literal(self.prompt.before_all), self.literal(self.prompt.back))
        if all(self.token_id(self._names[name]) >= 0 for name in ("cls_token", "sep_token")):
            return None
        with self._lock:
            bare, whole = (self._backend.encode("a", add_special_tokens=add).ids for add in (False, True))
        begin = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
        front, back = whole[:begin], whole[begin + len(bare) :]
        return Frame(np.array(front, np.int32), np.array(back, np.int32), self.pad)

    def asking(self, instruction: str) -> Tokenizer:
        """The same tokenizer with another instruction in its prompt, which has one."""
        assert self.prompt is not None
        prompt = self.prompt.asking(instruction)
        return Tokenizer(self._backend, self._names, self.max_length, prompt=prompt, lock=self._lock)

    def literal(self, text: str) -> NDArray[np.int32]:
        """The ids of a part of a prompt, in which special tokens are spelled out."""
        with self._lock:
            self._backend.encode_special_tokens = False
            try:
                return np.array(self._backend.encode(text, add_special_tokens=False).ids, np.int32)
            finally:
                self._backend.encode_special_tokens = True

    def encode_queries(self, queries: Sequence[str], most: int) -> tuple[Pieces, int]:
        """A prompt's queries and what follows them as pieces, and the number of tokens that were left out.

        ``most`` is the maximum number of tokens of a query itself.
        """
        assert self.prompt is not None
        joined, after = self.prompt.joined, self.literal(self.prompt.after_query)
        suffix = self.prompt.after_query if joined else ""
        pieces = self.encode_plain([self.prompt.before_query + query + suffix for query in queries])
        rows, cut = [], 0
        for row, length in enumerate(pieces.lengths().tolist()):
            ids = pieces.ids[pieces.begins[row] : pieces.ends[row]]
            room = most + len(after) if joined else most
            cut += max(length - room, 0)
            if length > room:
                ids = np.concatenate([ids[:most], after])
            elif not joined:
                ids = np.concatenate([ids, after])
            rows.append(ids)
        whole = np.concatenate([*rows, np.zeros(0, np.int32)])
        ends = np.cumsum([len(ids) for ids in rows], dtype=np.int64)
        return Pieces.plain(whole, np.zeros(len(whole), np.bool_), ends), cut

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
        with suppress(AttributeError):  # known from before
            del self._first_marker
        with suppress(AttributeError):
            del self.digest
        return pieces

    def encode(self, texts: Sequence[str], *, stems: bool = False) -> Pieces:
        """Tokenize ``texts`` without special tokens; ``stems`` also finds the words that markers can match.

        A prompt's documents are tokenised with what stands before them.
        """
        if self.prompt is not None and self.prompt.before_document:
            texts = [self.prompt.before_document + text for text in texts]
        return self.encode_plain(texts, stems=stems)

    def encode_plain(self, texts: Sequence[str], *, stems: bool = False) -> Pieces:
        """Like :meth:`encode`, whatever the prompt."""
        ids: list[NDArray[np.int32]] = [np.zeros(0, np.int32)]
        continues: list[NDArray[np.bool_]] = [np.zeros(0, np.bool_)]
        numbers: list[NDArray[np.int32]] = [np.zeros(0, np.int32)]
        opens: list[NDArray[np.bool_]] = [np.zeros(0, np.bool_)]
        lengths: list[int] = []
        for first in range(0, len(texts), _ENCODE_BATCH):
            batch = [_encodable(text) for text in texts[first : first + _ENCODE_BATCH]]
            with self._lock, _native_errors(lambda error: RankwellError(f"{_FAILED} ({error})")):
                encodings = self._backend.encode_batch(batch, add_special_tokens=False)
            sizes = [len(encoding.ids) for encoding in encodings]
            lengths += sizes
            ids.append(np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int32, sum(sizes)))
            starts = np.cumsum([0, *sizes])[:-1]
            if self._gives_words:
                words = np.fromiter(
                    chain.from_iterable((-1 if w is None else w for w in e.word_ids) for e in encodings),
                    np.int32,
                    sum(sizes),
                )
            begins = np.zeros(0, np.int64)
            if stems or not self._gives_words:
                begins = np.fromiter(
                    chain.from_iterable((begin for begin, _ in e.offsets) for e in encodings), np.int64, sum(sizes)
                )
                packed, spans, owner, inside = self._locate(batch, np.array(sizes), begins)
                if not self._gives_words:
                    words = np.where(inside, owner, -1)
            same = np.concatenate([[False], (words[1:] == words[:-1]) & (words[1:] >= 0)])[: len(words)]
            same[starts[starts < len(same)]] = False
            continues.append(same)
            if stems:
                stem_numbers, openings = self._match_words(packed, spans, owner, inside)
                numbers.append(stem_numbers)
                opens.append(openings)
        return Pieces(
            np.concatenate(ids),
            np.concatenate(continues),
            np.cumsum(np.array(lengths, np.int64)),
            np.concatenate(numbers),
            np.concatenate(opens),
        )

    def _locate(
        self, texts: list[str], sizes: NDArray[np.int64], begins: NDArray[np.int64]
    ) -> tuple[NDArray[Any], ...]:
        """The words of texts, as bytes and spans (W, 2) of them; each piece's word (T,), and whether it is inside it.

        ``sizes`` are the texts' numbers of pieces, ``begins`` the character of its text at which each piece begins.
        """
        packed, ends = pack_strings(texts)
        spans, _ = self._analyzer.spans(packed, ends)
        # Bytes to characters, both counted through all texts: a byte of the form 10xxxxxx does not begin a character.
        characters = np.concatenate([[0], np.cumsum((packed & 0xC0) != 0x80)])
        words = characters[spans]
        places = begins + np.repeat(characters[np.concatenate([[0], ends[:-1]])], sizes)
        # A piece that begins with the space before a word belongs to the word.
        spaces = np.append(packed[np.flatnonzero((packed & 0xC0) != 0x80)] == ord(" "), False)
        places = places + spaces[np.minimum(places, len(spaces) - 1)]
        if not len(words):
            return packed, spans, np.zeros(len(places), np.int64), np.zeros(len(places), np.bool_)
        owner = np.searchsorted(words[:, 0], places, side="right") - 1
        return packed, spans, owner, (owner >= 0) & (places < words[owner, 1])

    def _match_words(
        self,
        packed: NDArray[np.uint8],
        spans: NDArray[np.int64],
        owner: NDArray[np.int64],
        inside: NDArray[np.bool_],
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """For each piece the number of its word's stem (-1 in stop words, between words), and whether it opens one."""
        stems, opens = np.full(len(owner), -1, np.int32), np.zeros(len(owner), np.bool_)
        if not len(spans):
            return stems, opens
        forms = Lexicon(fold_case=True)
        form_of = forms.intern(packed, spans)
        with self._lock:  # an analyser's stemmer, too, must not be used by two threads at once
            terms = self._analyzer.stems(forms.strings(range(len(forms))))
        number_of = np.fromiter((-1 if term is None else stem_number(term) for term in terms), np.int32, len(terms))
        numbers = number_of[form_of]
        known = inside & (numbers[np.maximum(owner, 0)] >= 0)
        stems[known] = numbers[owner[known]]
        opens[known] = np.diff(owner[known], prepend=-1) != 0
        return stems, opens


@contextmanager
def _native_errors(told: Callable[[str], RankwellError]) -> Iterator[None]:
    """Raise what is ``told`` of an error of the package tokenizers, which comes in one line."""
    try:
        yield
    except BaseException as error:
        # A panic, as of a regular expression that backtracks too often, is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise told(one_line(error)) from None


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
