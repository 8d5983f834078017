"""Common helpers of a script."""
