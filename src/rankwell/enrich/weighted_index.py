"""From a collection and a model to an index of weighted terms, in one go that may be killed, resumed and shared.

While it is made, ``OUT.weights`` beside the index holds the texts, their tokens and the weights of the shards that are
done. The same command, given again, goes on with them; given several times at once, the processes share the shards and
the last to finish makes the index. Then the folder goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from rankwell.core.errors import RankwellError
from rankwell.core.manifest import digest
from rankwell.corpus.datasets import collection_digest, resolve_documents
from rankwell.corpus.records import Document
from rankwell.enrich.shared import SharedFolder
from rankwell.enrich.term_weights import TermWeigher, WeightOptions
from rankwell.enrich.weighing import SHARD_SIZE, read_shards, weigh_collection, weigh_texts
from rankwell.models.checkpoints.identity import model_digest
from rankwell.plots.terms import WeighedText, write_terms_page
from rankwell.retrieve.index import Index

SHOWN = 20


def weigh_and_index(
    collection: str,
    out: Path,
    model: Path,
    scaling: str = "linear",
    *,
    store: bool = True,
    overwrite: bool = False,
    weights_out: Path | None = None,
    show: Path | None = None,
) -> Index:
    """``rankwell index COLLECTION --weights MODEL``; ``show`` is a page of the first passages."""
    options = WeightOptions(scaling)
    weigher = TermWeigher.from_pretrained(model)
    if show is not None:
        chosen = list(islice(resolve_documents(collection), SHOWN))
        vectors = weigh_texts(weigher, [document.contents for document in chosen], options)
        passages = [WeighedText(d.docid, d.contents, weights) for d, weights in zip(chosen, vectors, strict=True)]
        write_terms_page(passages, show, title=f"Term weights of {collection}")
    return build_weighted_index(
        resolve_documents(collection),
        out,
        model,
        weigher,
        options,
        source=collection_digest(collection),
        store=store,
        overwrite=overwrite,
        weights_out=weights_out,
    )


def build_weighted_index(
    documents: Iterable[Document],
    out: Path,
    model: Path,
    weigher: TermWeigher,
    options: WeightOptions,
    *,
    source: str,
    store: bool = True,
    overwrite: bool = False,
    weights_out: Path | None = None,
    shard_size: int = SHARD_SIZE,
) -> Index:
    """Weigh ``documents``, whose digest is ``source``, with a checkpoint and index them by their weights.

    ``weights_out`` keeps the weights as a file of their own.
    """
    if (out / "index.json").exists() and not overwrite:
        raise RankwellError(f"{out} holds an index already; replace it with --overwrite")
    name = model_digest(model)
    work = weighing_work(source, name, options, store)
    with SharedFolder.enter(out.with_name(f"{out.name}.weights"), work) as shared:
        kept = shared.store(documents, source)
        key = digest({"documents": source, "model": name, "options": vars(options), "length": weigher.max_length})
        folder = shared.path / f"weights-{key}"
        shards = weigh_collection(kept, weigher, options, folder, model=name, shard_size=shard_size)
        if not shared.alone(wait=True):  # of those who weighed, another was first and has made the index
            return Index.open(out)
        if weights_out is not None:
            shards.join(weights_out)
        index = Index.build(iter(kept), out, weights=read_shards(shards), store=store, overwrite=overwrite)
        shared.remove()
        return index


def weighing_work(source: str, model: str, options: WeightOptions, store: bool) -> dict[str, str]:
    """All that makes a difference to such an index, by name: two that differ must not be made in one folder at once."""
    return {
        "collection": source,
        "model": model,
        "setting of --scaling": f"{options.scaling} {options.scale:g}",
        "setting of --store": str(store),
    }
