"""What may happen to the worker of a scripted world: each action is a method, called by its name in a script."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Literal

import numpy as np

from halimede.bus import Delivery, Packet
from halimede.errors import InvalidFieldError
from halimede.frames import new_frame, pack
from halimede.messages import Frame
from tests.unit.pipeline.scripted_records import Offer
from tests.unit.pipeline.scripted_world import World

Shape = Literal["small", "medium", "large", "colour", "png", "huge", "garbage"]
SHAPES = {"small": (2, 2), "medium": (90, 90), "large": (280, 280), "colour": (2, 2, 3), "png": (16, 16)}


@lru_cache
def frame_of(number: int, value: int, shape: Shape, deadline_ms: float) -> Frame:
    """Return a frame whose id is ``number``; garbage and huge ones cannot be decoded."""
    pixels = np.full(SHAPES.get(shape, (2, 2)), value, np.uint8)
    frame = new_frame(pixels, encoding="png" if shape == "png" else "raw", id_=number.to_bytes(16))
    frame.deadline_ms = deadline_ms
    if shape == "huge":
        frame.shape, frame.dtype = [65_535, 65_535, 4], "float64"
    elif shape == "garbage":
        frame.encoding, frame.data = "jpeg", memoryview(b"\xff\xd8\xff no picture")
    return frame


class Actions:
    """Does to a world what a script says."""

    def __init__(self, world: World) -> None:
        self._world = world

    # --- frames and requests --------------------------------------------------------------------------------------

    async def offer(self, number: int, value: int, shape: Shape, *, patient: bool, acked: bool) -> None:
        """Have a source hand over a frame."""
        world = self._world
        if world.edge is None:
            return
        frame = frame_of(number, value, shape, 0.0)
        offer = Offer(frame.id, acked)
        answered = offer.note if acked else None
        work = world.edge.intake.offer(pack(frame), "cam0", patient=patient, answered=answered)
        offer.task = asyncio.create_task(work)
        world.records.offers.append(offer)

    async def cancel_offer(self, number: int) -> None:
        """Cancel one of the sources whose frame waits."""
        pending = [offer.task for offer in self._world.records.offers if offer.task and not offer.task.done()]
        if pending:
            pending[number % len(pending)].cancel()

    async def request(
        self, number: int, value: int, shape: Shape, *, deadline_ms: float, requester: str, correlation: int
    ) -> None:
        """Take a request; one from "nobody" carries a response topic that is not the service's."""
        world, intake = self._world, self._world.requests
        if intake is None or world.draining:
            return
        frame = frame_of(number, value, shape, deadline_ms)
        channel = world.channel
        address, reply_to = channel.to("w0"), channel.reply.at(**channel.names, worker=requester).text
        assert address is not None
        topic = "another/topic" if requester == "nobody" else reply_to
        packet = Packet(address.text, b"", response_topic=topic, correlation=b"c%d" % correlation)
        before = sum(world.records.replies.values())
        accepted, had_slot = len(world.records.submitted), intake.responder.outbox.ready
        known = (reply_to, frame.id) in intake.inside
        try:
            intake.take(Delivery(address, {}, frame, packet))
        except InvalidFieldError:
            assert requester == "nobody"
            return
        assert requester != "nobody"
        replies = sum(world.records.replies.values()) - before
        if len(world.records.submitted) == accepted and not known:
            assert replies == int(had_slot), "a request that is not accepted gets one reply"
        elif known:
            assert replies <= 1

    async def burst(self, count: int, value: int) -> None:
        """Hand over several frames and requests in one turn of the loop."""
        for number in range(count):
            await self.offer(40 + number, value, "small", patient=False, acked=True)
            await self.request(40 + number, value, "small", deadline_ms=0.0, requester="e0", correlation=number)

    # --- models ---------------------------------------------------------------------------------------------------

    async def model(self, mode: Literal["good", "fails", "breaks batches"]) -> None:
        """Change how all models behave."""
        script = self._world.script
        script.fails, script.breaks_batches = mode == "fails", mode == "breaks batches"

    async def thread(self, call_s: float, stall_s: float) -> None:
        """Change how long model calls take; the next one stalls."""
        self._world.pace.call_s, self._world.pace.stall_s = call_s, stall_s

    async def replace(self) -> None:
        """Replace the model, between two batches."""
        self._world.slot.replace(await self._world.load_model())

    async def promote(self) -> None:
        """Make the canary the current model."""
        if canary := self._world.slot.rollout.canary:
            self._world.slot.replace(canary)

    async def try_out(self, percent: int, *, blind: bool) -> None:
        """Try a canary out on a share of the samples."""
        self._world.slot.try_out(await self._world.load_model(canary=True, blind=blind), percent)

    async def withdraw(self) -> None:
        """Withdraw the canary."""
        self._world.slot.try_out(None, 0)

    # --- others ---------------------------------------------------------------------------------------------------

    async def next_tier(self, mode: str) -> None:
        """Change how the next tier answers."""
        self._world.next.change(mode)

    async def defect(self, broken: bool) -> None:
        """Have the client of the next tier raise what nobody expects."""
        if self._world.defective:
            self._world.defective.broken = broken

    async def change_peers(self, mode: str) -> None:
        """Change how peers answer; what waits here is looked at again."""
        self._world.peers.mode = mode
        if self._world.running and not self._world.running.done():
            self._world.pipeline.rebalance()

    async def network(self, fault: str) -> None:
        """Break the connection to the broker, or what the broker does with publishes."""
        world, faults = self._world, self._world.broker.faults
        world.calm &= fault in {"heal", "delay"}
        match fault:
            case "heal":
                world.heal_network()
            case "cut":
                world.bus.cut()
            case "blink":
                world.bus.cut()
                world.bus.heal()
            case "restart":
                world.restarted = True
                world.broker.restart()
            case "refuse":
                world.broker.refuses = True
            case "mute":
                world.bus.mute = True
            case "loss":
                faults.loss, faults.duplicate = 0.3, 0.2
            case "delay":
                faults.delay_s = (0.0, 0.5)

    async def drain(self, seconds: float) -> None:
        """Drain: what is not answered by then is answered later."""
        self._world.draining = True
        if self._world.edge is not None:
            self._world.drained = True
        await self._world.worker.drain(seconds)
