"""What several papers' systems share and the trunk does not need."""
