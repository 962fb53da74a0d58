"""One module per stage kind: its options, what it learns, and how it is checked, run and measured."""
