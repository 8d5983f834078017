"""Local controller: holds GM's resources for this node, runs its workers, and reports on them. Works without GM."""
