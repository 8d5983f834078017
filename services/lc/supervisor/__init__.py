"""Worker processes of a node: starts, watches and restarts them, and changes their models (``Supervisor``)."""
