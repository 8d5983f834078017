"""Trainers that come with halimede."""
