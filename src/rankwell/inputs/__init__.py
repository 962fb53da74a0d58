"""Text → token ids: tokenizers, pieces, templates, markers, windows and batches. Never imports torch."""
