"""Frames of cameras on their way to an inference server."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import numpy as np
import pytest

from halimede import topics
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.frames import new_frame, pack
from halimede.messages import DeadLetter
from halimede.serving.errors import ModelUnavailableError
from halimede.serving.router import camera_bridge
from halimede.serving.router.camera_bridge import CameraBridge, RouterIdentity
from halimede.serving.router.router import Router
from tests.inbox import Inbox
from tests.simulated import eventually


class UnavailableRouter:
    async def answer(self, body: bytes, headers: dict[str, str]) -> None:
        raise ModelUnavailableError(f"{len(headers)} headers, and nobody to answer")


async def test_a_raw_frame_is_not_encoded_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    encode = camera_bridge.encode_image  # type: ignore[attr-defined]

    def encode_and_record(*args: Any) -> bytes:
        threads.append(threading.current_thread())
        return encode(*args)

    monkeypatch.setattr(camera_bridge, "encode_image", encode_and_record)
    letters: Inbox[DeadLetter] = Inbox()
    broker = MemoryBroker()
    async with MemoryBus("router", broker) as bus, MemoryBus("camera", broker) as camera:
        await bus.wait_connected(5)
        await camera.wait_connected(5)
        await camera.subscribe(topics.DEAD_LETTER.filter(), letters)
        bridge = CameraBridge(bus, cast("Router", UnavailableRouter()), RouterIdentity("ns", "s", "w", "n"), ["cam0"])
        running = asyncio.create_task(bridge.run())
        await asyncio.sleep(0.01)
        frame = new_frame(np.zeros((4, 4, 3), np.uint8))
        await camera.publish(topics.CAMERA_FRAME.at(ns="ns", camera="cam0"), pack(frame))
        await eventually(lambda: letters.deliveries)
        running.cancel()
    assert threads
    assert threading.main_thread() not in threads
    assert "nobody to answer" in letters.deliveries[0].body.reason
