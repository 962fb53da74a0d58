"""The papers compared fairly: what docs/papers.md and its neighbours report. One training per call:

    python bench/papers table1 --data DATA/insuranceqa --dev valid --b 0.9 --row drbert --start general-full/model
        --seed 1 --out row
    python bench/papers first-stage --data DATA/insuranceqa --dev valid --k2 8 --row k2 --out first-stage
    python bench/papers collect row-* first-stage --out docs/results/papers
    python bench/papers tables docs/results/papers
    python bench/papers summary docs/results

``table1`` sets 600 training queries aside, on which its rates were chosen. Wikipedia questions: ``--data DATA/wiki
--train questions.train --dev questions.dev --k1 0.6 --b 0.5``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# A folder that is run is itself the place of imports; these modules import each other, and harness, from its parent.
sys.path[0] = str(Path(__file__).parents[1])


def main() -> None:
    """Do what the command says."""
    options = read_options()
    # What trains imports torch, which the tables do without.
    if options.command in ("tables", "summary"):
        show(options)
    elif options.command == "rare-words":
        from papers.rare_words import compare_rare_words

        compare_rare_words(options.model, options.data, options.max_cases, options.out, options.device)
    elif options.command.startswith("collect"):
        from papers.collect import collect, collect_rare_words, collect_types

        if options.command == "collect":
            collect(options.arms, options.out, options.measures, options.repeated)
        elif options.command == "collect-types":
            collect_types(options.data, options.dev, options.out)
        else:
            collect_rare_words(options.folder, options.name, options.out, options.seed)
    else:
        train(options)


def show(options: argparse.Namespace) -> None:
    """``tables`` and ``summary``."""
    from papers.overview import CCNU_TABLES, PAPER_TABLES, print_summary
    from papers.results import Results
    from papers.rules import RULE_TABLES

    if options.command == "summary":
        print_summary(options.folder)
        return
    results = Results(options.folder)
    page = options.page or ("rules" if "rules" in results.runs else "papers")
    for print_table in {"ccnu": CCNU_TABLES, "rules": RULE_TABLES, "papers": PAPER_TABLES}[page]:
        print_table(results)
        print()


def train(options: argparse.Namespace) -> None:
    """``table1`` and ``first-stage``."""
    from papers import training
    from rankwell.models.checkpoints.names import BACKBONE

    numbers = options.k1, options.b, options.aside, options.most, options.k2
    source, row, seed = training.Source(options.data, options.train, options.dev, *numbers), options.row, options.seed
    if options.command == "first-stage":
        training.measure_first_stage(source, options.index, row, options.out, options.pool)
        return
    # The Wikipedia data have two sets of queries, questions.train and headings.train.
    data_name = options.train.partition(".")[0] if "." in options.train else options.data.name
    place = f"{data_name}-{options.train}-{options.dev}-{options.aside}-{options.most or 'all'}"
    data, start = training.set_aside(source, options.pool / place), options.start or BACKBONE
    parts = training.ROWS[row], seed, options.scale, options.classifier
    name = row + (f", {options.scale:g} of the pairs" if options.scale != 1 else "")
    arm = {"study": "table1", "data": data_name, "row": name, "seed": seed}
    recipe = training.row_recipe(data, source, start, *parts)
    training.train_arm(recipe, arm, options.out, options.pool, options.device)


def read_options() -> argparse.Namespace:
    from harness import make_parser

    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    table1 = commands.add_parser("table1", help="one row of DR-BERT's Table 1 at 144,000 pairs")
    table1.add_argument("--row", required=True, help="drbert, no-types, ...; see ROWS in papers/training.py")
    table1.add_argument("--classifier", type=Path, help="folder of the classifier for the row classifier-types")
    table1.add_argument("--start", help="checkpoint to start from (default: MiniLM)")
    table1.add_argument("--device", help="such as cuda or cpu")
    table1.add_argument("--scale", type=float, default=1.0, help="share of the steps")
    first_stage = commands.add_parser("first-stage", help="values of BM25, or of an index of weights or expansions")
    first_stage.add_argument("--row", required=True, help="name of the row, such as deepct")
    first_stage.add_argument("--index", type=Path, help="index to search (default: that of the counted terms)")
    for command in (table1, first_stage):
        command.add_argument("--data", type=Path, required=True, help="folder of the data set")
        command.add_argument("--train", default="train", help="split to train on")
        command.add_argument("--dev", default="dev", help="split to report")
        command.add_argument("--k1", type=float, default=0.9, help="BM25's k1")
        command.add_argument("--b", type=float, default=0.4, help="BM25's b")
        command.add_argument("--k2", type=float, help="BM25's k2 (default: none)")
        command.add_argument("--aside", type=int, default=600, help="training queries that choose the rate")
        command.add_argument("--most", type=int, help="training queries, drawn at random (default: all)")
        command.add_argument("--seed", type=int, default=1)
        command.add_argument("--pool", type=Path, default=Path("papers-pool"), help="data that several calls share")
    collecting = commands.add_parser("collect", help="merge the results of trained arms into a page's files")
    collecting.add_argument("arms", type=Path, nargs="+", help="folders that table1 or first-stage wrote")
    collecting.add_argument("--measures", nargs="+", help="those to keep (default: all that were measured)")
    collecting.add_argument("--repeated", action="store_true", help="they are kept already; add them beside those")
    ranking = commands.add_parser("rare-words", help="rank misleading documents with two models")
    ranking.add_argument("--model", nargs=2, required=True, help="without and with the rule")
    ranking.add_argument("--data", type=Path, help="data set to mine cases from (default: the cases of the sample)")
    ranking.add_argument("--max-cases", type=int, default=40)
    ranking.add_argument("--device")
    rare = commands.add_parser("collect-rare-words", help="keep what `rare-words` measured")
    rare.add_argument("folder", type=Path, help="output folder of the experiment")
    rare.add_argument("--name", required=True, help="of the cases, such as sample")
    rare.add_argument("--seed", type=int, help="of the models, if there are several trainings")
    types = commands.add_parser("collect-types", help="keep the types that rules guess for the queries")
    types.add_argument("--data", type=Path, required=True, help="folder of the data set")
    types.add_argument("--dev", default="dev", help="split whose queries are typed")
    tables = commands.add_parser("tables", help="print the page's tables from the stored results")
    tables.add_argument("--page", choices=("ccnu",), help="page of several that are made from the folder")
    summary = commands.add_parser("summary", help="print the table of docs/results.md")
    for command in (tables, summary):
        command.add_argument("folder", type=Path, help="such as docs/results/papers; for summary docs/results")
    for command in (table1, first_stage, collecting, ranking, rare, types):
        command.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
