"""The contract as documents: topics.md and its examples, generated from the types."""
