"""Sets how many pairs are computed together in a worker's process, so that few pairs make many shards."""

PAIRS = 15


def use() -> None:
    import rankwell.rank.pairs

    rankwell.rank.pairs.PAIRS_AT_A_TIME = PAIRS
