"""Bi-encoders: texts as vectors, whose product says how alike two texts are.

A folder of sentence-transformers is read as it is: an encoder, the mean of its tokens' states (or the state of the
first), the length cut to 1. The texts of a collection pass the encoder once and are compared with any query.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.manifest import digest
from rankwell.inputs.batching import row_blocks, slice_sequences, take_sequences, token_batches
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.sequences import Sequences
from rankwell.inputs.stored import TokenSource
from rankwell.inputs.templates import Template, TruncationReport, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import read_json, read_object
from rankwell.models.checkpoints.folders import load_encoder
from rankwell.models.checkpoints.foreign import ForeignEncoder
from rankwell.models.checkpoints.names import find_model
from rankwell.models.devices import DTYPES, Precision, chosen_device
from rankwell.models.encoder import Encoder
from rankwell.models.placing import Placer, packed_blocks
from rankwell.models.sdnet.word_features import encoder_digest

CPU_BUDGET = 4096
GPU_BUDGET = 1 << 17
TEXTS_AT_A_TIME = 8192
PIECES_AT_A_TIME = 1 << 22
DEFAULT_LENGTH = 256
MODULES = ("Transformer", "Pooling", "Normalize")

Pooling = Literal["mean", "first"]
Vectors = NDArray[np.float32]


class BiEncoder:
    """Gives texts their vectors.

    >>> encoder = BiEncoder.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")    # doctest: +SKIP
    >>> encoder.encode(["how do bees keep warm", "The cluster shivers."])                # doctest: +SKIP

    ===============  ===================================================================================================
    ``pooling``      ``mean`` over all tokens, ``[CLS]`` and ``[SEP]`` among them, or the ``first``
    ``max_length``   most tokens of a text; what is longer is cut, and counted in ``truncation``
    ``device``       a GPU where there is one
    ``dtype``        fp16 on a GPU, which tells more vectors apart than bf16, else fp32; vectors themselves are fp32
    ``budget``       how many tokens (on the grid, with padding) are computed at a time
    ``name``         a name for the weights, by which vectors are kept
    ===============  ===================================================================================================
    """

    def __init__(
        self,
        encoder: Encoder | ForeignEncoder,
        tokenizer: Tokenizer,
        *,
        pooling: Pooling = "mean",
        max_length: int = DEFAULT_LENGTH,
        device: str | None = None,
        dtype: torch.dtype | Precision | None = None,
        budget: int | None = None,
        name: str = "",
    ):
        self.device = chosen_device(device)
        on_gpu = self.device.type == "cuda"
        chosen = DTYPES[dtype] if isinstance(dtype, str) else dtype
        dtype = chosen or (torch.float16 if on_gpu else torch.float32)
        self.encoder = encoder.eval().requires_grad_(False).to(self.device, dtype)
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.template = Template("single", max_length)
        self.truncation = TruncationReport()
        self.budget = budget or (GPU_BUDGET if on_gpu else CPU_BUDGET)
        self.name = name
        short = on_gpu and dtype in (torch.float16, torch.bfloat16)
        self._place = Placer(self.device, "full", packed_blocks(encoder, "full") if short else None)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        max_length: int | None = None,
        device: str | None = None,
        dtype: torch.dtype | Precision | None = None,
        budget: int | None = None,
    ) -> BiEncoder:
        """The bi-encoder of a folder, of a package or on the hub (``checkpoints/names.py``).

        Pooling and length are the folder's own, where it says so; a bare encoder's vectors are means.
        """
        folder = find_model(folder)
        if not has_vectors(folder):
            raise RankwellError(f"{folder} is a cross-encoder, which has no vectors to compare")
        encoder, _, tokenizer = load_encoder(folder)
        pooling = _read_pooling(folder)
        known = encoder.config.max_position_embeddings
        length = min(max_length or _read_length(folder) or tokenizer.max_length or DEFAULT_LENGTH, known)
        return cls(
            encoder,
            tokenizer,
            pooling=pooling,
            max_length=length,
            device=device,
            dtype=dtype,
            budget=budget,
            name=digest([encoder_digest(folder), pooling, length]),
        )

    @property
    def width(self) -> int:
        """H, the length of a vector's list of numbers."""
        return self.encoder.config.hidden_size

    def encode(self, texts: Sequence[str]) -> Vectors:
        """The vectors (N, H) of texts, each of length 1."""
        parts = [np.zeros((0, self.width), np.float32)]
        for begin in range(0, len(texts), TEXTS_AT_A_TIME):
            parts.append(self.encode_pieces(self.tokenizer.encode(texts[begin : begin + TEXTS_AT_A_TIME])))
        return np.concatenate(parts)

    def encode_tokens(self, source: TokenSource, numbers: NDArray[np.int64]) -> Vectors:
        """The vectors of documents that are tokenised already, by number."""
        found = np.empty((len(numbers), self.width), np.float32)
        for begin, end in row_blocks(source.lengths(numbers), PIECES_AT_A_TIME, TEXTS_AT_A_TIME):
            found[begin:end] = self.encode_pieces(source.at(numbers[begin:end]))
        return found

    @torch.inference_mode()
    def encode_pieces(self, pieces: Pieces) -> Vectors:
        """The vectors of tokenised texts."""
        segments = self.encoder.config.type_vocab_size
        fields = {"query": pieces}
        sequences = lay_out_pairs(self.template, self.tokenizer.special, fields, self.truncation, segments=segments)
        found = torch.empty(len(sequences), self.width, dtype=torch.float32, device=self.device)
        run = self._run_packed if self._place.blocks is not None else self._run_on_grid
        # Triton launches on the current device, which need not be this one.
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            run(sequences, found)
        return found.cpu().numpy()

    def _run_on_grid(self, sequences: Sequences, found: Tensor) -> None:
        for rows in token_batches(sequences.lengths(), self.budget):
            found[torch.from_numpy(rows).to(self.device)] = self._vectors(take_sequences(sequences, rows))

    def _run_packed(self, sequences: Sequences, found: Tensor) -> None:
        ends = sequences.ends
        begin, first = 0, 0  # the first sequence of the batch, and its first token
        while begin < len(ends):
            end = max(begin + 1, int(np.searchsorted(ends, first + self.budget, side="right")))
            found[begin:end] = self._vectors(slice_sequences(sequences, begin, end))
            begin, first = end, int(ends[end - 1])

    def _vectors(self, batch: Sequences) -> Tensor:
        if self.pooling == "first":
            pooled: Tensor = self.encoder(*self._place(batch)).float()
        else:
            states = self.encoder(*self._place(batch), first_only=False).float()
            lengths = torch.from_numpy(batch.lengths()).to(self.device)
            pooled = torch.segment_reduce(states, "mean", lengths=lengths)
        return functional.normalize(pooled, dim=1)


