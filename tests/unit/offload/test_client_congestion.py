"""What was given up still stands before everything else on its way: a client that knows it sends no more behind it."""

from __future__ import annotations

import asyncio

import pytest

from halimede.bus import Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.offload.errors import OffloadError, OffloadReason
from tests.unit.frames.clouds import NS, SERVICE, frame
from tests.worlds import connected


class Jammed(MemoryBus):
    """A connection that takes what it is given and brings it nowhere."""

    unanswered = 0

    @property
    def owed(self) -> int:
        return self.unanswered

    def post(self, packet: Packet) -> asyncio.Future[int] | None:
        self.unanswered += len(packet.payload) + len(packet.tail)
        return asyncio.get_running_loop().create_future()


@pytest.mark.simulated
async def test_a_full_way_is_known_at_once_and_is_tried_again_when_it_has_carried_what_it_had() -> None:
    async with connected(Jammed("edge", MemoryBroker())) as bus:
        asking = OffloadClient(bus, inference(NS, SERVICE, "edge"), window=32)
        await asking.start()

        async def reason() -> OffloadReason:
            with pytest.raises(OffloadError) as caught:
                await asking.ask(frame(1, (100, 100)), 2.0)
            return caught.value.reason

        first = await asyncio.gather(*(reason() for _ in range(4)))
        assert first == [OffloadReason.DEADLINE] * 4, "nothing is known of the way: all are sent"
        full, began = bus.unanswered, asyncio.get_running_loop().time()
        for _ in range(20):
            assert await reason() is OffloadReason.TOO_SLOW
        assert bus.unanswered == full
        assert asyncio.get_running_loop().time() == began, "what is not sent is answered at once"
        bus.unanswered = 300  # a result is on its way, as always
        assert await reason() is OffloadReason.DEADLINE
