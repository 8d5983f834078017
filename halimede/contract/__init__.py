"""The documents of the contract (all topics with their bodies), generated from the code: topics.md and AsyncAPI."""
