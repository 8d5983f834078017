"""A stream that drifts, and a service that learns it: what `make demo-loop` runs."""
