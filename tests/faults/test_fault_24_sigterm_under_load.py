"""SIGTERM under load: workers, LC and GM drain within their grace period, exit with 0, and owe nobody an answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from examples.digits import data
from halimede import topics
from halimede.bus import Delivery
from halimede.errors import BusError
from halimede.frames import new_id, pack
from halimede.messages import Count, Frame, Result
from halimede.stats.ledger import HEADER
from services.broker import MosquittoProcess
from tests.faults.control import Child, Control, control
from tests.integration.workers import Site, site, train
from tests.simulated import eventually

pytestmark = pytest.mark.slow

#: seconds: a worker's grace period, and what a process needs around it on a busy machine
GRACE, AROUND = 10.0, 10.0
CAMERA = topics.CAMERA_FRAME.at(ns="default", camera="cam0")


def ledger(folder: Path, *counts: Count) -> list[int]:
    """Read numbers from a worker's ledger: what it knows itself, whoever has heard of it."""
    data = (folder / "ledger").read_bytes()[HEADER.size :]
    return [int.from_bytes(data[8 * count :][:8], "little") for count in counts]


def settled(folder: Path, results: int) -> None:
    """Insist that every accepted frame was answered, and that nobody's answer is missing."""
    accepted, answered, lost = ledger(folder, Count.ACCEPTED, Count.ANSWERED, Count.LOST)
    assert (accepted, lost) == (answered, 0)
    assert answered == results > 0


async def ended_in_time(child: Child) -> None:
    began = asyncio.get_running_loop().time()
    assert await child.stop() == 0, child.log.read_text()
    assert asyncio.get_running_loop().time() - began < GRACE + AROUND
    assert not child.says("Traceback")


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


async def test_fault_24_an_lc_takes_its_workers_down_in_the_midst_of_frames(tmp_path: Path) -> None:
    copies: Counter[str] = Counter()

    async def result(delivery: Delivery[Result]) -> None:
        copies[delivery.body.id] += 1

    async with control(tmp_path) as plane:
        pictures = plane.trained()
        await plane.operator.subscribe(topics.RESULT.filter(), result)
        plane.gm_process()
        lc = plane.lc_process()
        body = plane.real_service(edge={}, cloud={}, source={"cameras": ["cam0"]})
        await plane.apply(*plane.real_models(), body)
        await plane.running("digits")
        async with busily(frames(plane, pictures)):
            await plane.until(lambda: len(copies) > 300)
            await ended_in_time(lc)
            assert not plane.workers()
        folder = plane.home / "nodes/edge0/workers/default/digits-edge-edge0"
        await plane.until(lambda: ledger(folder, Count.ANSWERED) == [len(copies)])  # the last ones are on their way
        settled(folder, len(copies))
        assert set(copies.values()) == {1}
        for log in plane.home.glob("nodes/edge0/workers/default/*/worker.log"):
            assert "Traceback" not in log.read_text()


async def test_fault_24_gm_in_the_midst_of_edits_keeps_what_it_has_said_yes_to(tmp_path: Path) -> None:
    async with control(tmp_path) as plane, plane.lc():
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
            await ended_in_time(gm)
            gm = plane.gm_process()
            before = len(taken)
            await plane.until(lambda: len(taken) > before + 10)
        known = (await plane.ask("list", plural="models", limit=1000)).items
        assert set(taken) <= {item["metadata"]["name"] for item in known}
        await ended_in_time(gm)


@pytest.mark.parametrize("who", ["edge", "cloud"])
async def test_fault_24_a_worker_in_the_midst_of_frames(
    tmp_path: Path, mosquitto: MosquittoProcess, unique: str, who: str
) -> None:
    small, big, split = train(tmp_path)
    pictures = [data.to_png(image) for image in split.test_x[:600]]
    all_hard = {"HEM_NAME": "CloudOnly", "HEM_PARAMETERS": "", "GRACE_S": f"{GRACE:g}"}
    async with site(mosquitto, unique, tmp_path) as s:
        workers = {
            "edge": s.start("edge", f"{unique}-e", small, **all_hard),
            "cloud": s.start("cloud", f"{unique}-c", big),
            "other": s.start("edge", f"{unique}-o", small, **all_hard),
        }
        await s.running(f"{unique}-e", f"{unique}-c", f"{unique}-o")
        async with busily(camera(s, pictures)):
            await eventually(lambda: len(s.results) > 10, 30)
            loop = asyncio.get_running_loop()
            began = loop.time()
            assert await workers[who].terminate() == 0, workers[who].log.read_text()
            assert loop.time() - began < GRACE + AROUND
        for worker in ("edge", "other"):
            assert await workers[worker].terminate() == 0
        names = (f"{unique}-e", f"{unique}-o")
        totals = [ledger(tmp_path / name, Count.ACCEPTED, Count.ANSWERED, Count.LOST) for name in names]
        assert all(accepted == answered > 0 and lost == 0 for accepted, answered, lost in totals)
        await eventually(lambda: sum(total[1] for total in totals) == len(s.results), 30)
        assert set(s.copies.values()) == {1}
        assert b"Traceback" not in workers[who].log.read_bytes()
