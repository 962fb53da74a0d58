"""The stages of recipes: what each kind does, and the kinds by name."""
