"""Pictures and pages drawn from plain numbers: attention, term weights, expansions, curves."""
