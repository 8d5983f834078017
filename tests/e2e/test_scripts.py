"""The seeds' own form: a user's scripts are started on the named nodes and answer frames."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.running import DIGITS, ROOT, digits, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def test_a_neptune_services_scripts_start_and_answer_frames(tmp_path: Path) -> None:
    pictures = digits()[:100]
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        await system.follow("scripted")
        await system.apply(DIGITS / "1-models.yaml")
        await system.apply(ROOT / "examples" / "script" / "service.yaml")
        await system.until("Running", lambda: system.phase == "Running")
        workers = {name: p for name, p in system.processes().items() if name.startswith("worker:")}
        assert sorted(workers) == ["worker:scripted-cloud-cloud0", "worker:scripted-edge-edge0"]
        edge = workers["worker:scripted-edge-edge0"]
        assert edge.cmdline()[1:] == ["edge.py"]
        assert edge.cwd() == str(ROOT / "examples" / "script" / "code")
        assert edge.environ()["ANYTHING"].startswith("reaches")
        await system.send(pictures, camera="scripted")
        await system.until("answers", lambda: len(system.results) == len(pictures), 30)
        assert {r.by for r in system.results.values()} == {"edge", "cloud"}
        assert not any(r.degraded for r in system.results.values())
