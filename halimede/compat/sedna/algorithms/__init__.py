"""Algorithms that a script chooses from, or adds its own to."""
