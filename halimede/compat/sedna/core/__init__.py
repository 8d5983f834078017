"""The services that a script runs."""
