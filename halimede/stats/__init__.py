"""Numbers that add up: counters of a worker, latency histograms, agreement of two models."""
