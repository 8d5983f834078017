"""Helpers for the operating system: files, processes, memory. They are independent of the rest of halimede."""
