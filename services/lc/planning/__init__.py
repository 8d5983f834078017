"""Decides which workers should run on this node, and which files it needs. Pure: from resources to processes."""
