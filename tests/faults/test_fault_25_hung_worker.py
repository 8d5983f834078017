"""A worker that hangs under load: the others answer its frames, status names it, its controller replaces it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.running import DIGITS, ROOT, System, digits, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: frames a second on each of two cameras, and of each camera
FPS, FRAMES = 10, 350
SERVICE = "digits"
#: seconds that a busy machine may add to what takes 10 (answers of others) and 15 (status) on an idle one
BUSY_S = 8


class Timeline:
    """What happened when, in seconds since the fault."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.began = 0.0
        self.sent_at: dict[str, float] = {}
        self.answered_at: dict[str, float] = {}
        self.reasons: list[tuple[float, str]] = []
        self.ended: list[tuple[float, int, str]] = []

    async def watch(self) -> None:
        """Note when frames are sent and answered, and what the service's status says."""
        while True:
            now = time.monotonic()
            for id_ in self._system.sent.keys() - self.sent_at.keys():
                self.sent_at[id_] = now
            for id_ in self._system.results.keys() - self.answered_at.keys():
                self.answered_at[id_] = now
            status = self._system.status
            current = (
                next((c for c in reversed(status.status.conditions) if c.status == "True"), None) if status else None
            )
            said = f"{current.type}/{current.reason}: {current.message}" if current else ""
            if said and (not self.reasons or self.reasons[-1][1] != said):
                self.reasons.append((now - self.began, said))
            await asyncio.sleep(0.02)

    async def ask(self) -> None:
        """Run ``halimede status`` as an operator does, again and again."""
        command = [str(Path(sys.executable).with_name("halimede")), "status"]
        environment = {**os.environ, "HALIMEDE_HOME": str(self._system.home), "PYTHONPATH": str(ROOT)}
        while True:
            asked_at = time.monotonic()
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, env=environment, check=False
            )
            self.ended.append((asked_at - self.began, done.returncode, done.stdout + done.stderr))
            await asyncio.sleep(1)

    def first(self, word: str) -> float:
        return next((when for when, said in self.reasons if word in said), float("inf"))

    @property
    def slowest_s(self) -> float:
        return max(self.answered_at[id_] - sent for id_, sent in self.sent_at.items())


async def hang(tmp_path: Path, victim: str) -> tuple[System, Timeline]:
    """Stop a worker by SIGSTOP while frames flow, until it has been replaced and all is answered."""
    pictures = digits()
    async with running(tmp_path / "home") as system:
        await system.follow(SERVICE)
        await system.apply(DIGITS)
        await system.until("the service", lambda: system.phase == "Running")
        timeline = Timeline(system)
        timeline.began = time.monotonic()
        watching = [asyncio.create_task(timeline.watch()), asyncio.create_task(timeline.ask())]
        sending = asyncio.gather(
            system.send(pictures[:FRAMES], "cam0", FPS), system.send(pictures[FRAMES : 2 * FRAMES], "cam1", FPS)
        )
        await asyncio.sleep(3)
        before = system.processes()[victim]
        timeline.began = time.monotonic()
        os.kill(before.pid, signal.SIGSTOP)
        await system.until("a new worker", lambda: system.processes().get(victim, before).pid != before.pid)
        replaced_s = time.monotonic() - timeline.began
        await sending
        await system.until("all answers", lambda: system.sent.keys() <= system.results.keys(), 30)
        await system.until("Running again", lambda: system.phase == "Running")
        lost = system.metric("lost")
        unnamed = len(system.sent) - len(system.results) - lost
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        failed = [when for when, code, _ in timeline.ended if when > 0 and code]
        print(
            f"{victim}: sent {len(system.sent)}, answered {len(system.results)}, lost {lost:g}, unnamed {unnamed:g}, "
            f"copies {sum(system.copies.values()) - len(system.copies)}, slowest answer {timeline.slowest_s:.1f} s, "
            f"replaced after {replaced_s:.1f} s, status failed from {failed[0] if failed else -1:.1f} s"
        )
        for when, said in timeline.reasons:
            print(f"{when:7.1f} s  {said}")
        assert (unnamed, lost) == (0, 0)
        assert failed
        assert failed[0] < 15 + BUSY_S, "`halimede status` ends non-zero"
        named = [text for when, code, text in timeline.ended if when > 0 and code and "WorkerSilent" in text]
        assert named, timeline.ended
        assert not any("clock" in text.lower() or "NTP" in text for _, _, text in timeline.ended)
        assert timeline.first("WorkerSilent") < 15 + BUSY_S
        assert replaced_s < 25 + BUSY_S
        return system, timeline


async def test_fault_25_others_answer_for_a_hung_edge_worker_and_it_is_replaced(tmp_path: Path) -> None:
    _, timeline = await hang(tmp_path, "worker:digits-edge-edge0")
    assert timeline.slowest_s < 10 + BUSY_S


async def test_fault_26_a_hung_cloud_worker_is_named_and_replaced_and_the_edge_goes_on(tmp_path: Path) -> None:
    _, timeline = await hang(tmp_path, "worker:digits-cloud-cloud0")
    assert timeline.slowest_s < 10 + BUSY_S
