"""LC checks the files of models in threads: an archive may have thousands of files, and the loop must not wait."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from services.lc.supervisor import rollout_keeper, supervisor
from tests.integration.lc_world import world
from tests.simulated import simulated
from tests.unit.lc.test_rollout import answering


def record_threads(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[bool]:
    """Return a list that gets, for each check by a module, whether the event loop waited for it."""
    on_loop: list[bool] = []
    is_intact = module.is_intact

    def recorded(*args: Any) -> bool:
        on_loop.append(threading.current_thread() is threading.main_thread())
        intact: bool = is_intact(*args)
        return intact

    monkeypatch.setattr(module, "is_intact", recorded)
    return on_loop


@simulated
async def test_the_files_of_a_worker_are_checked_in_a_thread_before_its_start_and_a_new_model(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        before_starts = record_threads(monkeypatch, supervisor)
        before_models = record_threads(monkeypatch, rollout_keeper)
        async with world(tmp_path) as node:
            running = await answering(node)
            await running.asks("b", 2)
            assert running.file() == "b"
    for on_loop in (before_starts, before_models):
        assert on_loop
        assert not any(on_loop)
