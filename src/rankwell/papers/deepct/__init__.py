"""DeepCT (Dai and Callan, 2019): a BERT learns how much each word of a passage matters, and BM25 searches with it.

The target of a term is the share of the passage's training queries that contain it; the loss is the mean squared
error over the first pieces of words. ``tf = round(100·y)`` takes the place of the counted frequencies, after which
BM25 must be tuned again.

Recipe ``deepct``; command ``rankwell weigh``, whose file ``rankwell index --weights`` takes; page docs/deepct.md.
"""
