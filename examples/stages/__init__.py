"""Applications of multi-edge inference that are made of a few lines: see each file."""
