"""A broker and clients in one process, for tests and simulation."""

from halimede.bus.memory.broker import MemoryBroker, MemoryBus

__all__ = ["MemoryBroker", "MemoryBus"]
