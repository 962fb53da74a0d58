"""duoBERT (Nogueira et al., 2019): the best candidates are compared two by two, ``[CLS] Q [SEP] Di [SEP] Dj [SEP]``.

A second ranker for the top of the first one's list. It learns from (relevant, other) and (other, relevant) pairs
which document is the better one; at inference all ordered pairs of the best 30 are compared and each document's
comparisons summed.

Recipe ``duobert``; the ranker is used like any other: ``rankwell rerank mono.run --model duo``; page docs/rank.md.
"""
