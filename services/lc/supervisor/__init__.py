"""Worker processes: starts, watches and restarts them, and changes their models."""
