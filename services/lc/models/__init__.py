"""Models on this node: which are needed, fetched, tried, put in place, removed."""
