"""``publish --draw`` waits for the answers to frames that were sent, and counts those without one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from halimede import codec, topics
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.message import Delivery
from halimede.cameras.publisher import CameraPublisher
from halimede.cli import answer_drawer
from halimede.cli.answer_drawer import AnswerDrawer
from halimede.errors import TooLargeError
from halimede.messages import Prediction, Result
from tests.cameras import captured, jpeg
from tests.waiting import patience


class Refusing(MemoryBus):
    """Its broker does not accept the frames of these sequences."""

    too_large = frozenset({1, 2, 7})

    async def publish(self, address: Any, body: Any, *arguments: Any, **more: Any) -> bool:
        if "/frames/" in address.text and codec.decode(topics.REQUEST, body).sequence in self.too_large:
            raise TooLargeError(address.text)
        return await super().publish(address, body, *arguments, **more)


async def test_a_frame_that_is_not_sent_is_no_frame_without_an_answer(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answer_drawer, "QUIET_S", patience(0.5))
    monkeypatch.setattr(answer_drawer, "MAX_DRAWINGS", 5)

    async with MemoryBus("edge", memory_broker) as worker, Refusing("camera", memory_broker) as bus:

        async def answer(delivery: Delivery[bytes]) -> None:
            frame = codec.decode(topics.REQUEST, bytes(delivery.body))
            result = Result(
                id=frame.id.hex(), service="a", by="edge", worker="w", prediction=Prediction(label="7", score=0.5)
            )
            if frame.sequence != 3:
                await worker.publish(topics.RESULT.at(ns="default", service="a"), result)

        for connecting in (worker, bus):
            await connecting.wait_connected(patience(20.0))
        await worker.subscribe(topics.CAMERA_FRAME.filter(camera="cam0"), answer)
        drawer = AnswerDrawer(tmp_path / "drawn", "default")
        await drawer.start(bus)
        publisher = CameraPublisher(
            bus, "default", "cam0", qos=1, bare=False, patient=False, stop=asyncio.Event(),
            on_frame=drawer.add_frame, on_drop=drawer.drop,
        )  # fmt: skip
        assert [await publisher.take(captured(jpeg(1)), number) for number in range(9)].count(True) == 6
        assert await drawer.finish() == 1
    printed = capsys.readouterr()
    assert "4 answers drawn in" in printed.out
    assert "only answers to the first 5 of 6 frames were drawn" in printed.err
    assert "1 of 5 frames had no answer" in printed.err
