"""Proposes a Model for a file: what the file shows, the families of models, and a script for the others."""
