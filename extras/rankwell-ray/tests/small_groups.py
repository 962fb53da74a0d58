"""Sets how many pairs a group of queries has in a worker's process, so that few pairs make many shards."""

PAIRS = 15


def use() -> None:
    import rankwell.rank.pairs
    import rankwell.rank.ranker  # which takes the usual number, to divide what it computes

    rankwell.rank.pairs.PAIRS_AT_A_TIME = PAIRS
