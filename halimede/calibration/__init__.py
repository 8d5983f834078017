"""Selects and fits the rule by which a service requests its next tier, from labelled or unlabelled data."""
