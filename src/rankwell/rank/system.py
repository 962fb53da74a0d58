"""Systems: everything a search needs in one folder that can be moved, served, checked and added to.

    system.json       version, ranker, depth, shares, and the size of every file outside the index
    checksums         of the other files here; each folder below has its own
    first-stage.json  BM25's parameters, the bi-encoder's share and the weight of its word vectors
    index/            texts, postings and the bi-encoder's vectors
    encoder/          the bi-encoder, if it has a share
    ranker/           the re-ranker, if there is one
    README.md         the card: what it is and what was measured

All paths are relative. The folder is filled under a temporary name and then renamed, so it exists only when complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from rankwell.core.checksums import (
    NOT_COVERED,
    TABLE,
    Verified,
    read_checksums,
    verify_folder,
    write_checksums,
    write_table,
)
from rankwell.core.errors import InputError, RankwellError, folder_error, wrong_version
from rankwell.core.files import atomic_folder, link_tree
from rankwell.core.manifest import Manifest, check_seal, file_digest, read_object, write_sealed
from rankwell.core.shards import MANIFEST, read_plan
from rankwell.corpus.filters import FilterSource
from rankwell.corpus.query_types import rule_type
from rankwell.corpus.records import Document, Query, Ranking, Run
from rankwell.corpus.sources import Source, resolve_queries
from rankwell.models.checkpoints.names import DEFAULT, find_model
from rankwell.models.devices import DEFAULT_COMPUTING, Computing, ComputingOptions
from rankwell.rank.answers import Answer, read_answers
from rankwell.rank.first_stage import EVERYTHING, FIRST_STAGE, Finder, FirstStage, GivenRun, Scope
from rankwell.rank.fusion import Shares, before_rest, fuse
from rankwell.rank.rankers import Reranker, VectorSearch, queries_by_id
from rankwell.rank.relevance import COMPARED, Calibration, Found, signals_of
from rankwell.rank.texts import INDEX, SYSTEM, Texts, is_system
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25
from rankwell.retrieve.index import Index, SearchOptions

if TYPE_CHECKING:
    from rankwell.rank.dense import EncodedQueries

VERSION = 3
DEPTH = 100
SMALL = 1 << 16
"""Files of up to this many bytes, such as descriptions, are compared with their checksums when a system is opened."""
ENCODER, RANKER = "encoder", "ranker"
_FORMAT = "rankwell-system"


class SystemOptions(SearchOptions, total=False):
    """What a search of a system takes besides: see :meth:`System.search`."""

    min_relevance: float | None


@dataclass(frozen=True, eq=False, repr=False)
class System:
    """A first stage and, if it has one, a re-ranker with its shares: opened, searched and added to as a whole.

    The parts may lie anywhere; :meth:`save` puts them into one folder. The re-ranker is a folder, a name or an open
    one. ``engine`` is the share of another engine's results where :meth:`join` is given some. ``computing`` is the
    re-ranker's; by default that of the first stage.

    >>> system = System.open("my-system")                                          # doctest: +SKIP
    >>> system.search("how do bees keep warm", k=3)                                # doctest: +SKIP
    >>> system.add([Document("new-1", "The cluster shivers.")])                    # doctest: +SKIP
    """

    finder: Finder
    """The first stage (an index alone is searched by BM25), or a run from elsewhere to re-rank (:meth:`given`)."""
    _: KW_ONLY
    ranker: str | Path | Reranker | None = None
    depth: int = DEPTH
    shares: Shares | None = None
    engine: float = 0.0
    computing: Computing | None = None
    relevance: Calibration | None = None
    """What makes a probability of the scores, if the system was fitted to enough judged queries."""
    folder: Path | None = None
    card: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given: Any = self.finder
        if isinstance(given, Index):
            object.__setattr__(self, "finder", FirstStage(given))
        if self.depth < 1:
            raise RankwellError(f"a system re-ranks {self.depth} documents; expected 1 or more")
        if self.shares is not None and self.ranker is None:
            raise RankwellError(f"the weights are {self.shares}, but the system has no ranker")
        if self.shares is not None and self.shares.similarity and self.finder.encoder is None:
            raise RankwellError(f"the weights are {self.shares}, but the system has no bi-encoder")

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        card: Mapping[str, Any] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> System:
        """Put everything into a new folder, by hard links where the disk has them; returns the system there.

        ``card`` is recorded as it is; ``files`` are further files by name, such as ``report.html``. By default both are
        those of the folder that the system was opened from.
        """
        folder, first = Path(folder), self.first_stage
        refuse_taken(folder)
        written = self._files() if files is None else {name: text.encode() for name, text in files.items()}
        with atomic_folder(folder, checksums=False) as temporary:
            _link_index(first, temporary / INDEX)
            encoder = None if first.encoder is None else _link_model(first.encoder, temporary / ENCODER)
            if self.ranker is not None:
                _link_model(self._ranker_folder, temporary / RANKER)
            replace(first, index=Index.open(temporary / INDEX), encoder=encoder).save(temporary)
            for name, data in written.items():
                (temporary / name).write_bytes(data)
            write_table(temporary, [FIRST_STAGE, *written])
            self._describe_in(temporary, self.card if card is None else card)
        return System.open(folder, self.ranks_by)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        computing: Computing = DEFAULT_COMPUTING,
        **options: Unpack[ComputingOptions],
    ) -> System:
        """Open a system. Missing and truncated parts are reported now; :meth:`check` also finds changed ones.

        ``options`` are ``device`` and ``precision``, which is the re-ranker's; the bi-encoder's is that of the stored
        vectors.
        """
        folder, computing = Path(folder), replace(computing, **options)
        record = _read(folder)
        for name, part in record["parts"].items():
            _check_size(folder, name, part)
        table = read_checksums(folder / TABLE) or {}
        if FIRST_STAGE not in table:
            raise InputError(folder / TABLE, None, f"has no checksums of {FIRST_STAGE}; copy the system again")
        table[FIRST_STAGE].check_file(folder / FIRST_STAGE)
        for name in (ENCODER, RANKER):  # an index checks itself
            verify_folder(folder / name, largest=SMALL)
        try:
            system = cls.from_settings(record, folder, computing)
        except TypeError:
            raise InputError(folder / SYSTEM, None, "not the description of a system (its weights)") from None
        try:
            relevance = Calibration.read(record["relevance"]) if record.get("relevance") else None
        except (KeyError, TypeError, ValueError):
            raise InputError(folder / SYSTEM, None, "not the description of a system (its relevance)") from None
        made = {"card": record["card"], "manifest": record.get("manifest", {})}
        return replace(system, folder=folder, relevance=relevance, **made)

    def settings(self, folder: Path) -> dict[str, Any]:
        """Re-ranker, depth and shares, for a record in ``folder``; the re-ranker's path is relative to it."""
        return {
            "ranker": None if self.ranker is None else os.path.relpath(self._ranker_folder, folder),
            "depth": self.depth,
            "shares": None if self.shares is None else asdict(self.shares),
            "engine": self.engine,
        }

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], folder: Path, computing: Computing) -> System:
        """The system of the first stage saved in ``folder`` and what :meth:`settings` returned for it."""
        ranker = None if settings["ranker"] is None else folder / settings["ranker"]
        shares = None if settings["shares"] is None else Shares(**settings["shares"])
        first = FirstStage.open(folder, replace(computing, precision="auto"))
        depth, engine = settings["depth"], settings["engine"]
        return cls(first, ranker=ranker, depth=depth, shares=shares, engine=engine, computing=computing)

    @classmethod
    def of_index(
        cls,
        index: Index | str | os.PathLike[str],
        *,
        bm25: BM25 = DEFAULT_BM25,
        hybrid: float | None = None,
        words: float | None = None,
        encoder: str | Path = DEFAULT,
        ranker: str | Path | Reranker | None = None,
        shares: Shares | None = None,
        depth: int = DEPTH,
        vectors: VectorSearch = "auto",
        computing: Computing = DEFAULT_COMPUTING,
        **options: Unpack[ComputingOptions],
    ) -> System:
        """An index, or its folder, as a system; ``hybrid`` is the share of the bi-encoder ``encoder`` in the search.

        ``words`` is the weight of its word vectors, which re-rank the best documents. ``options`` are ``device``,
        ``precision`` and ``trust_remote_code``.
        """
        opened = index if isinstance(index, Index) else Index.open(index)
        needed = encoder if hybrid or words or (shares is not None and shares.similarity) else None
        computing = replace(computing, **options)
        first = FirstStage(opened, bm25, needed, hybrid or 0.0, words or 0.0, vectors=vectors, computing=computing)
        return cls(first, ranker=ranker, depth=depth, shares=shares)

    @property
    def first_stage(self) -> FirstStage:
        """The first stage."""
        if not isinstance(self.finder, FirstStage):
            raise RankwellError("this system re-ranks a run; it has no first stage of its own")
        return self.finder

    @property
    def index(self) -> Index:
        """The index, with the documents' texts."""
        return self.first_stage.index

    @property
    def ranks_by(self) -> Computing:
        """How the re-ranker computes."""
        return self.finder.computing if self.computing is None else self.computing

    @property
    def _ranker_folder(self) -> str | Path:
        if not isinstance(self.ranker, str | Path):
            raise RankwellError("the system's re-ranker is open already; give its folder, to save the system")
        return self.ranker

    @property
    def reranker(self) -> Reranker:
        """The re-ranker, opened when it is first needed."""
        if self.ranker is None:
            raise RankwellError("this system has no re-ranker")
        if isinstance(self.ranker, str | Path):
            return self.finder.models.ranker(self.ranker, self.ranks_by)
        return self.ranker

    @overload
    def search(self, queries: str, k: int | None = None, **options: Unpack[SystemOptions]) -> list[Answer]: ...
    @overload
    def search(self, queries: Source, k: int | None = None, **options: Unpack[SystemOptions]) -> Run: ...
    def search(
        self,
        queries: Source,
        k: int | None = None,
        *,
        threads: int = 0,
        filter: FilterSource | None = None,
        syntax: bool = False,
        min_relevance: float | None = None,
    ) -> list[Answer] | Run:
        """The best ``k`` documents: answers to one question (by default 10), or a run of many (100 each).

        ``queries``, ``filter`` and ``syntax`` are as in :meth:`Index.search`. The first ``depth`` candidates are
        re-ranked, the others follow in the order of the first stage. By default all cores are the ``threads``. If
        another process changed the index, it is searched as it was opened or as it is. Documents of less than
        ``min_relevance`` are left out, which may be all; that takes a system that was fitted to 50 judged queries.
        """
        alone = isinstance(queries, str)
        scope = self.rated(Scope(filter, syntax), min_relevance, always=alone)
        k = (10 if alone else 100) if k is None else k
        asked = [Query("q", queries)] if isinstance(queries, str) else resolve_queries(queries)
        system, found = self._search(asked, k, scope, threads or os.cpu_count() or 1)
        return system.answers(found, "q") if alone else found.run

    def find(self, queries: Sequence[Query], k: int, scope: Scope = EVERYTHING, threads: int = 0) -> Found:
        """Like :meth:`search`, with the relevance that the ``scope`` asks for (see :meth:`rated`)."""
        return self._search(queries, k, scope, threads or os.cpu_count() or 1)[1]

    def rated(self, scope: Scope, least: float | None, *, always: bool = True) -> Scope:
        """The scope of a search that returns relevance, if the system has any: ``always``, or if ``least`` is given.

        Raises if ``least`` is given and the system has none.
        """
        if least is not None and not 0 <= least <= 1:
            raise RankwellError(f"a relevance of {least:g}; expected a number from 0 to 1")
        if self.relevance is None:
            if least is None:
                return scope
            made = "it was fitted with fewer than 50 judged queries" if self.folder else "it is not fitted"
            raise RankwellError(f"this system cannot tell how relevant its answers are: {made} (see `rankwell fit`)")
        wanted = least is not None or (always and isinstance(self.finder.texts, Index) and self.finder.texts.has_texts)
        return replace(scope, signals=self.relevance.signals, min_relevance=least or 0.0) if wanted else scope

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals of relevance that its searches have."""
        if self.ranker is not None:
            return ("words", "model")
        return ("words", "similarity", "score") if self.finder.encodes else ("words", "score")

    def answers(self, found: Found | Ranking, qid: str = "q") -> list[Answer]:
        """The documents of a ranking with their texts, or what was found for a query, with its relevance, too."""
        ranking = found if isinstance(found, Ranking) else found.run.get(qid, Ranking.of([], []))
        rated = {} if isinstance(found, Ranking) else found.relevance.get(qid, {})
        return read_answers(ranking, self.finder.texts, rated)

    def _search(self, queries: Sequence[Query], k: int, scope: Scope, threads: int) -> tuple[System, Found]:
        """What is found, and the system that did: over the index as it is, if files that were not open yet are gone."""
        system = self
        while True:
            try:
                return system, system._run(queries, k, scope, threads)
            except (RankwellError, OSError):
                if not isinstance(system.finder, FirstStage) or (index := system.index.refreshed()) is system.index:
                    raise
            system = system.with_index(index)  # which may be changed again before it is read

    def _run(self, queries: Sequence[Query], k: int, scope: Scope, threads: int) -> Found:
        first, scored = self.finder, None
        wide = max(k, COMPARED) if scope.signals and k >= 1 else k  # the first stage refuses a wrong k
        deep = max(wide, self.depth) if self.ranker is not None and k >= 1 else wide
        similar = "similarity" in scope.signals or (self.shares is not None and self.shares.similarity > 0)
        encoded = first.encode(queries, scope, needed=True) if similar else None
        run = first.search(queries, deep, scope, threads=threads, encoded=encoded)
        if self.ranker is not None:
            top, ranker, asked = run.head(self.depth), self.reranker, scope.plain(queries)
            typed = [replace(query, type=type_for(query, ranker)) for query in asked]
            scored = ranker.rerank(top, typed, first.texts, depth=self.depth)
            run = before_rest(self.fuse(top, scored, asked, encoded), run).head(wide)
        run = run if self.folder is None else Run(run, name="system")
        if not scope.signals:
            return Found(run)
        signals = signals_of(scope.signals, first, run, scope.plain(queries), encoded, scored)
        return Found(run, signals).rated(self.relevance).least(scope.min_relevance, k)

    def given(self, run: Run, texts: Texts | None = None) -> System:
        """The same system for a run from elsewhere, which takes BM25's place, or with a re-ranker the first stage's."""
        first, alone = self.finder, self.ranker is None
        share, words = (first.share, first.words) if alone else (0.0, 0.0)
        texts = first.texts if texts is None else texts
        opened: dict[str, Any] = {"computing": first.computing, "models": first.models}
        return replace(self, finder=GivenRun(run, texts, first.encoder, share, words, depth=self.depth, **opened))

    def rerank(self, first: Run, queries: Sequence[Query]) -> Run:
        """The first ``depth`` candidates of a run, from any system, in the order of the re-ranker and its shares.

        Without a re-ranker, it is the order of the bi-encoder and its word vectors, with the run in the place of BM25.
        """
        if self.ranker is None and not self.finder.encodes:
            raise RankwellError("this system has no re-ranker")
        queries_by_id(first, queries)
        return self.given(first.head(self.depth)).find(queries, self.depth).run

    def join(self, run: Run, queries: Sequence[Query]) -> Run:
        """Another engine's results and those of the first stage in one list; the former alone if it has no share."""
        if not self.engine:
            return run
        hits = self.first_stage.search(queries, DEPTH, threads=os.cpu_count() or 1)
        return fuse({"similarity": hits, "first": run}, Shares.hybrid(1 - self.engine), depth=DEPTH)

    def fuse(self, first: Run, model: Run, queries: Sequence[Query], encoded: EncodedQueries | None = None) -> Run:
        """The re-ranker's run of the first stage's candidates, with every part's share in their scores.

        With a share of the bi-encoder, only the documents that the re-ranker ranked are in the result.
        """
        if self.shares is None:
            return model
        if not self.shares.similarity:
            return fuse({"first": first, "model": model}, self.shares)
        depth = max(map(len, model.values()), default=1)
        similarity = self.finder.dense.rerank(model, queries, self.finder.texts, depth=depth, encoded=encoded)
        ranked = {qid: set(ranking.docids) for qid, ranking in model.items()}
        known = {qid: first[qid].select(docids.__contains__) for qid, docids in ranked.items() if qid in first}
        return fuse({"model": model, "similarity": similarity, "first": Run(known)}, self.shares)

    def with_index(self, index: Index) -> System:
        """The same system, with the models that are open, over another version of the index."""
        return replace(self, finder=replace(self.first_stage, index=index))

    def add(self, documents: Iterable[Document]) -> None:
        """Add documents without refitting: they are appended to the index, and their vectors are computed."""
        self._saved()
        self.index.add(documents, prepare=self.first_stage.preparation)

    def update(self, documents: Iterable[Document]) -> None:
        """Add documents, replacing those with the same ids. Only texts that are new are encoded."""
        self._saved()
        self.index.update(documents, prepare=self.first_stage.preparation)

    def delete(self, docids: str | Iterable[str]) -> int:
        """Delete a document, or several; ids that are not in the index are ignored. Returns how many were deleted."""
        self._saved()
        return self.index.delete(docids, prepare=self.first_stage.preparation)

    def merge(self) -> None:
        """Rewrite the index without deleted documents, as one segment."""
        self._saved()
        self.index.merge(prepare=self.first_stage.preparation)

    def check(self) -> Verified:
        """Read every file and compare it with its checksums. Raises if one is damaged or missing."""
        folder = self._saved()
        for name, part in _read(folder)["parts"].items():
            _check_size(folder, name, part)
        return check_folder(folder, self.index)

    def _files(self) -> dict[str, bytes]:
        """The report and whatever else :meth:`save` was given as files; nothing if the system has no folder yet."""
        if self.folder is None:
            return {}
        names = [name for name in _read(self.folder)["parts"] if "/" not in name and name not in (FIRST_STAGE, TABLE)]
        for name, checksums in (read_checksums(self.folder / TABLE) or {}).items():
            checksums.check_file(self.folder / name)
        return {name: (self.folder / name).read_bytes() for name in names if (self.folder / name).exists()}

    def _saved(self) -> Path:
        if self.folder is None:
            raise RankwellError("this system is not in a folder yet; save it first")
        return self.folder

    def _describe_in(self, folder: Path, card: Mapping[str, Any]) -> None:
        """Write ``system.json``, which makes a folder a system."""
        settings = {**self.settings(folder), "ranker": None if self.ranker is None else RANKER}
        files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        parts = {
            name: {"bytes": (folder / name).stat().st_size}
            for name in files
            if name != SYSTEM and not name.startswith(f"{INDEX}/")  # an index describes its own files
        }
        tables = [name for name in parts if Path(name).name.startswith(TABLE)]
        manifest = Manifest("system", settings, {name: file_digest(folder / name) for name in tables})
        made = {key: value for key, value in manifest.as_dict().items() if key not in ("config", "data")}
        record = {"format": _FORMAT, "version": VERSION, **settings, "card": dict(card)}
        record |= {"relevance": None if self.relevance is None else asdict(self.relevance)}
        write_sealed(folder / SYSTEM, {**record, "manifest": made, "parts": parts})

    def describe(self) -> str:
        """What searches and what re-ranks, in one line.

        >>> System.open("my-system").describe()                                    # doctest: +SKIP
        'BM25 (k1 0.9, b 0.4) and a bi-encoder (weight 0.8), the best 50 re-ranked'
        """
        first, analyzer = self.first_stage, self.index.analyzer
        words = f", title weight {analyzer.title_weight:g}" if analyzer.title_weight != 1 else ""
        parts = [f"BM25 (k1 {first.bm25.k1:g}, b {first.bm25.b:g}{words})"] if first.share < 1 else []
        parts += [f"a bi-encoder (weight {first.share:g})"] if first.share else []
        line = " and ".join(parts)
        line += f", re-ranked by word vectors (weight {first.words:g})" if first.words else ""
        line = f"your engine (weight {self.engine:g}) joined with {line}" if self.engine else line
        if self.ranker is not None:
            line += f", the best {self.depth} re-ranked"
            line += f" ({self.shares})" if self.shares is not None else ""
        return line

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        place = "" if self.folder is None else f"{str(self.folder)!r}, "
        return f"System({place}{len(self):,} documents: {self.describe()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return System.open, (self._saved(), self.ranks_by)


