"""Bi-encoders: texts as vectors whose product is the similarity of two texts.

A sentence-transformers folder is read as it is: an encoder, the mean of its tokens' states (or the state of the first
or last), normalised to length 1 unless the folder compares vectors by their dot product. The texts of a collection are
encoded once and compared with any query. Some models were trained with a prompt before each query ("query: "), each
document or both, and rank worse without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rankwell.core.errors import RankwellError, name_instead
from rankwell.core.manifest import digest
from rankwell.inputs.batching import Sequences, row_blocks
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import Reader
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.batch import Batch, Placer
from rankwell.models.bi_encoder_modules import Modules, read_base, read_length, read_modules, read_prompts
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.folders import load_encoder
from rankwell.models.checkpoints.names import encoder_digest, find_model
from rankwell.models.compute import CPU_BUDGET, Compute
from rankwell.models.devices import AGREEMENT, DTypeName, Precision, chosen_device, resolve
from rankwell.models.encoder import Encoder
from rankwell.models.foreign import ForeignEncoder
from rankwell.models.int8 import int8_lacks
from rankwell.models.late_interaction import LateInteraction, read_late_interaction
from rankwell.models.layout import Layout
from rankwell.models.pooling import pool_states
from rankwell.models.vector_layers import Dense

TEXTS_AT_A_TIME = 8192
PIECES_AT_A_TIME = 1 << 22
DEFAULT_LENGTH = 256
_INSTRUCTION = re.compile(r"(?<=Instruct: ).+(?=\nQuery:)|(?<=<instruct>).+(?=\n<query>)", re.DOTALL)
"""The instruction in the query prompt of Qwen3-Embedding, E5 for instructions and others, and in that of BGE."""

Vectors = NDArray[np.float32]
WordCode = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Makes codes (T, B) of word vectors (T, W), the vectors of their texts (N, H) and the text of each word (T,)."""


