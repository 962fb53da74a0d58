"""Rankers as parts of other toolkits: LangChain, Haystack, PyTerrier. Each module needs its toolkit installed."""
