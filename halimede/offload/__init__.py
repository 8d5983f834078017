"""Offloading: ``OffloadClient`` sends hard samples to the workers of the next tier and returns their answers."""

from halimede.offload.client import OffloadClient

__all__ = ["OffloadClient"]
