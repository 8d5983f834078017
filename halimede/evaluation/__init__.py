"""What a service's models and rules are worth, measured on data."""
