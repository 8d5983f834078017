"""Measurements: printed for people, written as JSON under build/."""