def is_cross_encoder(folder: Path) -> bool:
    """Whether a checkpoint scores pairs, rather than giving texts vectors."""
    if not (folder / "config.json").is_file():
        raise InputError(folder, None, "not a checkpoint (it has no config.json)")
    if (folder / "rankwell.json").is_file():
        return True
    architectures = read_object(folder / "config.json").get("architectures") or []
    return any(str(name).endswith("ForSequenceClassification") for name in architectures)


def has_vectors(folder: Path) -> bool:
    """Whether texts can be compared by their vectors: a bi-encoder's, or those of a ranker that begins as one."""
    own = folder / "rankwell.json"
    return not is_cross_encoder(folder) or (own.is_file() and bool(read_object(own).get("similarity")))


def _read_pooling(folder: Path) -> Pooling:
    """How the folder's vectors are made of its tokens' states."""
    path = folder / "1_Pooling" / "config.json"
    modules = _read_modules(folder)
    if "Pooling" in modules:
        path = folder / modules["Pooling"] / "config.json"
    elif not path.is_file():
        return "mean"
    if not path.is_file():
        raise InputError(path, None, "missing, and it says how vectors are made")
    ways = {name: value for name, value in read_object(path).items() if name.startswith("pooling_mode")}
    if ways.get("pooling_mode") in ("mean", "cls"):  # as the newest versions write it
        return "mean" if ways["pooling_mode"] == "mean" else "first"
    chosen = [name for name, value in ways.items() if value is True]
    if chosen == ["pooling_mode_mean_tokens"]:
        return "mean"
    if chosen == ["pooling_mode_cls_token"]:
        return "first"
    raise InputError(path, None, f"pooling by {', '.join(chosen) or 'nothing'}; expected the mean or the first token")


def _read_modules(folder: Path) -> dict[str, str]:
    """The parts that sentence-transformers would chain, each with its folder; none where the folder is not its own."""
    path = folder / "modules.json"
    if not path.is_file():
        return {}
    try:
        modules = {str(one["type"]).rpartition(".")[2]: str(one["path"]) for one in read_json(path)}
    except (KeyError, TypeError):
        raise InputError(path, None, "not a list of modules, each with a type and a path") from None
    other = next((name for name in modules if name not in MODULES), None)
    if other is not None:
        raise InputError(path, None, f"vectors pass a module {other}; expected {', '.join(MODULES)} and no other")
    return modules


def _read_length(folder: Path) -> int | None:
    path = folder / "sentence_bert_config.json"
    length = read_object(path).get("max_seq_length") if path.is_file() else None
    return length if isinstance(length, int) else None
