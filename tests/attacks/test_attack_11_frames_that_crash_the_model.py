"""Attack 11: a frame that breaks the big model, or ends its process. The others are answered; it is not tried for ever.

Within a worker the batch is halved until the culprit stands alone; after two failures it is quarantined there. One that
ends processes is not sent to a third worker by its asker, and the answer is the edge's.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import numpy as np
import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.frames import new_frame
from halimede.messages import Reply
from services.broker import MosquittoProcess
from tests.digits import ABORTS, ALL_HARD, BREAKABLE, RAISES, Digits, picture
from tests.integration.workers import Site, site
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def calls(s: Site, name: str) -> list[list[int]]:
    """Return what a breakable model was called with: first pixels, a list a batch."""
    file = s.folder / name / "calls"
    return [[int(value) for value in line.split()] for line in file.read_text().splitlines()] if file.exists() else []


def once(s: Site) -> None:
    assert set(s.results) == set(s.sent)
    assert set(s.copies.values()) == {1}


async def test_attack_11_one_that_raises_is_isolated_and_the_others_are_answered(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, digits: Digits
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        cloud = s.start_script("cloud", f"{unique}-c", BREAKABLE, MODEL_SPEC="")
        s.start("edge", f"{unique}-e", digits.small, **ALL_HARD, DEADLINE_MS="20000")
        await s.running(f"{unique}-c", f"{unique}-e")
        bad = picture(RAISES)
        await s.send([bad if number % 10 == 5 else picture(number) for number in range(60)], fps=100)
        await s.answered()
        once(s)
        by_number = {s.sent[result.id]: result for result in s.results.values()}
        broken = {number for number, result in by_number.items() if result.reason == "error"}
        assert broken == {number for number in range(60) if number % 10 == 5}
        assert all(by_number[number].by == "edge" and by_number[number].degraded for number in broken)
        assert len(s.by("cloud")) >= 40
        assert max(map(len, calls(s, f"{unique}-c"))) > 1, "nothing was ever batched"
        assert cloud.process.poll() is None


async def test_attack_11_one_that_is_sent_again_is_quarantined_after_two_failures(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        s.start_script("cloud", f"{unique}-c", BREAKABLE, MODEL_SPEC="")
        await s.running(f"{unique}-c")
        names = {"ns": "default", "service": unique}
        errors: list[str] = []

        async def replied(delivery: Delivery[Reply]) -> None:
            errors.append(delivery.body.error)

        bad = new_frame(np.full((8, 8), RAISES, np.uint8))
        for number in range(5):
            # each time by another asker, who cannot know
            asker = f"asker{number}"
            await s.bus.subscribe(topics.REPLY.filter(**names, worker=asker), replied)
            reply_to = topics.REPLY.at(**names, worker=asker)
            await s.bus.publish(topics.REQUEST.at(**names), bad, reply_to=reply_to, correlation=bytes(16))
            await eventually(lambda wanted=number + 1: len(errors) == wanted, 30)  # type: ignore[misc]
        assert errors == ["failed", "quarantined", "quarantined", "quarantined", "quarantined"]
        assert calls(s, f"{unique}-c") == [[RAISES], [RAISES]]


@pytest.mark.parametrize("others", [0, 20])
async def test_attack_11_one_that_ends_processes_reaches_no_third_worker(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, digits: Digits, others: int
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        clouds = [s.start_script("cloud", f"{unique}-c{number}", BREAKABLE, MODEL_SPEC="") for number in range(3)]
        edge = s.start("edge", f"{unique}-e", digits.small, **ALL_HARD, DEADLINE_MS="60000")
        await s.running(*(f"{unique}-c{number}" for number in range(3)), f"{unique}-e")
        innocent = [picture(number) for number in range(others)]
        await s.send([*innocent[:10], picture(ABORTS), *innocent[10:]], fps=200)
        await s.answered(60)
        once(s)
        (bad,) = [result for result in s.results.values() if s.sent[result.id] == min(others, 10)]
        assert (bad.by, bad.degraded, bad.reason) == ("edge", True, "error")
        # what was in the model together with it, twice, is the edge's to answer as well; nothing waits in vain
        assert set(s.reasons()) == {"error"}
        await eventually(lambda: sum(cloud.process.poll() is not None for cloud in clouds) == 2, 30)
        await asyncio.sleep(0.5)
        assert sorted(str(cloud.process.poll()) for cloud in clouds) == [str(-signal.SIGABRT)] * 2 + ["None"]
        had = [name for name in (f"{unique}-c{n}" for n in range(3)) if any(ABORTS in c for c in calls(s, name))]
        assert len(had) == 2
        # the third one goes on for everybody
        s.workers = [worker for worker in s.workers if worker.process.poll() is None]
        await s.send([picture(number) for number in range(20)], fps=50)
        await s.answered()
        once(s)
        assert [result.by for result in s.results.values()][-20:] == ["cloud"] * 20
        assert edge.process.poll() is None
        await eventually(lambda: s.counts(f"{unique}-e").inference_number == len(s.sent))


async def test_attack_11_one_that_ends_edge_workers_is_refused_after_its_third_victim(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    """The broker sends it to each next worker, since nobody has answered it, until the journal of crashes names it."""
    code = BREAKABLE.replace("run_cloud", "run_edge")
    async with site(mosquitto, unique, tmp_path) as s:
        worker = s.start_script("edge", f"{unique}-e", code, MODEL_SPEC="")
        await s.running(f"{unique}-e")
        await s.send([picture(1), picture(ABORTS)])
        for _ in range(3):
            assert await asyncio.to_thread(worker.process.wait, patience(30)) == -signal.SIGABRT
            s.workers.remove(worker)
            worker = s.start_script("edge", f"{unique}-e", code, MODEL_SPEC="")
        await s.running(f"{unique}-e")
        s.sent = {id_: number for id_, number in s.sent.items() if number == 0}
        await s.send([picture(2)] * 10)
        await s.answered()
        assert worker.process.poll() is None
        assert s.counts(f"{unique}-e").lost == 0
        assert sum(ABORTS in call for call in calls(s, f"{unique}-e")) == 3
