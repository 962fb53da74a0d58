"""The first stage: the inverted index, BM25 and its tuning. Never imports torch."""
