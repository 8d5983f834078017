"""Chooses and fits the rule by which a service asks its next tier, from labelled or unlabelled data."""
