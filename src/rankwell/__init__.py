"""Fit BERT rankers to your own documents, run them fast, and see whether they are better."""
