"""Compatibility layers: scripts for other systems run here after a change of their imports."""
