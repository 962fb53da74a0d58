"""The command ``rankwell``, also as ``python -m rankwell``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, also while it is being imported."""
    try:
        from rankwell.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
