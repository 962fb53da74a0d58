"""What is computed over a whole collection before it is indexed: DeepCT's term weights, doc2query's expansions."""
