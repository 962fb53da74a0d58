"""The papers compared fairly: what docs/papers.md and docs/attention-rules.md report. One training per call:

    python bench/papers.py pretrain --data DATA/insuranceqa DATA/medquad DATA/wiki --rule strm --out general-strm
    python bench/papers.py aside --data DATA/wiki --train headings.train --dev headings.dev --out headings
    python bench/papers.py pretrain --data DATA/wiki --leave-out headings/left-out.txt --rule full --out general-wiki
    python bench/papers.py rank --data DATA/medquad --rule strm --start general-strm/model
        --rate 1e-4 --seed 1 --out arm
    python bench/papers.py table1 --data DATA/insuranceqa --dev valid --b 0.9 --row drbert --start general-full/model
        --seed 1 --out row
    python bench/papers.py noise --data DATA/insuranceqa --dev valid --b 0.9 --hide-among 100 --threshold 0.9
        --start general-full/model --seed 1 --out cleaned
    python bench/papers.py traps --data DATA/medquad --out traps.json
    python bench/papers.py margins --arm arm --cases traps.json --out margins.csv
    python bench/papers.py candidates --data DATA/medquad --arm arm --out candidates.csv
    python bench/papers.py sdnet --data DATA/insuranceqa --dev valid --signals dot --tagger textblob --out sdnet
    python bench/papers.py documents --data DATA/medquad --nli DATA/nli --start general-full/model --out documents
    python bench/papers.py first-stage --data DATA/insuranceqa --dev valid --k2 8 --row k2 --out first-stage
    python bench/papers.py depths --data DATA/insuranceqa --dev valid --b 0.9 --model row/model --out depths.csv.gz
    python bench/papers.py overlap --data DATA/insuranceqa --dev valid --b 0.9 --out overlap.insuranceqa.json
    python bench/papers.py collect row-* cleaned-* sdnet/S sdnet/both first-stage --out docs/results/papers
    python bench/papers.py collect-depths depths.csv.gz --data insuranceqa --first bm25 --row drbert
        --out docs/results/papers
    python bench/papers.py tables docs/results/papers
    python bench/papers.py summary docs/results

``rank``, ``table1`` and ``noise`` set 600 training queries aside. For ``rank``, give ``--search`` for each rate, take
the rate that is best on them (``result.json``), and train all seeds at it: without ``--search`` the dev queries are
measured, too. The other two have rates that were chosen in this way. Wikipedia questions: ``--data DATA/wiki --train
questions.train --dev questions.dev --k1 0.6 --b 0.5``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from harness import make_parser

if TYPE_CHECKING:
    from paper_recipes import Source

RULES = ("full", "strm", "exact_match")


def main() -> None:
    """Do what the command says."""
    options = read_options()
    # What trains imports torch, which the tables do without.
    if options.command == "tables":
        from paper_ccnu import CCNU_TABLES
        from paper_overview import VERDICT_TABLES
        from paper_tables import RULE_TABLES, Results

        results = Results(options.folder)
        page = options.page or ("rules" if "rules" in results.runs else "papers")
        for show in {"ccnu": CCNU_TABLES, "rules": RULE_TABLES, "papers": VERDICT_TABLES}[page]:
            show(results)
            print()
    elif options.command == "picture":
        from paper_candidates import draw_pairs
        from paper_tables import Results

        draw_pairs(Results(options.folder), options.out)
    elif options.command == "summary":
        from paper_summary import print_summary

        print_summary(options.folder)
    elif options.command == "collect":
        from paper_collect import collect

        collect(options.arms, options.out, options.measures, options.repeated)
    elif options.command == "collect-rare-words":
        from paper_collect import collect_rare_words

        collect_rare_words(options.folder, options.name, options.out, options.seed)
    elif options.command == "collect-depths":
        from paper_collect import collect_depths

        collect_depths(options.file, options.data, options.first, options.row, options.seed, options.out)
    elif options.command == "collect-types":
        from paper_collect import collect_types

        collect_types(options.data, options.dev, options.out)
    elif options.command in ("aside", "pretrain", "rank", "table1", "noise"):
        train(options)
    elif options.command == "sdnet":
        train_network(options)
    elif options.command == "documents":
        from paper_documents import documents_recipe, train_documents
        from rankwell.models.checkpoints.names import BACKBONE

        start = options.start or BACKBONE
        recipe = documents_recipe(options.data, options.dev, options.nli, start, options.seed, options.steps)
        train_documents(recipe, options.data.name, options.out, options.pool, options.device)
    elif options.command == "first-stage":
        from paper_depths import measure_first_stage

        measure_first_stage(read_source(options), options.index, options.row, options.out, options.pool)
    elif options.command == "overlap":
        from paper_depths import count_overlap

        count_overlap(read_source(options), options.out, options.pool)
    elif options.command == "shortcut":
        from paper_shortcut import measure_shortcut, train_small
        from rankwell.models.checkpoints.names import BACKBONE

        source, name = read_source(options), f"{options.row}, {'found' if options.found_only else 'all'}"
        training = options.start or BACKBONE, options.row, options.found_only, options.steps
        ranker = train_small(source, *training, options.pool / f"shortcut {name}", options.pool, options.device)
        measure_shortcut(source, ranker, name, options.queries, options.out, options.pool)
    elif options.command == "depths":
        from paper_depths import measure_depths
        from rankwell.rank.ranker import Ranker

        ranker = Ranker.from_pretrained(options.model, device=options.device, precision=options.precision)
        measure_depths(read_source(options), options.index, ranker, options.queries, options.out, options.pool)
    else:
        measure(options)


def train(options: argparse.Namespace) -> None:
    """``aside``, ``pretrain``, ``rank``, ``table1`` and ``noise``."""
    from paper_recipes import (
        CHECKED,
        LEFT_OUT,
        OFF,
        ROWS,
        Row,
        listwise_stage,
        noise_stages,
        pretraining_recipe,
        ranking_recipe,
        table1_stages,
    )
    from paper_runs import hide_positives, join_collections, set_aside, train_arm
    from rankwell.models.checkpoints.names import BACKBONE

    if options.command == "aside":
        set_aside(read_source(options), options.out)
        return
    start, pool = options.start or BACKBONE, options.pool
    if options.command == "pretrain":
        data = join_collections(options.data, pool / "-".join(["joined", *(folder.name for folder in options.data)]))
        lengths = options.steps, options.batch, options.seed
        recipe = pretraining_recipe(data, start, options.rule, *lengths, options.leave_out)
        arm = {"study": "pretrain", "data": data.name, "row": f"{options.rule}/{options.steps}", "seed": options.seed}
        train_arm(recipe, arm, options.out, pool, options.device, report=False)
        return
    source = read_source(options)
    # The Wikipedia data have two sets of queries, questions.train and headings.train.
    data_name = options.train.partition(".")[0] if "." in options.train else options.data.name
    data = set_aside(
        source, pool / f"{data_name}-{options.train}-{options.dev}-{options.aside}-{options.most or 'all'}"
    )
    train_run = None
    if options.command == "rank":
        name, row = options.rule, Row(options.rule, template="mono", pointwise=False)
        stages = {"listwise": listwise_stage(options.rate, options.steps)}
        if options.pretrained is not None:
            name = f"pretrained-{options.pretrained}/{name}"
    elif options.command == "noise":
        name = "clean" if options.clean else "noisy" if options.threshold is None else f"threshold {options.threshold}"
        name += f", {options.folds} folds" if options.folds else ""
        row, stages = OFF, noise_stages(options.threshold, options.folds, options.scale)
        if count := options.hide_among:
            name = f"1 of {count}/{name}"
            data = hide_positives(data, source, pool, count, pool / f"{data.name}-hidden-{count}")
            train_run = str(data / ("clean.run.gz" if options.clean else "noisy.run.gz"))
    elif options.row not in ROWS:
        raise SystemExit(f"no row is called {options.row} (known: {', '.join(ROWS)})")
    else:
        name, row = options.row, ROWS[options.row]
        name += f", {options.scale:g} of the pairs" if options.scale != 1 else ""
        stages = table1_stages(row, options.scale, LEFT_OUT if options.leave_out else None)
    classifier = getattr(options, "classifier", None)
    checked = None if getattr(options, "search", False) else CHECKED
    recipe = ranking_recipe(
        options.command, data, source, start, row, stages, options.seed, train_run, classifier, checked
    )
    arm = {"study": options.command, "data": data_name, "row": name, "seed": options.seed}
    train_arm(recipe, arm, options.out, pool, options.device, report=not getattr(options, "search", False))


def train_network(options: argparse.Namespace) -> None:
    """``sdnet``."""
    from paper_runs import set_aside
    from paper_sdnet import Network, sdnet_recipe, train_sdnet

    source, pool = read_source(options), options.pool
    data = set_aside(source, pool / f"{options.data.name}-{options.dev}-{options.aside}-{options.most or 'all'}")
    layers = None if options.layers == 0 else options.layers
    sizes = layers, options.hidden, options.max_words, options.dropout, options.negatives, options.steps
    network = Network(options.signals, options.tagger, options.vectors, *sizes)
    depths = {"depth": options.depth, "train_depth": options.train_depth}
    recipe = sdnet_recipe(data, source, network, options.seed, choice=options.aside, **depths)
    arm = {"study": "sdnet", "data": options.data.name, "row": network.name, "seed": options.seed}
    train_sdnet(recipe, arm, options.queries, options.out, pool)


def read_source(options: argparse.Namespace) -> Source:
    """The data set that the options name."""
    from paper_recipes import Source

    numbers = options.k1, options.b, options.aside, options.most, options.k2
    return Source(options.data, options.train, options.dev, *numbers)


def measure(options: argparse.Namespace) -> None:
    """``traps``, ``margins`` and ``candidates``."""
    from paper_traps import compare_candidates, make_traps, score_traps

    if options.command == "traps":
        make_traps(options.data, options.dev, options.out)
    elif options.command == "margins":
        score_traps(options.arm, options.cases, options.out, options.device)
    else:
        compare_candidates(options.data, options.dev, options.arm, options.out)


def read_options() -> argparse.Namespace:
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    pretrain = commands.add_parser("pretrain", help="masked tokens and next spans over several collections")
    pretrain.add_argument("--data", type=Path, nargs="+", required=True, help="folders of the collections")
    pretrain.add_argument("--rule", choices=RULES, required=True, help="attention rule, in every layer")
    pretrain.add_argument("--steps", type=int, default=6500)
    pretrain.add_argument("--batch", type=int, default=128, help="span pairs per step")
    pretrain.add_argument("--leave-out", type=Path, help="file of document ids that pre-training leaves out")
    aside = commands.add_parser("aside", help="set training queries aside and list the documents of dev articles")
    rank = commands.add_parser("rank", help="one listwise training under an attention rule")
    rank.add_argument("--rule", choices=RULES, required=True, help="attention rule, in every layer")
    rank.add_argument("--steps", type=int, default=1500, help="steps of 96 pairs")
    rank.add_argument("--rate", type=float, required=True, help="peak learning rate")
    rank.add_argument("--pretrained", type=int, help="steps of pre-training that --start has, to name the row by")
    rank.add_argument("--search", action="store_true", help="measure the queries set aside only")
    table1 = commands.add_parser("table1", help="one row of DR-BERT's Table 1 at 144,000 pairs")
    table1.add_argument("--row", required=True, help="drbert, no-types, ...; see ROWS in paper_recipes.py")
    table1.add_argument("--leave-out", action="store_true", help="pre-train without the articles of dev queries")
    table1.add_argument("--classifier", type=Path, help="folder of the classifier for the row classifier-types")
    noise = commands.add_parser("noise", help="a judge, noise reduction, listwise training")
    noise.add_argument("--threshold", type=float, help="of noise reduction (default: none)")
    noise.add_argument("--hide-among", type=int, help="hide a relevant passage of each query among so many candidates")
    noise.add_argument("--folds", type=int, default=0, help="judge each fold by a model trained on the others")
    noise.add_argument("--clean", action="store_true", help="leave the hidden passages out, for comparison")
    sdnet = commands.add_parser("sdnet", help="CCNU's network over a frozen BERT, alone and with BM25")
    sdnet.add_argument("--signals", choices=("softmax", "cosine", "dot"), default="softmax")
    sdnet.add_argument("--tagger", help="such as textblob (default: no tags)")
    sdnet.add_argument("--vectors", help="word vectors (default: BERT's input embeddings)")
    sdnet.add_argument("--layers", type=int, default=0, help="last layers to mix (default: all)")
    sdnet.add_argument("--hidden", type=int, default=125, help="width of a recurrent layer in each direction")
    sdnet.add_argument("--max-words", type=int, default=256, help="words of a passage")
    sdnet.add_argument("--dropout", type=float, default=0.4)
    sdnet.add_argument("--negatives", type=int, default=1, help="passages beside each relevant one")
    sdnet.add_argument("--steps", type=int, default=100, help="steps of 32 negatives")
    sdnet.add_argument("--queries", type=int, default=200, help="dev queries to measure")
    sdnet.add_argument("--depth", type=int, default=30, help="candidates to re-rank")
    sdnet.add_argument("--train-depth", type=int, default=10, help="candidates that negatives come from")
    documents = commands.add_parser("documents", help="CCNU's document ranker: windows, alone and with BM25")
    documents.add_argument("--nli", type=Path, required=True, help="folder with snli.train.tsv and snli.dev.tsv")
    documents.add_argument("--steps", type=int, help="steps of entailment training, to try it out (default: 3 epochs)")
    first_stage = commands.add_parser("first-stage", help="values of BM25, or of an index of weights or expansions")
    first_stage.add_argument("--row", required=True, help="name of the row, such as deepct")
    depths = commands.add_parser("depths", help="a ranker's figures by the number of candidates")
    depths.add_argument("--model", required=True, help="folder or name of a ranker")
    depths.add_argument("--queries", type=int, default=100, help="dev queries, drawn at random")
    depths.add_argument("--precision", choices=("fp32", "bf16", "int8"), help="of the ranker")
    overlap = commands.add_parser("overlap", help="how many of a query's terms relevant and other passages contain")
    shortcut = commands.add_parser("shortcut", help="scores of passages without a query word by a small ranker")
    shortcut.add_argument("--row", default="marked", help="row of table1 to train")
    shortcut.add_argument("--found-only", action="store_true", help="train only on relevant passages that BM25 found")
    shortcut.add_argument("--steps", type=int, default=150, help="steps of 64 pairs")
    shortcut.add_argument("--queries", type=int, default=60, help="dev queries to measure")
    for command in (first_stage, depths):
        command.add_argument("--index", type=Path, help="index to search (default: that of the counted terms)")
    for command in (table1, noise):
        command.add_argument("--scale", type=float, default=1.0, help="share of the steps, to try it out")
    for command in (aside, rank, table1, noise, sdnet, first_stage, depths, overlap, shortcut):
        command.add_argument("--train", default="train", help="split to train on")
        command.add_argument("--k2", type=float, help="BM25's k2 (default: none)")
        command.add_argument("--k1", type=float, default=0.9, help="BM25's k1")
        command.add_argument("--b", type=float, default=0.4, help="BM25's b")
        command.add_argument("--aside", type=int, default=600, help="training queries that choose the rate")
        command.add_argument("--most", type=int, help="training queries, drawn at random (default: all)")
    traps = commands.add_parser("traps", help="make trap pairs from relevant passages")
    margins = commands.add_parser("margins", help="score trap pairs by a trained arm")
    margins.add_argument("--cases", required=True, help="file of trap pairs, or rare-words for the bundled ones")
    candidates = commands.add_parser("candidates", help="compare candidates that contain look-alikes")
    for command in (margins, candidates):
        command.add_argument("--arm", type=Path, required=True, help="folder that rank or table1 wrote")
    of_data = (aside, rank, table1, noise, traps, candidates, sdnet, documents, first_stage, depths, overlap, shortcut)
    for command in of_data:
        command.add_argument("--data", type=Path, required=True, help="folder of the data set")
        command.add_argument("--dev", default="dev", help="split to report")
    for command in (pretrain, rank, table1, noise, documents, shortcut):
        command.add_argument("--start", help="checkpoint to start from (default: MiniLM)")
    for command in (pretrain, rank, table1, noise, sdnet, documents):
        command.add_argument("--seed", type=int, default=1)
    for command in (pretrain, rank, table1, noise, sdnet, documents, first_stage, depths, overlap, shortcut):
        command.add_argument("--pool", type=Path, default=Path("papers-pool"), help="data that several calls share")
    for command in (pretrain, rank, table1, noise, margins, documents, depths, shortcut):
        command.add_argument("--device", help="such as cuda or cpu")
    for command in (*of_data, pretrain, margins):
        command.add_argument("--out", type=Path, required=True)
    collecting = commands.add_parser("collect", help="merge the results of trained arms into a page's files")
    collecting.add_argument("arms", type=Path, nargs="+", help="folders that rank, table1 or noise wrote")
    collecting.add_argument("--out", type=Path, required=True, help="such as docs/results/papers")
    collecting.add_argument("--measures", nargs="+", help="those to keep (default: all that were measured)")
    collecting.add_argument("--repeated", action="store_true", help="they are kept already; add them beside those")
    rare = commands.add_parser("collect-rare-words", help="keep what `rankwell experiment rare-words` measured")
    rare.add_argument("folder", type=Path, help="output folder of the experiment")
    rare.add_argument("--name", required=True, help="of the cases, such as sample")
    rare.add_argument("--seed", type=int, help="of the models, if there are several trainings")
    rare.add_argument("--out", type=Path, required=True, help="such as docs/results/papers")
    by_depth = commands.add_parser("collect-depths", help="keep what `depths` measured of one trained ranker")
    by_depth.add_argument("file", type=Path, help="file that depths wrote")
    by_depth.add_argument("--data", required=True, help="name of the data set, such as insuranceqa")
    by_depth.add_argument("--first", required=True, help="first stage that found the candidates, such as deepct")
    by_depth.add_argument("--row", required=True, help="row of table1 that was trained, such as drbert")
    by_depth.add_argument("--seed", type=int, default=1, help="of the trained ranker")
    by_depth.add_argument("--out", type=Path, required=True, help="such as docs/results/papers")
    types = commands.add_parser("collect-types", help="keep the types that rules guess for the queries")
    types.add_argument("--data", type=Path, required=True, help="folder of the data set")
    types.add_argument("--dev", default="dev", help="split whose queries are typed")
    types.add_argument("--out", type=Path, required=True, help="such as docs/results/papers/types.questions.csv.gz")
    tables = commands.add_parser("tables", help="print the page's tables from the stored results")
    tables.add_argument("folder", type=Path, help="such as docs/results/attention-rules")
    tables.add_argument("--page", choices=("ccnu",), help="page of several that are made from the folder")
    picture = commands.add_parser("picture", help="draw RR@10 by the number of training pairs")
    picture.add_argument("folder", type=Path, help="such as docs/results/papers")
    picture.add_argument("--out", type=Path, required=True, help="such as docs/figures/training-pairs.png")
    summary = commands.add_parser("summary", help="print the table of docs/results.md")
    summary.add_argument("folder", type=Path, help="such as docs/results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
