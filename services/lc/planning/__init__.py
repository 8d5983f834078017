"""Decides which worker processes should run on this node. Pure: maps resources to process specifications."""
