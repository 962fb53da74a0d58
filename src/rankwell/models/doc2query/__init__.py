"""The query writer of doc2query: an encoder–decoder."""
