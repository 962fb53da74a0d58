"""``python -m rankwell``: the command line."""

from rankwell.cli.main import main

if __name__ == "__main__":
    main()