def open_searchable(folder: str | os.PathLike[str], computing: Computing = DEFAULT_COMPUTING, **options: Any) -> System:
    """Open a system, or an index with the options of :meth:`System.of_index`, which a system has settled."""
    if is_system(folder):
        return System.open(folder, computing)
    return System.of_index(folder, computing=computing, **options)


def open_changeable(folder: str | os.PathLike[str]) -> System | Index:
    """Open a system or an index, to add documents to or delete them from it."""
    return System.open(folder) if is_system(folder) else Index.open(folder)


def type_for(query: Query, ranker: Reranker) -> str | None:
    """A query's type: as given, or by the rules if the ranker reads types."""
    return rule_type(query.text) if query.type is None and ranker.takes_types else query.type


def check_folder(folder: Path, index: Index | None) -> Verified:
    """Read every file of an index, a system or a model that has checksums. Raises if one is damaged or missing."""
    skip = set() if index is None else index.leftovers()
    verified = verify_folder(folder, skip=skip)
    for manifest in sorted(folder.rglob(MANIFEST)):
        if skip.isdisjoint(manifest.parents):
            read_plan(manifest)
    if index is not None:
        index.check()
    return verified


def refuse_taken(folder: Path) -> None:
    """Raise if there is something at the place of a new system."""
    if is_system(folder):
        raise RankwellError(f"{folder} holds a system already; remove it or choose another name")
    if folder.exists():
        raise RankwellError(f"{folder} exists and is not a system; choose another name")


