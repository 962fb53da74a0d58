"""The command line: one module per verb, which parses, calls and prints."""
