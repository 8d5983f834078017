"""A handler that keeps what it gets, and can be held up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from halimede.bus import Delivery
from tests.simulated import eventually

M = TypeVar("M")


class Inbox(Generic[M]):
    """Collects deliveries. ``hold`` keeps handlers from returning until ``release``."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery[M]] = []
        self.cleared: list[Mapping[str, str]] = []
        self.started = 0
        self._free = asyncio.Event()
        self._free.set()

    async def __call__(self, delivery: Delivery[M]) -> None:
        self.started += 1
        await self._free.wait()
        self.deliveries.append(delivery)

    async def clear(self, names: Mapping[str, str]) -> None:
        self.cleared.append(names)

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    def read(self, field: Callable[[M], Any]) -> list[Any]:
        return [field(delivery.body) for delivery in self.deliveries]

    async def has(self, count: int) -> None:
        """Wait until that many were handled, and fail if there are more."""
        await eventually(lambda: len(self.deliveries) >= count)
        assert len(self.deliveries) == count
