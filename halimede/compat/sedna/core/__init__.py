"""The services of a script."""
