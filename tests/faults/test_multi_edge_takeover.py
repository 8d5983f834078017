"""kill -9 of a member under load: the others answer its frames within 3 s, none is lost, and it gets them back.

On a busy machine all answers are late: the wait of other cameras' frames is added to the 3 s.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.frames import new_id, pack
from halimede.messages import Frame, Peer, Result
from tests.digits import picture
from tests.integration.workers import Site, Worker
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

#: seconds: in which the others take over on a quiet machine; between two frames of a camera
TAKES_OVER_S, EVERY_S = 1.0, 0.03
#: so long the model takes: there is always a frame in hand
SLOW = """
import time

class Slow:
    def predict(self, data):
        time.sleep(0.01)
        return {"label": "seen", "probabilities": [0.9, 0.1]}
"""


class Members:
    """Three members with a camera each; results by frame, with the time at which they came."""

    def __init__(self, s: Site, png: bytes) -> None:
        self._site, self._picture = s, png
        self.names = [f"{s.service}-{letter}" for letter in "abc"]
        self.sent: dict[str, str] = {}
        self.sent_at: dict[str, float] = {}
        self.results: dict[str, tuple[float, Result]] = {}
        self.copies: Counter[str] = Counter()
        self.peers: dict[str, Peer] = {}
        self.unheard = 0

    async def listen(self) -> None:
        (self._site.folder / "slow.py").write_text(SLOW)

        async def result(delivery: Delivery[Result]) -> None:
            self.copies[delivery.body.id] += 1
            self.results.setdefault(delivery.body.id, (asyncio.get_running_loop().time(), delivery.body))

        async def peer(delivery: Delivery[Peer]) -> None:
            self.peers[delivery.names["worker"]] = delivery.body

        async def gone(names: dict[str, str]) -> None:
            self.peers.pop(names["worker"], None)

        names = {"ns": "default", "service": self._site.service}
        await self._site.bus.subscribe(topics.MULTI_RESULT.filter(**names), result)
        await self._site.bus.subscribe(topics.PEER.filter(**names), peer, cleared=gone)

    async def start(self, name: str, share: str) -> Worker:
        parameters = [{"key": "share", "value": share}]
        worker = self._site.start(
            "member", name, "", ESTIMATOR="slow:Slow", PYTHONPATH=f"{Path.cwd()}:{self._site.folder}",
            APPLICATION=json.dumps({"name": "balance", "parameters": parameters}), PART=name,
            MEMBERS=json.dumps(self.names), CAMERAS=json.dumps(self.names), SOURCE=json.dumps({"cameras": [name]}),
            DEADLINE_MS="5000",
        )  # fmt: skip
        await self._site.running(name)
        return worker

    async def send(self, camera: str) -> None:
        frame = Frame(id=new_id(), encoding="png", data=memoryview(self._picture))
        address = topics.CAMERA_FRAME.at(ns="default", camera=camera)
        heard = await self._site.bus.publish(address, pack(frame), qos=1)
        self.unheard += not heard
        self.sent[frame.id.hex()], self.sent_at[frame.id.hex()] = camera, asyncio.get_running_loop().time()

    async def film(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.gather(*(self.send(camera) for camera in self.names))
            await asyncio.sleep(EVERY_S)

    def answered_of(self, camera: str) -> list[tuple[float, Result]]:
        return [self.results[id_] for id_, of in self.sent.items() if of == camera and id_ in self.results]

    def delay(self, camera: str, since: float, until: float) -> float:
        """Return the longest wait for an answer to a frame of another camera within a time; 0 if there is none."""
        answered = {id_: time for id_, (time, _) in self.results.items() if since < time <= until}
        return max((time - self.sent_at[id_] for id_, time in answered.items() if self.sent[id_] != camera), default=0)

    def held(self) -> list[str]:
        return [intake for peer in self.peers.values() for intake in peer.holds]

    async def all_answered(self) -> None:
        await eventually(lambda: set(self.sent) <= set(self.results), 30)


@pytest.mark.parametrize("share", ["false", "true"])
async def test_a_member_that_is_killed_under_load_loses_nothing_and_gets_its_frames_back(s: Site, share: str) -> None:
    m = Members(s, picture(10))
    await m.listen()
    a = m.names[0]
    first, *others = await asyncio.gather(*(m.start(name, share) for name in m.names))
    stop, clock = asyncio.Event(), asyncio.get_running_loop()
    filming = asyncio.create_task(m.film(stop))
    await eventually(lambda: len(m.results) > 50, 30)

    killed = clock.time()
    first.kill()
    await eventually(lambda: any(r.worker != a and t > killed for t, r in m.answered_of(a)), 30)
    if share == "false":
        taken = min(t for t, r in m.answered_of(a) if r.worker != a)
        delay = m.delay(a, killed, taken)
        print(f"taken over after {taken - killed:.2f} s; other frames waited {delay:.2f} s")
        assert taken - killed < patience(TAKES_OVER_S) + delay
    await eventually(m.held, 30)
    await asyncio.sleep(1)

    back = await m.start(a, share)
    await eventually(lambda: not m.held(), 30)
    returned = clock.time()
    await eventually(lambda: any(r.worker == a and t > returned for t, r in m.answered_of(a)), 30)
    stop.set()
    await filming
    await m.all_answered()
    assert m.unheard == 0
    # what was answered but not acknowledged when it was killed is answered again, under the same id
    repeated = sum(count > 1 for count in m.copies.values())
    print(f"{len(m.sent)} frames, {repeated} answered twice")
    assert repeated <= 64
    assert await asyncio.gather(*(worker.terminate() for worker in (back, *others))) == [0, 0, 0]
    for name in m.names:
        assert s.counts(name).lost == 0
    assert sum(s.counts(name).inference_number for name in m.names) >= len(m.sent) - 64
    # they stopped in order: no session is left behind that would hear this
    m.unheard = 0
    await m.send(a)
    assert m.unheard == 1