def _link_index(first_stage: FirstStage, target: Path) -> None:
    """Link the index with the vectors of its bi-encoder, computing those that are missing."""
    wanted = {folder.name for folder in first_stage.prepare()}
    link_tree(
        first_stage.index.folder,
        target,
        skip=lambda path: path.name == "lock" or (path.name.startswith("vectors-") and path.name not in wanted),
    )


def _link_model(source: str | Path, target: Path) -> Path:
    """Link a model and write its checksums, which models from elsewhere do not have. Raises if it is damaged."""
    model = find_model(source)
    verify_folder(model)
    link_tree(model, target)
    write_checksums(target)
    return target


def _read(folder: Path) -> dict[str, Any]:
    path = folder / SYSTEM
    try:
        record = read_object(path)
    except (FileNotFoundError, NotADirectoryError):
        make = "make a system with `rankwell fit`"
        raise folder_error(folder, f"not a system (it has no {SYSTEM})", make) from None
    if record.get("format") != _FORMAT:
        raise InputError(path, None, "not the description of a system")
    if (version := record.get("version")) != VERSION:
        raise wrong_version(path, "a system", version, VERSION, "fit it again")
    check_seal(path, record)
    kinds = (str | None, int, dict | None, float, dict, dict)
    for key, kind in zip(("ranker", "depth", "shares", "engine", "card", "parts"), kinds, strict=True):
        elsewhere = key == "ranker" and record.get(key) not in (None, RANKER)  # never a path to elsewhere
        if key not in record or not isinstance(record[key], kind) or elsewhere:
            raise InputError(path, None, f"not the description of a system (its {key} is missing or wrong)")
    return record


def _check_size(folder: Path, name: str, part: Any) -> None:
    """Raise unless a part is there, within the folder, and as long as it was; cards may be edited or removed."""
    try:
        wanted = int(part["bytes"])
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError
    except (TypeError, KeyError, ValueError):
        raise InputError(folder / SYSTEM, None, f"not the description of a system (its part {name!r})") from None
    if name.endswith(NOT_COVERED):
        return
    try:
        size = (folder / name).stat().st_size
    except OSError:
        raise InputError(folder, None, f"the part {name} is missing; copy the whole system again") from None
    if size != wanted:
        raise InputError(folder / name, None, f"has {size:,} bytes, expected {wanted:,}; copy the system again")
