"""DR-BERT's parts, compared fairly: see docs/attention-rules.md.

python bench/papers.py tables docs/results/attention-rules
"""

from __future__ import annotations

from pathlib import Path

from harness import make_parser
from paper_tables import print_tables


def main() -> None:
    """Do what the command says."""
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    tables = commands.add_parser("tables", help="print the page's tables from the stored results")
    tables.add_argument("folder", type=Path, help="such as docs/results/attention-rules")
    options = parser.parse_args()
    if options.command == "tables":
        print_tables(options.folder)


if __name__ == "__main__":
    main()
