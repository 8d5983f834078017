"""Offloading: the client that sends hard samples to workers of the next tier and returns answers."""

from halimede.offload.client import OffloadClient

__all__ = ["OffloadClient"]
