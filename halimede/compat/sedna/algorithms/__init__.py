"""Algorithms that a script can select, or register its own in."""
