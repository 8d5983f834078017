"""Five nodes, each with two of the ten digits, train one model: what `make demo-federated` shows."""
