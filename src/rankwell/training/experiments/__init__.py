"""One recipe in many variants and seeds, compared."""
