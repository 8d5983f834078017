"""Hard samples that a node stores for inspection and training: a bounded store."""
