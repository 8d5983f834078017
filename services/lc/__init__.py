"""Local controller (LC): holds GM's resources for one node, runs its workers, and reports on them. Works without GM."""
