"""Selects and fits the rule by which a service requests its next tier, with or without labels."""
