"""Measures a service's models and rules on data."""
