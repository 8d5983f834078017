"""LC checks the files of models in threads: an archive may have thousands of files, and the loop must not wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.lc.supervisor import rollout_keeper, supervisor
from tests.integration.lc_world import world
from tests.unit.lc.test_model_preparation import record_threads
from tests.unit.lc.test_rollout import answering


@pytest.mark.simulated
async def test_the_files_of_a_worker_are_checked_in_a_thread_before_its_start_and_a_new_model(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        before_starts = record_threads(monkeypatch, supervisor, "is_intact")
        before_models = record_threads(monkeypatch, rollout_keeper, "is_intact")
        async with world(tmp_path) as node:
            running = await answering(node)
            await running.asks("b", 2)
            assert running.file() == "b"
    assert (set(before_starts), set(before_models)) == ({False}, {False})
