"""What a re-ranker gains by titles: the shipped model on BM25's best 20, by how it reads a document.

    python bench/titles.py --out docs/results/changes/titles.tsv

Cranfield's abstracts begin with their titles; CACM's texts do, too, in title case, and most have no abstract at all.
Titles are cut off there: Cranfield's at the first full stop, CACM's where title case ends. BM25 searches titles and
texts. The columns of the file are nDCG@10 of each query; differences have 95 % bootstrap intervals and p-values of the
paired t-test, against what rankwell does.
"""

from __future__ import annotations

import re
from pathlib import Path

from harness import DATA, Table, make_parser
from rankwell import Document, Index, Ranker, compare
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.store import DocumentStore

DEPTH, MEASURE = 20, "nDCG@10"
JOINED = "title text"
FORMS = {JOINED: "{title} {text}", "text": "{text}", "title: … text: …": "title: {title} text: {text}"}
SMALL = frozenset("a an and as at by for from in into its of on or the to under using via with without".split())


def split_title(name: str, text: str) -> tuple[str, str]:
    """The title at the beginning of a text, and the rest.

    >>> split_title("cranfield", "wings in flow . wings in flow . a study was made .")
    ('wings in flow .', 'a study was made .')
    >>> split_title("cacm", "Sizes of Programs The requirements of programs are measured.")
    ('Sizes of Programs', 'The requirements of programs are measured.')
    """
    if name == "cranfield":
        title, stop, rest = text.partition(" .")
        return title + stop, rest.strip().removeprefix(title + stop).strip()
    words = text.split()
    for number in range(1, len(words) - 1):
        after = words[number + 1]
        if re.match(r"[A-Z]", words[number]) and after[:1].islower() and after.strip(".,") not in SMALL:
            return " ".join(words[:number]), " ".join(words[number:])
    return text, ""


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    ranker, lines = Ranker(), ["\t".join(["data", "query", *FORMS])]
    table = Table("", "queries", "BM25", *FORMS, *(f"{form} − {JOINED}" for form in FORMS if form != JOINED))
    for name in ("cranfield", "cacm"):
        data = open_dataset(DATA / name)
        split = {document.docid: split_title(name, document.contents) for document in data.documents()}
        documents = [Document(docid, text, title) for docid, (title, text) in split.items()]
        queries = [query for query in data.queries() if query.qid in data.qrels()]
        first = Index.build(documents).search(queries, k=DEPTH)
        runs = {}
        for form, shape in FORMS.items():
            texts = {document.docid: shape.format(title=document.title, text=document.text) for document in documents}
            runs[form] = ranker.rerank(first, queries, DocumentStore.of_texts(texts))
        compared = compare(data.qrels(), {**runs, "BM25": first}, [MEASURE], baseline=JOINED)
        values = {form: evaluation.per_query[MEASURE] for form, evaluation in compared.evaluations.items()}
        shown = [f"{values[form].mean():.3f}" for form in ("BM25", *FORMS)]
        for form in list(FORMS)[1:]:
            contrast = compared.by_name[form, MEASURE]
            low, high = contrast.interval
            shown.append(f"{contrast.difference:+.3f} ({low:+.3f} to {high:+.3f}), p = {contrast.p:.3f}")
        table.row(name, len(compared.qids), *shown)
        for row, qid in enumerate(compared.qids):
            lines.append("\t".join([name, qid, *(f"{values[form][row]:.4f}" for form in FORMS)]))
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
