"""Offloading to the next tier: the client that sends hard samples to other workers and returns their answers."""

from halimede.offload.client import OffloadClient

__all__ = ["OffloadClient"]
