"""Fault 18: a cloud worker ten times slower. Its queue is bounded, nothing is computed too late, the edge sheds."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
from PIL import Image

from halimede import topics
from halimede.bus import Delivery
from halimede.frames import new_frame
from halimede.messages import Reply
from services.broker import MosquittoProcess
from tests.digits import ALL_HARD, Digits, slow
from tests.integration.workers import Worker, site
from tests.simulated import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FAST_S, SLOW_S = 0.02, 0.2
MIB = 1024 * 1024


def noise(side: int = 256) -> bytes:
    """Return a picture that no compression makes smaller."""
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (side, side), np.uint8)).save(out, format="PNG")
    return out.getvalue()


def memory(worker: Worker) -> int:
    return int(psutil.Process(worker.process.pid).memory_info().rss)


async def test_fault_18_the_edge_sheds_and_its_memory_stays(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, digits: Digits
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        cloud = s.start_script("cloud", f"{unique}-c", slow(SLOW_S))
        edge = s.start("edge", f"{unique}-e", digits.small, **ALL_HARD, DEADLINE_MS="1500")
        await s.running(f"{unique}-c", f"{unique}-e")
        pictures = [noise()] * 100
        await s.send(pictures, fps=100)
        await s.answered()
        before = memory(edge), memory(cloud)
        for _ in range(4):
            await s.send(pictures, fps=100)
        await s.answered()
        assert set(s.copies.values()) == {1}
        # 400 pictures of 64 KiB went through: kept, they would be 25 MiB, decoded and queued more
        assert max(memory(edge) - before[0], memory(cloud) - before[1]) < 20 * MIB
        assert len(s.by("cloud")) >= 10, "in five seconds it can answer 25"
        assert set(s.reasons()) <= {"shed", "window-full", "deadline", "too-slow"}
        kept_back = sum(s.reasons()[reason] for reason in ("shed", "window-full", "too-slow"))
        assert kept_back > s.reasons()["deadline"]
        await eventually(lambda: s.counts(f"{unique}-e").inference_number == len(s.sent))
        assert s.counts(f"{unique}-e").degraded == sum(s.reasons().values())


async def test_fault_18_a_worker_that_is_flooded_refuses_drops_what_expired_and_goes_on(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        s.start_script("cloud", f"{unique}-c", slow(SLOW_S))
        await s.running(f"{unique}-c")
        replies: Counter[str] = Counter()

        async def replied(delivery: Delivery[Reply]) -> None:
            replies[delivery.body.error or "answered"] += 1

        names = {"ns": "default", "service": unique}
        reply_to = topics.REPLY.at(**names, worker="asker")
        await s.bus.subscribe(topics.REPLY.filter(**names, worker="asker"), replied)
        to = topics.REQUEST_TO.at(**names, worker=f"{unique}-c")

        async def ask(deadline_ms: float) -> None:
            frame = msgspec.structs.replace(new_frame(np.zeros((8, 8), np.uint8)), deadline_ms=deadline_ms)
            await s.bus.publish(to, frame, reply_to=reply_to, correlation=frame.id)

        await asyncio.gather(*(ask(1000) for _ in range(200)))
        # it takes one at a time, at most 64 wait, and those that wait too long cost the model nothing
        await eventually(lambda: replies["overloaded"] >= 200 - 64 - 20, 30)
        await ask(60_000)
        await eventually(lambda: replies["answered"] >= 2, 30)
        await eventually(lambda: s.counts(f"{unique}-c").served == replies["answered"], 30)
        assert replies["answered"] <= 20
        assert set(replies) <= {"answered", "overloaded", "expired"}
        assert sum(replies.values()) < 201, "what expired while it waited is not answered: nobody waits for it"


async def test_fault_18_a_fast_worker_beside_it_gets_most(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, digits: Digits
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        s.start_script("cloud", f"{unique}-fast", slow(FAST_S, "fast"))
        s.start_script("cloud", f"{unique}-slow", slow(SLOW_S, "slow"))
        s.start("edge", f"{unique}-e", digits.small, **ALL_HARD, DEADLINE_MS="3000")
        await s.running(f"{unique}-fast", f"{unique}-slow", f"{unique}-e")
        await s.send(digits.pictures[:300], fps=30)
        await s.answered()
        assert set(s.copies.values()) == {1}
        answered = Counter(r.label for r in s.by("cloud"))
        assert answered["fast"] > 3 * answered["slow"] > 0, answered
        assert len(s.by("cloud")) > 200, s.reasons()
