"""Fault 41: the cloud takes a third of what is hard. The edge's answers go out on time, and ``status`` says it."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from halimede.cli.manifests import load as load_manifests
from tests import typed
from tests.digits import slow
from tests.e2e.running import DIGITS, System, digits, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FPS, TARGET, DEADLINE_MS, CLOUD_S = 20, 0.2, 5000, 0.75
#: seconds of frames, several times the deadline
SECONDS = 25


async def apply(system: System, folder: Path) -> None:
    """Apply the example with a budget of a fifth, and a cloud worker that takes ``CLOUD_S`` for each sample."""
    script = folder / "cloud.py"
    script.write_text(textwrap.dedent(slow(CLOUD_S)))
    for manifest in load_manifests([str(DIGITS)]):
        body: dict[str, Any] = manifest.resource.body
        if body["kind"] == "JointInferenceService":
            body["spec"]["edgeWorker"] |= {"deadlineMs": DEADLINE_MS, "targetUploadRatio": TARGET}
            container = body["spec"]["cloudWorker"]["template"]["spec"]["containers"][0]
            container["command"] = [sys.executable, str(script)]
        await system.client.apply(body)
    await system.until("the service", lambda: system.phase == "Running")


def overload(system: System) -> tuple[str, str]:
    """Return status and reason of the condition; empty without one."""
    conditions = system.status.status.conditions if system.status else []
    return next(((c.status, c.reason) for c in conditions if c.type == "Overload"), ("", ""))


async def halimede(system: System, *words: str) -> str:
    environment = {**os.environ, "HALIMEDE_HOME": str(system.home), "COLUMNS": "200"}
    return (await asyncio.to_thread(typed.halimede, *words, env=environment)).stdout


async def test_fault_41_the_edge_answers_on_time_and_the_budget_marks_no_more(tmp_path: Path) -> None:
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        await system.follow("digits")
        await apply(system, tmp_path)
        pictures = list(islice(cycle(digits()), SECONDS * FPS))
        sending = asyncio.create_task(system.send(pictures, fps=FPS))
        await system.until("the condition", lambda: overload(system) == ("True", "CloudTooSlow"))
        for command in (("status",), ("top", "--once")):
            shown = await halimede(system, *command)
            assert "CloudTooSlow: takes " in shown, shown
            assert "/s are hard" in shown, shown
        await sending
        await system.until("all answers", lambda: set(system.sent) <= set(system.results))
        assert set(system.copies.values()) == {1}

        results = list(system.results.values())
        degraded = [result for result in results if result.degraded]
        assert len(degraded) > 0.05 * len(results), "the cloud took more than a third of what was hard"
        waited = [result for result in degraded if result.total_ms > 0.8 * DEADLINE_MS]
        assert len(waited) <= 0.1 * len(degraded), "the edge's answers waited for the deadline"
        assert sum(result.hard for result in results) / len(results) < 1.5 * TARGET, "more frames were marked hard"
        assert any(result.by == "cloud" for result in results)
        # nothing is hard any more: the condition is over
        await system.until("the end of the overload", lambda: overload(system) == ("False", "CloudFastEnough"))
