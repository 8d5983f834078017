"""Hard samples that a node keeps, to look at and to train on: a bounded store."""
