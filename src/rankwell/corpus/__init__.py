"""Records, file formats, the analyser and the document store."""
