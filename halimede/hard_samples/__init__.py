"""Hard samples that a node stores for inspection and training: a bounded store."""

#: their folder in the folder of a worker
FOLDER = "hard"
