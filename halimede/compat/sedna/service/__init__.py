"""Sedna's servers. Here the bus is between workers: what is left are names."""
