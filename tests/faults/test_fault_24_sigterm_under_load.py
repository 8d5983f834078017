"""SIGTERM under load: workers, LC and GM drain within their grace period, exit with 0, and owe nobody an answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.errors import BusError
from halimede.frames import new_id, pack
from halimede.messages import Count, Frame, Result
from halimede.stats.ledger import HEADER
from tests.digits import ALL_HARD, Digits
from tests.faults.control import Control
from tests.integration.workers import Site
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = pytest.mark.slow

#: seconds: a worker's grace period, and what a process needs around it
GRACE, AROUND = 10.0, 10.0
CAMERA = topics.CAMERA_FRAME.at(ns="default", camera="cam0")


def ledger(folder: Path, *counts: Count) -> list[int]:
    """Read numbers from a worker's ledger: what it knows itself, whoever has heard of it."""
    data = (folder / "ledger").read_bytes()[HEADER.size :]
    return [int.from_bytes(data[8 * count :][:8], "little") for count in counts]


def settled(folder: Path) -> int:
    """Insist that a worker has answered every frame that it accepted; return how many these are."""
    accepted, answered, lost = ledger(folder, Count.ACCEPTED, Count.ANSWERED, Count.LOST)
    assert (accepted, lost) == (answered, 0)
    assert answered > 0
    return answered


async def ended_in_time(stop: Callable[[], Awaitable[int]], log: Path) -> None:
    began = asyncio.get_running_loop().time()
    assert await stop() == 0, log.read_text()
    assert asyncio.get_running_loop().time() - began < GRACE + patience(AROUND)
    assert "Traceback" not in log.read_text()


@asynccontextmanager
async def busily(work: AsyncIterator[None]) -> AsyncIterator[None]:
    """Go on with some work beside the block."""

    async def run() -> None:
        async for _ in work:
            pass

    task = asyncio.create_task(run())
    try:
        yield
        assert not task.done(), "the load ended too soon"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def frames(plane: Control, pictures: list[bytes]) -> AsyncIterator[None]:
    for number, picture in enumerate(itertools.cycle(pictures)):
        frame = Frame(id=new_id(), sequence=number, encoding="png", data=memoryview(picture))
        with contextlib.suppress(BusError):
            await plane.operator.publish(CAMERA, pack(frame))
        await asyncio.sleep(0.003)
        yield


async def camera(s: Site, pictures: list[bytes]) -> AsyncIterator[None]:
    for picture in itertools.cycle(pictures):
        await s.send([picture], fps=250)
        yield


async def test_fault_24_an_lc_takes_its_workers_down_in_the_midst_of_frames(plane: Control) -> None:
    copies: Counter[str] = Counter()

    async def result(delivery: Delivery[Result]) -> None:
        copies[delivery.body.id] += 1

    pictures = plane.trained()
    await plane.operator.subscribe(topics.RESULT.filter(), result)
    plane.gm_process()
    lc = plane.lc_process()
    body = plane.real_service(edge={}, cloud={}, source={"cameras": ["cam0"]})
    await plane.apply(*plane.real_models(), body)
    await plane.running("digits")
    async with busily(frames(plane, pictures)):
        await plane.until(lambda: len(copies) > 300)
        await ended_in_time(lc.stop, lc.log)
        assert not plane.workers()
    folder = plane.home / "nodes/edge0/workers/default/digits-edge-edge0"
    await plane.until(lambda: ledger(folder, Count.ANSWERED) == [len(copies)])  # the last ones are on their way
    assert settled(folder) == len(copies)
    assert set(copies.values()) == {1}
    for log in plane.home.glob("nodes/edge0/workers/default/*/worker.log"):
        assert "Traceback" not in log.read_text()


async def test_fault_24_gm_in_the_midst_of_edits_keeps_what_it_has_said_yes_to(plane: Control) -> None:
    async with plane.lc():
        gm = plane.gm_process()
        await plane.apply(*plane.models())
        taken: list[str] = []

        async def edits() -> AsyncIterator[None]:
            for number in itertools.count():
                body = plane.models()[0]
                body["metadata"]["name"] = name = f"m{number}"
                await plane.apply(body)
                taken.append(name)
                yield

        async with busily(edits()):
            await plane.until(lambda: len(taken) > 50)
            await ended_in_time(gm.stop, gm.log)
            gm = plane.gm_process()
            before = len(taken)
            await plane.until(lambda: len(taken) > before + 10)
        known = (await plane.ask("list", plural="models", limit=1000)).items
        assert set(taken) <= {item["metadata"]["name"] for item in known}
        await ended_in_time(gm.stop, gm.log)


@pytest.mark.parametrize("who", ["edge", "cloud"])
async def test_fault_24_a_worker_in_the_midst_of_frames(s: Site, digits: Digits, who: str) -> None:
    all_hard = {**ALL_HARD, "GRACE_S": f"{GRACE:g}"}
    other = f"{s.service}-o"
    workers = {
        "edge": s.start("edge", s.edge, digits.small, **all_hard),
        "cloud": s.start("cloud", s.cloud, digits.big),
        "other": s.start("edge", other, digits.small, **all_hard),
    }
    await s.running(s.edge, s.cloud, other)
    async with busily(camera(s, digits.pictures[:600])):
        await eventually(lambda: len(s.results) > 10, 30)
        await ended_in_time(workers[who].terminate, workers[who].log)
    for worker in ("edge", "other"):
        assert await workers[worker].terminate() == 0
    answered = settled(s.folder / s.edge) + settled(s.folder / other)
    await eventually(lambda: answered == len(s.results), 30)
    assert set(s.copies.values()) == {1}
