"""Numbers that can be added up: counters of a worker, latency histograms, agreement of two models."""