class BiEncoder:
    """Computes vectors of texts.

    >>> encoder = BiEncoder.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")    # doctest: +SKIP
    >>> queries = encoder.encode_queries(["how do bees keep warm"])                      # doctest: +SKIP
    >>> queries @ encoder.encode_documents(["The cluster shivers.", "Tea."]).T           # doctest: +SKIP

    ===================  ===============================================================================================
    ``modules``          what follows the encoder: the mean over all tokens, ``[CLS]`` and ``[SEP]`` among them, or the
                         first; then dense layers, if there are any
    ``max_length``       maximum tokens of a text; longer ones are truncated and counted by ``reader``
    ``query_prompt``     put before each query
    ``document_prompt``  put before each document
    ``device``           default: a GPU if there is one
    ``precision``        of the computation (:func:`~rankwell.models.devices.resolve`); vectors are always fp32
    ``budget``           tokens computed at a time (see :class:`~rankwell.models.compute.Compute`)
    ``name``             identifies what makes an exact vector of a document; see :attr:`name`
    ``base_name``        the name that it would have without dense layers
    ``late``             how an encoder that was trained for late interaction reads texts and makes word vectors
    ``compute``          what computes, if that is shared with another; then device, precision and budget are its own
    ===================  ===============================================================================================
    """

    if not TYPE_CHECKING:
        __getattr__ = name_instead(encode="encode_queries(texts) and encode_documents(texts) make vectors")

    def __init__(
        self,
        encoder: Encoder | ForeignEncoder,
        tokenizer: Tokenizer = None,  # type: ignore[assignment]  # so that a name alone gets a helpful error
        *,
        modules: Modules | None = None,
        max_length: int = DEFAULT_LENGTH,
        query_prompt: str = "",
        document_prompt: str = "",
        device: str | None = None,
        precision: Precision | DTypeName = "auto",
        budget: int | None = None,
        name: str = "",
        base_name: str = "",
        late: LateInteraction | None = None,
        compute: Compute | None = None,
    ):
        if isinstance(encoder, str | Path):
            raise RankwellError(f"BiEncoder.from_pretrained({str(encoder)!r}) opens a model")
        self.encoder = encoder.requires_grad_(False)
        self._compute = compute or Compute(
            encoder,
            encoder,
            device=device,
            dtype=resolve(precision, "encode", chosen_device(device)),
            budget=budget,
            cpu_budget=2 * CPU_BUDGET,
        )
        self.device = self._compute.device
        self.tokenizer = tokenizer
        self.modules = modules or Modules()
        self.reader = Reader.of_texts(tokenizer, max_length, segments=encoder.config.type_vocab_size)
        query_length = max_length if late is None else late.query_length
        self._query_reader = Reader.of_texts(tokenizer, query_length, segments=encoder.config.type_vocab_size)
        self.late, self.query_prompt, self.document_prompt = late, query_prompt, document_prompt
        for prompt in filter(None, (query_prompt, document_prompt)):
            self._check_room(prompt)
        self.exact_name, self._base_name = name, base_name

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        max_length: int | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        device: str | None = None,
        precision: Precision | DTypeName = "auto",
        budget: int | None = None,
        trust_remote_code: bool = False,
    ) -> BiEncoder:
        """Load a bi-encoder from a folder, a package or the hub (``checkpoints/names.py``).

        Pooling, length and prompts are those the folder records; by default vectors are means. Pass prompts for a
        folder that records none, or ``""`` to use none. Code that comes with a model runs only with
        ``trust_remote_code``.
        """
        folder = find_model(folder, code=trust_remote_code)
        checkpoint = describe(folder)
        if not checkpoint.has_vectors:
            raise RankwellError(f"{folder} is a cross-encoder, which has no vectors to compare")
        encoder, tensors, tokenizer = load_encoder(folder, causal=True, trust_remote_code=trust_remote_code)
        late = read_late_interaction(checkpoint, tensors, tokenizer)
        prompts = read_prompts(checkpoint) if late is None else late.prompts
        query_prompt = prompts[0] if query_prompt is None else query_prompt
        document_prompt = prompts[1] if document_prompt is None else document_prompt
        known = encoder.config.max_position_embeddings
        if late is None:
            prompted = bool(query_prompt or document_prompt)
            modules, recorded = (
                read_modules(checkpoint, encoder.config.hidden_size, prompted=prompted),
                read_length(folder),
            )
        else:  # a text has no vector but the mean of those of its words
            modules, recorded = Modules("mean", False, late.layers, late.layers), late.document_length
        length = min(max_length or recorded or tokenizer.max_length or DEFAULT_LENGTH, known)
        base_name = read_base(checkpoint) or digest([encoder_digest(folder), modules.pooling, length, document_prompt])
        if (most := modules.truncate) is not None or modules.similarity != "cosine":
            base_name = digest([base_name, most, modules.similarity, modules.unit])
        if late is not None:
            base_name = digest([base_name, late.skipped.tolist()])
        layers = [layer.name for layer in modules.document]

        def agrees() -> bool:
            return int8_lacks(encoder) is None and AGREEMENT["int8"](folder, "encode", similarities)

        def similarities(dtype: DTypeName, queries: Sequence[str], documents: Sequence[str]) -> Vectors:
            made: BiEncoder = opened(precision=dtype)
            products: Vectors = made.encode_queries(queries) * made.encode_documents(documents)
            return products @ np.ones(made.width, np.float32)

        opened = partial(
            cls,
            encoder,
            tokenizer,
            modules=modules,
            max_length=length,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            device=device,
            budget=budget,
            name=digest([base_name, modules.normalised, *layers]) if layers else base_name,
            base_name=base_name,
            late=late,
        )
        return opened(precision=resolve(precision, "encode", chosen_device(device), agrees))

    @property
    def width(self) -> int:
        """H, the number of dimensions."""
        layers = self.modules.document
        width = len(layers[-1].weight) if layers else self.encoder.config.hidden_size
        return min(width, self.modules.truncate or width)

    @property
    def word_width(self) -> int:
        """W, the number of dimensions of a word vector."""
        layers = () if self.late is None else self.late.layers
        return len(layers[-1].weight) if layers else int(self.encoder.config.hidden_size)

    @property
    def base(self) -> BiEncoder | None:
        """The same encoder without dense layers, if this one's layers can be applied to its vectors.

        :meth:`map_documents` then makes this encoder's vectors of documents from those of the base.
        """
        modules = self.modules
        if not modules.document or not modules.normalised or modules.truncate is not None or not modules.unit:
            return None
        return BiEncoder(
            self.encoder,
            self.tokenizer,
            modules=Modules(modules.pooling),
            max_length=self.reader.template.max_length,
            query_prompt=self.query_prompt,
            document_prompt=self.document_prompt,
            name=self._base_name,
            late=self.late,
            compute=self._compute,
        )

    def map_documents(self, vectors: NDArray[np.floating]) -> Vectors:
        """The vectors of documents from those of :attr:`base`."""
        return self._map(torch.from_numpy(np.asarray(vectors, np.float32)), self.modules.document).numpy()

    def _map(self, vectors: Tensor, layers: Sequence[Dense]) -> Tensor:
        for layer in layers:
            vectors = layer(vectors)
        changed = layers or not self.modules.normalised or self.modules.truncate is not None
        return self.modules.finish(vectors) if changed else vectors

    @property
    def precision(self) -> str:
        """The precision in use."""
        return self._compute.precision

    @property
    def name(self) -> str:
        """Identifies what makes a document's vector; stored vectors are named by it. Those in int8 are others than the
        exact ones; those in 16 bits are taken to be equal.
        """
        return f"{self.exact_name}-int8" if self.exact_name and self.precision == "int8" else self.exact_name

    @property
    def takes_instruction(self) -> bool:
        """Whether the prompt of queries has an instruction."""
        return _INSTRUCTION.search(self.query_prompt) is not None

    def check_instruction(self, instruction: str) -> None:
        """Raise unless the prompt of queries has a place for an instruction, and for one of this length."""
        self._check_room(self._prompt(instruction))

    def _prompt(self, instruction: str | None) -> str:
        """The prompt of queries, with another instruction if one is given."""
        if instruction is None:
            return self.query_prompt
        if not self.takes_instruction:
            raise RankwellError("instruction: the model's prompt of queries has no place for one")
        return _INSTRUCTION.sub(lambda _: instruction, self.query_prompt)

    def encode_queries(
        self, texts: Sequence[str], instruction: str | None = None, *, words: list[Vectors] | None = None
    ) -> Vectors:
        """The vectors (N, H) of queries, of length 1 unless the model compares by the dot product.

        ``instruction`` says what to look for, in place of what the prompt says. If a list ``words`` is given, the
        vectors (T, W) of each query's words are appended to it, of length 1.
        """
        if instruction is not None:
            self.check_instruction(instruction)
        return self._encode(texts, self.modules.query, words, query_prompt=self._prompt(instruction))

    def encode_documents(
        self, texts: Sequence[str], words: list[Any] | None = None, code: WordCode | None = None
    ) -> Vectors:
        """The vectors (N, H) of documents, of length 1 unless the model compares by the dot product.

        If a list ``words`` is given, the vectors (T, W) of each document's words are appended to it, of length 1, or
        their codes.
        """
        return self._encode(texts, self.modules.document, words, code)

    def encode_tokens(
        self,
        source: StoredTokens,
        numbers: NDArray[np.int64],
        words: list[Any] | None = None,
        code: WordCode | None = None,
    ) -> Vectors:
        """Like :meth:`encode_documents`, of documents that are tokenised already, by number."""
        front = self.prompt_pieces
        if front is None:
            raise RankwellError(f"texts have other tokens after the prompt {self.document_prompt!r} than alone")
        vectors = np.empty((len(numbers), self.width), np.float32)
        for begin, end in row_blocks(source.lengths(numbers), PIECES_AT_A_TIME, TEXTS_AT_A_TIME):
            pieces = source.at(numbers[begin:end])
            prompted = pieces.after(front) if self.document_prompt else pieces
            vectors[begin:end] = self._encode_pieces(prompted, self.modules.document, words, code)
        return vectors

    @property
    def takes_tokens(self) -> bool:
        """Whether documents can be tokenised before their prompt is known. RoBERTa's cannot: the tokens of a first
        word differ from those of the same word after a space.
        """
        return self.prompt_pieces is not None

    @cached_property
    def prompt_pieces(self) -> Pieces | None:
        """The pieces of the documents' prompt; ``None`` if a text after it has other pieces than alone."""
        if self.late is not None:
            return self.late.marks[1]
        prompt, texts = self.document_prompt, ["a", "."]  # some tokenizers join punctuation marks to one word
        # A space at the end belongs to the next word, if to any.
        front = self.tokenizer.encode([prompt.rstrip()])
        whole = self.tokenizer.encode([prompt + text for text in texts])
        joined = self.tokenizer.encode(texts).after(front)
        alike = np.array_equal(whole.ids, joined.ids) and np.array_equal(whole.continues, joined.continues)
        return front if alike else None

    def _check_room(self, prompt: str) -> None:
        pieces, most = len(self.tokenizer.encode([prompt]).ids), self.reader.template.max_length
        if pieces + 2 >= most:  # with [CLS] and [SEP]
            raise RankwellError(f"the prompt {prompt!r} has {pieces} pieces: no room is left in a length of {most}")

    def _encode(
        self,
        texts: Sequence[str],
        layers: Sequence[Dense],
        words: list[Any] | None = None,
        code: WordCode | None = None,
        *,
        query_prompt: str | None = None,
    ) -> Vectors:
        """The vectors of documents, or of queries with a prompt."""
        of_query = query_prompt is not None
        prompt = self.document_prompt if query_prompt is None else query_prompt
        parts = [np.zeros((0, self.width), np.float32)]
        for begin in range(0, len(texts), TEXTS_AT_A_TIME):
            pieces = self._pieces(texts[begin : begin + TEXTS_AT_A_TIME], prompt, of_query)
            parts.append(self._encode_pieces(pieces, layers, words, code, of_query=of_query))
        return np.concatenate(parts)

    def _pieces(self, texts: Sequence[str], prompt: str, of_query: bool) -> Pieces:
        if self.late is None:
            return self.tokenizer.encode([prompt + text for text in texts])
        return self.tokenizer.encode(texts).after(self.late.marks[0 if of_query else 1])

    def _lay_out(self, pieces: Pieces, of_query: bool) -> Sequences:
        sequences = (self._query_reader if of_query else self.reader).lay_out({"query": pieces}).sequences
        return self.late.expand(sequences) if self.late is not None and of_query else sequences

    def _encode_pieces(
        self,
        pieces: Pieces,
        layers: Sequence[Dense],
        words: list[Any] | None = None,
        code: WordCode | None = None,
        *,
        of_query: bool = False,
    ) -> Vectors:
        sequences = self._lay_out(pieces, of_query)
        shape = len(sequences.tokens), self.word_width
        tokens = None if words is None else torch.empty(shape, device=self.device)
        forward = partial(self._vectors, words=words is not None)
        pooled = self._compute.run(sequences, forward, self.encoder.config.hidden_size, tokens)
        vectors = self._map(pooled, layers)
        if words is not None and tokens is not None:
            if code is not None:
                owners = np.repeat(np.arange(len(sequences)), sequences.lengths())
                tokens = code(tokens, vectors, torch.from_numpy(owners).to(self.device))
            kept = np.ones(shape[0], np.bool_) if of_query else self._compared(sequences)
            words += np.split(tokens.cpu().numpy()[kept], np.cumsum(kept)[sequences.ends - 1][:-1])
        return vectors.cpu().numpy()

    def _compared(self, documents: Sequences) -> NDArray[np.bool_]:
        """Which tokens of documents are words that are compared."""
        return ~np.isin(documents.tokens, [] if self.late is None else self.late.skipped)

    def name_words(self, text: str, *, of_query: bool = False) -> list[str]:
        """The names of a text's words, in the order of their vectors; a piece has the name of its whole word."""
        prompt = self.query_prompt if of_query else self.document_prompt
        sequence = self._lay_out(self._pieces([text], prompt, of_query), of_query)
        names: dict[int, str] = {}
        for word, name in zip(sequence.words.tolist(), self.tokenizer.token_names(sequence.tokens), strict=True):
            names[word] = names.get(word, "") + name.removeprefix("##").strip("▁Ġ")
        kept = np.ones(len(sequence.tokens), np.bool_) if of_query else self._compared(sequence)
        return [names[word] for word in sequence.words[kept].tolist()]

    def _vectors(self, batch: Sequences, *, words: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """The vectors of texts and, if wanted, of their words."""
        first_only = self.modules.pooling == "first" and not words
        pooled = states = self.encoder(*self._place(batch), first_only=first_only).float()
        if not first_only:
            lengths = torch.from_numpy(batch.lengths()).to(self.device)
            pooled = pool_states(states, lengths, self.modules.pooling)
        vectors = functional.normalize(pooled, dim=1) if self.modules.normalised else pooled
        for layer in self.late.layers if words and self.late is not None else ():
            states = layer(states)
        return (vectors, functional.normalize(states, dim=1)) if words else vectors

    def _place(self, batch: Sequences) -> Batch:
        """A batch on the device, in which nothing attends to the tokens that fill up queries unless it should."""
        late = self.late
        seen = np.ones(1, np.bool_) if late is None or late.attends else batch.tokens != late.expansion
        if late is None or seen.all():
            return self._compute.place(batch)
        placed = Placer(self.device, "full")(batch)  # the kernels for packed batches know no such mask
        layout = placed.layout
        assert isinstance(layout, Layout)
        mask = torch.from_numpy(seen).to(self.device).view(layout.batch, 1, 1, layout.longest)
        if isinstance(self.encoder, Encoder):
            mask = mask.expand(-1, -1, layout.longest, -1).contiguous()
        return placed._replace(layout=replace(layout, mask=mask))
