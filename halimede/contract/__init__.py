"""The contract as documents: topics.md and its examples, made from the types."""
