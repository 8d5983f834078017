"""Federated training of the digits' small model on three nodes, as resources."""
