"""The reader: from texts to the sequences a model scores, long documents in windows.

Everything that feeds a model goes through here: ranking, serving, explaining, comparing, classifying, training, term
weights, query writing, vectors. A pair is one sequence, or one for each of its document's windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rankwell.core.arrays import Rows, Scores
from rankwell.core.errors import RankwellError
from rankwell.inputs.batching import Sequences
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.templates import Template, TruncationReport, lay_out_pairs, match_words
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows, aggregate_windows, cut_windows, fit_windows

FITTING = Windows()


@dataclass(frozen=True, eq=False)
class LaidOutPairs:
    """Pairs as sequences for a model, several for a document in windows.

    ===============  ==========================================================================
    ``sequences``    (W) one for each window
    ``owners``       (W,) the pair each window belongs to, ascending
    ``fields``       (W) rows of pieces for each field of the template, before truncation
    ``aggregate``    how windows' scores become a pair's
    ``truncated``    how many pairs lost tokens that did not fit
    ===============  ==========================================================================
    """

    sequences: Sequences
    owners: Rows
    fields: Mapping[str, Pieces]
    aggregate: str
    truncated: int

    def join(self, scores: Scores) -> Scores:
        """One score for each pair from those of its windows (W,)."""
        return aggregate_windows(scores, self.owners, self.aggregate)


@dataclass(frozen=True, eq=False)
class Reader:
    """How a model reads: its tokenizer, its template, and what happens to documents that do not fit.

    With ``windows`` these are read in several sequences; with None they are truncated. ``segments`` is the model's
    number of segment ids. ``truncation`` counts everything that was laid out.
    """

    tokenizer: Tokenizer
    template: Template
    windows: Windows | None = FITTING
    segments: int = 2
    truncation: TruncationReport = field(default_factory=TruncationReport)

    @classmethod
    def of_texts(
        cls,
        tokenizer: Tokenizer,
        max_length: int,
        *,
        windows: Windows | None = None,
        segments: int = 2,
    ) -> Reader:
        """A reader of single texts, the field ``query`` of the template ``single``."""
        # max_query has no effect here; 1 fits any length.
        return cls(tokenizer, Template("single", max_length=max_length, max_query=1), windows, segments)

    @property
    def aggregate(self) -> str:
        """How the scores of windows become a document's."""
        return self.windows.aggregate if self.windows else "first"

    @property
    def stems(self) -> bool:
        """Whether pieces need the stems of their words, for markers."""
        return self.template.markers

    @property
    def typed(self) -> bool:
        """Whether the template has a place for the query's type."""
        return any(f.name == "type" for f in self.template.fields)

    @property
    def takes_instruction(self) -> bool:
        """Whether the model's prompt has an instruction."""
        return self.tokenizer.prompt is not None and bool(self.tokenizer.prompt.instruction)

    def asking(self, instruction: str | None) -> Reader:
        """The same reader with another instruction, if one is given. Raises if the model takes none."""
        if instruction is None:
            return self
        if not self.takes_instruction:
            raise RankwellError("instruction: the model's prompt has no place for one")
        return replace(self, tokenizer=self.tokenizer.asking(instruction))

    def encode(self, texts: Sequence[str]) -> Pieces:
        """Tokenise texts, with stems if the template needs them."""
        return self.tokenizer.encode(texts, stems=self.stems)

    def encode_queries(self, texts: Sequence[str]) -> Pieces:
        """Tokenise queries; with what a prompt has between them and the document."""
        prompt = self.tokenizer.prompt
        if prompt is None:
            return self.encode(texts)
        most = max(1, self._inner.max_query - len(self.tokenizer.literal(prompt.after_query)))
        pieces, cut = self.tokenizer.encode_queries(texts, most)
        if cut:
            self.truncation.add(TruncationReport(pieces_cut={"query": cut}))
        return pieces

    def lay_out(self, fields: Mapping[str, Pieces]) -> LaidOutPairs:
        """Lay out pairs: row ``i`` of each field belongs to pair ``i``.

        Fields are those of the template; ``type`` may be missing, for all pairs or, as an empty row, for some.
        """
        return self._lay_out(*self._split(fields))

    def lay_out_parts(self, fields: Mapping[str, Pieces], most: int) -> Iterator[LaidOutPairs]:
        """Like :meth:`lay_out`, in parts of at most ``most`` windows; those of one pair stay together."""
        fields, owners = self._split(fields)
        bounds = np.append(np.flatnonzero(np.diff(owners, prepend=-1)), len(owners))  # where pairs begin
        begin = 0
        while begin < len(owners):
            end = int(bounds[np.searchsorted(bounds, begin + most, side="right") - 1])
            if end <= begin:  # a single pair has more windows
                end = int(bounds[np.searchsorted(bounds, begin, side="right")])
            rows = np.arange(begin, end)
            whole = len(rows) == len(owners)
            part = fields if whole else {name: pieces.take(rows) for name, pieces in fields.items()}
            yield self._lay_out(part, owners[begin:end])
            begin = end

    def _lay_out(self, fields: Mapping[str, Pieces], owners: Rows) -> LaidOutPairs:
        report, special, frame = TruncationReport(), self.tokenizer.special, self.tokenizer.frame
        sequences = lay_out_pairs(self._inner, special, fields, report, segments=self.segments, owners=owners)
        if frame is not None:
            sequences = frame.around(sequences)
        self.truncation.add(report)
        return LaidOutPairs(sequences, owners, fields, self.aggregate, report.pairs_cut)

    @property
    def _inner(self) -> Template:
        """The template within a language model's frame, whose place it holds with one token before and one after."""
        frame, length = self.tokenizer.frame, self.template.max_length
        if frame is None:
            return self.template
        if (inner := length - len(frame) + 2) < 16:
            raise RankwellError(f"a max_length of {length} leaves no room beside the prompt's {len(frame)} tokens")
        return replace(self.template, max_length=inner, max_query=min(self.template.max_query, inner // 2))

    def _split(self, fields: Mapping[str, Pieces]) -> tuple[Mapping[str, Pieces], Rows]:
        """The fields of each window, and the pair each window belongs to."""
        name = "document" if "document" in fields else "query"
        text = fields[name]
        whole = np.arange(len(text))
        if self.windows is None or "other" in fields:
            return fields, whole
        if self.windows.size is None:
            costs, room = self._costs_and_room(fields, name)
            # A window that begins within a marked word marks the rest of that word.
            begins, ends, owners = fit_windows(text, costs, room, spare=2 if self.stems else 0)
            if len(owners) == len(whole):
                return fields, whole
            windows = text.cut(begins, ends - begins)
        else:
            windows, owners = cut_windows(text, self.windows)
        return {key: windows if key == name else rows.take(owners) for key, rows in fields.items()}, owners

    def _costs_and_room(self, fields: Mapping[str, Pieces], windowed: str) -> tuple[Rows | None, Rows]:
        """The tokens each piece of the windowed field takes (None: one; markers take two), and each pair's room."""
        template, between = self._inner, self.tokenizer.special.between
        text = fields[windowed]
        openings = {}
        if template.markers:
            query, document = fields["query"], fields["document"]
            if len(query.stems) == len(query.ids) and len(document.stems) == len(document.ids):
                marks = match_words(
                    query, document, mark_unmatched=template.mark_unmatched_query, unmarked=template.unmarked
                )
                openings = {field: (marks[field] > 0) & fields[field].opens for field in marks}
        # [CLS], and the separators: one at the end, and ``between`` before each field but the first.
        room = np.full(len(text), template.max_length - 2 + between)
        for f in template.fields:
            if f.name not in fields:
                continue
            need = fields[f.name].lengths()
            # An empty type has no separator either.
            room -= f.alone + between * ((need > 0) | (f.name != "type"))
            if f.name in openings and f.cap:
                before = np.concatenate([[0], np.cumsum(openings[f.name])])
                need = need + 2 * (before[fields[f.name].ends] - before[fields[f.name].begins])
            if f.cap:
                room -= np.minimum(need, f.cap)
        return 1 + 2 * openings[windowed] if openings else None, room
