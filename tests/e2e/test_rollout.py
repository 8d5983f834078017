"""A running service gets another model, a corrupt one and the one before, under a steady stream of frames."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.e2e.running import DIGITS, System, digits, running
from tests.e2e.shell import halimede
from tests.e2e.test_bad_input import condition, manifests
from tests.simulated import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SMALL = "digits-small"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def change(system: System, name: str, file: Path) -> str:
    """Apply a Model with another file; return its version."""
    body = manifests()[name]
    await system.client.apply({**body, "spec": {**body["spec"], "url": str(file), "sha256": digest(file)}})
    return digest(file)[:12]


def workers(system: System) -> dict[str, int]:
    return {name: process.pid for name, process in system.workers().items()}


@contextlib.asynccontextmanager
async def stream(system: System, fps: float = 50) -> AsyncIterator[None]:
    """Send frames within the block and a second longer, then wait for all answers."""
    pictures = digits()[:200]

    async def send() -> None:
        while True:
            await system.send(pictures, fps=fps)

    sending = asyncio.create_task(send())
    try:
        yield
        await asyncio.sleep(1)
    finally:
        sending.cancel()
        await asyncio.wait([sending])
    last = set(system.sent)
    await eventually(lambda: last <= set(system.results), 60)


def latest(system: System, by: str, version: str) -> Callable[[], bool]:
    """Whether the last answers of a role are those of a version."""

    def holds() -> bool:
        answers = [r.model for r in list(system.results.values())[-60:] if r.by == by]
        return bool(answers) and set(answers[-3:]) == {version}

    return holds


async def test_models_change_fail_and_go_back_and_no_frame_notices(tmp_path: Path) -> None:
    digits()
    small, big = DIGITS / "models" / "small.onnx", DIGITS / "models" / "big.onnx"
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(big.read_bytes()[:-1000])
    first, second = digest(small)[:12], digest(big)[:12]
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        await system.run_digits()
        pids = workers(system)
        assert len(pids) == 2
        async with stream(system):
            await system.until("answers", latest(system, "edge", first))
            assert await change(system, "digits-big", small) == first
            await system.until("the other big model", latest(system, "cloud", first))
            assert await change(system, SMALL, big) == second
            await system.until("the other small model", latest(system, "edge", second))
            await system.until_running()
            await change(system, SMALL, bad)
            await system.until("a refusal", lambda: condition(system)[0] == "RolloutFailed")
            assert system.phase == "Degraded"
            assert "keeps" in condition(system)[1]
            await system.until("the model before", latest(system, "edge", second))
            assert "goes back to version" in await halimede(system.home, "rollback", f"model/{SMALL}")
            await system.until_running()
        assert set(system.results) == set(system.sent)
        assert set(system.copies.values()) == {1}
        assert not [r for r in system.results.values() if r.degraded]
        assert {r.model for r in system.results.values()} == {first, second}
        assert workers(system) == pids
        assert system.metric("lost") == 0


async def set_edge_variable(system: System, name: str, value: str) -> None:
    """Apply the service with a variable in the template of its edge worker."""
    body = manifests()["digits"]
    body["spec"]["edgeWorker"]["template"]["spec"]["containers"][0]["env"] = [{"name": name, "value": value}]
    await system.client.apply(body)


async def test_a_worker_that_cannot_start_with_new_settings_answers_with_the_old_ones(tmp_path: Path) -> None:
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        await system.run_digits()
        await system.send(digits()[:20], fps=50)
        before = workers(system)
        await set_edge_variable(system, "MODEL_TIMEOUT_S", "soon")
        await system.until("a refusal", lambda: condition(system)[0] == "SettingsRefused")
        assert system.phase == "Degraded"
        assert "MODEL_TIMEOUT_S" in condition(system)[1]
        await system.send(digits()[20:220], fps=50)
        await eventually(lambda: set(system.sent) == set(system.results), 60)
        after = workers(system)
        await set_edge_variable(system, "MODEL_TIMEOUT_S", "20")
        await system.until_running()
        assert condition(system)[0] != "SettingsRefused"
        assert [name for name in before if before[name] == after[name]] == ["worker:digits-cloud-cloud0"]
        assert workers(system) != after


async def test_all_edge_workers_of_a_service_are_replaced_together_and_every_frame_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path / "home", "edge0,edge1,cloud0") as system:
        await system.run_digits()
        await system.send(digits()[:50], fps=25)
        before = workers(system)
        async with stream(system, fps=25):
            await asyncio.sleep(1)
            await set_edge_variable(system, "MODEL_TIMEOUT_S", "20")
            edges = [name for name in before if "-edge-" in name]
            assert len(edges) == 2
            await eventually(lambda: all(workers(system).get(name, before[name]) != before[name] for name in edges), 60)
            await system.until_running()
            await asyncio.sleep(1)
        assert set(system.results) == set(system.sent)
        assert set(system.copies.values()) == {1}
        await system.until("counts", lambda: system.metric("inferenceNumber") == len(system.sent))
        assert system.metric("lost") == 0
