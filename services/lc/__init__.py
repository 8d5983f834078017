"""Local controller: holds what GM sent to this node, runs its workers, and reports on them. Works on without GM."""
