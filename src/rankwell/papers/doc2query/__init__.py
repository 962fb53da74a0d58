"""doc2query (Nogueira et al., 2019): a model writes queries that a passage answers, and they are indexed with it.

An encoder-decoder, both halves started from the same BERT, learns passage → query from the training pairs. Sampled
queries are appended to every passage before indexing, so that BM25 also finds it by words it does not
contain.

Recipe ``doc2query``; command ``rankwell expand``, whose file ``rankwell index --expansions`` takes; page
docs/deepct.md.
"""
