"""Sedna's multi-edge inference: its data classes work; a MultiEdgeInferenceService replaces its services."""
