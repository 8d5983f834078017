"""Sedna's multi-edge inference: its data classes work, its services are a MultiEdgeInferenceService here."""
