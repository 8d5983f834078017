"""What the demos of real pairs count: each published frame by its picture, one answer each, and what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from examples.real_pairs.record import Recorder, picture_key
from halimede import topics
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.errors import HalimedeError
from halimede.frames.payloads import new_id, pack
from halimede.messages import Frame, Prediction, Result
from tests.cameras import jpeg
from tests.waiting import eventually, patience


def result(id_: bytes) -> Result:
    return Result(id=id_.hex(), service="pair", by="edge", worker="w", prediction=Prediction(label="7", score=0.5))


async def test_frames_are_known_by_their_picture_and_answered_once(memory_broker: MemoryBroker) -> None:
    pictures = {f"{number}.jpg": jpeg(number) for number in range(3)}
    recorder = Recorder("pair", {picture_key(data): name for name, data in pictures.items()})
    ids = [new_id() for _ in range(4)]

    async def publish(bus: Any, id_: bytes, data: bytes) -> None:
        frame = Frame(id=id_, camera="cam0", encoding="jpeg", data=memoryview(data))
        await bus.publish(topics.CAMERA_FRAME.at(ns="default", camera="cam0"), pack(frame))

    async with MemoryBus("demo", memory_broker) as bus, MemoryBus("other", memory_broker) as other:
        for each in (bus, other):
            await each.wait_connected(patience(20))
        await recorder.listen(bus)
        for id_, data in zip(ids, pictures.values(), strict=False):
            await publish(other, id_, data)
        await publish(other, ids[3], jpeg(9))
        for id_ in (ids[0], ids[1], ids[1]):
            await other.publish(topics.RESULT.at(ns="default", service="pair"), result(id_))
        await eventually(lambda: recorder.repeated)
        assert {sent.picture for sent in recorder.published.values()} == set(pictures)
        assert (recorder.unknown, recorder.repeated, recorder.unanswered()) == (1, 1, 1)
        with pytest.raises(HalimedeError, match=r"the last answer did not happen: nothing came for 0 s"):
            await recorder.until("the last answer", 0.3, lambda: not recorder.unanswered())
        await other.publish(topics.RESULT.at(ns="default", service="pair"), result(ids[2]))
        await recorder.until("the last answer", patience(5), lambda: not recorder.unanswered())
