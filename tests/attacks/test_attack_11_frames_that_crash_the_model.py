"""Attack 11: a frame that breaks the big model, or ends its process. The others are answered; it is not tried for ever.

Within a worker the batch is halved until the culprit stands alone; after two failures it is quarantined there. One that
ends processes is not sent to a third worker by its requester, and the answer is the edge's.
"""

from __future__ import annotations

import asyncio
import signal

import numpy as np
import pytest

from halimede.frames import new_frame
from tests.digits import ABORTS, ALL_HARD, BREAKABLE, RAISES, Digits, picture
from tests.integration.workers import Site
from tests.requester import Requester, answered_once
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def calls(s: Site, name: str) -> list[list[int]]:
    """Return what a breakable model was called with: first pixels, a list a batch."""
    file = s.folder / name / "calls"
    return [[int(value) for value in line.split()] for line in file.read_text().splitlines()] if file.exists() else []


async def test_attack_11_one_that_raises_is_isolated_and_the_others_are_answered(s: Site, digits: Digits) -> None:
    cloud = s.start_script("cloud", s.cloud, BREAKABLE, MODEL_SPEC="")
    s.start("edge", s.edge, digits.small, **ALL_HARD, DEADLINE_MS="20000")
    await s.running(s.cloud, s.edge)
    bad = picture(RAISES)
    await s.send_all([bad if number % 10 == 5 else picture(number) for number in range(60)], fps=100)
    answered_once(s)
    by_number = {s.sent[result.id]: result for result in s.results.values()}
    broken = {number for number, result in by_number.items() if result.reason == "error"}
    assert broken == {number for number in range(60) if number % 10 == 5}
    assert all(by_number[number].by == "edge" and by_number[number].degraded for number in broken)
    assert len(s.by("cloud")) >= 40
    assert max(map(len, calls(s, s.cloud))) > 1, "nothing was ever batched"
    assert cloud.process.poll() is None


async def test_attack_11_one_that_is_sent_again_is_quarantined_after_two_failures(s: Site) -> None:
    await s.run_script("cloud", BREAKABLE, MODEL_SPEC="")
    bad = new_frame(np.full((8, 8), RAISES, np.uint8))
    # each time by another requester, who cannot know
    requesters = [await Requester(s, f"requester{number}").listen() for number in range(5)]
    errors = [(await requester.ask(bad)).error for requester in requesters]
    assert errors == ["failed", "quarantined", "quarantined", "quarantined", "quarantined"]
    assert calls(s, s.cloud) == [[RAISES], [RAISES]]


@pytest.mark.parametrize("others", [0, 20])
async def test_attack_11_one_that_ends_processes_reaches_no_third_worker(s: Site, digits: Digits, others: int) -> None:
    clouds = [s.start_script("cloud", f"{s.cloud}{number}", BREAKABLE, MODEL_SPEC="") for number in range(3)]
    edge = s.start("edge", s.edge, digits.small, **ALL_HARD, DEADLINE_MS="60000")
    await s.running(*(f"{s.cloud}{number}" for number in range(3)), s.edge)
    innocent = [picture(number) for number in range(others)]
    await s.send([*innocent[:10], picture(ABORTS), *innocent[10:]], fps=200)
    await s.answered(60)
    answered_once(s)
    (bad,) = [result for result in s.results.values() if s.sent[result.id] == min(others, 10)]
    assert (bad.by, bad.degraded, bad.reason) == ("edge", True, "error")
    # what was in the model together with it, twice, is the edge's to answer as well; nothing waits in vain
    assert set(s.reasons()) == {"error"}
    await eventually(lambda: sum(cloud.process.poll() is not None for cloud in clouds) == 2, 30)
    await asyncio.sleep(0.5)
    assert sorted(str(cloud.process.poll()) for cloud in clouds) == [str(-signal.SIGABRT)] * 2 + ["None"]
    had = [name for name in (f"{s.cloud}{n}" for n in range(3)) if any(ABORTS in c for c in calls(s, name))]
    assert len(had) == 2
    # the third one goes on for everybody
    s.workers = [worker for worker in s.workers if worker.process.poll() is None]
    await s.send_all([picture(number) for number in range(20)], fps=50)
    answered_once(s)
    assert [result.by for result in s.results.values()][-20:] == ["cloud"] * 20
    assert edge.process.poll() is None
    await eventually(lambda: s.counts(s.edge).inference_number == len(s.sent))


async def test_attack_11_one_that_ends_edge_workers_is_refused_after_its_third_victim(s: Site) -> None:
    """The broker sends it to each next worker, since nobody has answered it, until the journal of crashes names it."""
    code = BREAKABLE.replace("run_cloud", "run_edge")
    worker = await s.run_script("edge", code, MODEL_SPEC="")
    await s.send([picture(1), picture(ABORTS)])
    for _ in range(3):
        assert await asyncio.to_thread(worker.process.wait, patience(30)) == -signal.SIGABRT
        s.workers.remove(worker)
        worker = s.start_script("edge", s.edge, code, MODEL_SPEC="")
    await s.running(s.edge)
    s.sent = {id_: number for id_, number in s.sent.items() if number == 0}
    await s.send_all([picture(2)] * 10)
    assert worker.process.poll() is None
    assert s.counts(s.edge).lost == 0
    assert sum(ABORTS in call for call in calls(s, s.edge)) == 3
