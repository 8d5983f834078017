"""Device, gate and cloud as they run: each asks the next, each frame is answered once, and says by whom and why."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from halimede.bus.memory import MemoryBroker
from halimede.errors import InvalidFieldError
from halimede.mining.calibration_file import CalibrationFile, MixtureRule
from halimede.worker.bootstrap import serve
from halimede.worker.errors import WorkerError
from halimede.worker.tier_worker import _prepare, tier
from tests.simulated import eventually, simulated
from tests.unit.worker.world import NS, SERVICE, World, world

#: sure at all; sure from the gate on; sure in the cloud alone
EASY, MIDDLE, HARDEST, BREAKS_GATE = 10, 150, 200, 220


class Knows:
    """A model that is sure below a brightness."""

    def __init__(self, name: str, below: int) -> None:
        self.name, self.below = name, below

    def predict(self, data: Any) -> dict[str, Any]:
        value = int(np.asarray(data).flat[0])
        if value == BREAKS_GATE and self.name == "gate":
            raise RuntimeError("too bright for the gate")
        return {"label": self.name, "probabilities": [0.9, 0.1] if value < self.below else [0.55, 0.45]}


DEVICE, GATE, CLOUD = Knows("device", 100), Knows("gate", 180), Knows("cloud", 256)


@contextlib.asynccontextmanager
async def gate(system: World, name: str = "g0", **changes: Any) -> AsyncIterator[None]:
    """Run a worker of the tier in between within the block."""
    stop = asyncio.Event()
    settings = system.settings("cloud", name, tier="gate", next_tier="cloud", **changes)
    running = asyncio.create_task(serve(settings, system.connect, stop, GATE, tier(settings)))
    await eventually(lambda: running.done() or system.status(name) == "running")
    if running.done():
        await running
    await asyncio.sleep(0.2)
    try:
        yield
    finally:
        stop.set()
        await running


@contextlib.asynccontextmanager
async def chain(folder: Path, broker: MemoryBroker | None = None, **changes: Any) -> AsyncIterator[World]:
    """Run all three tiers; ``changes`` are the gate's."""
    async with (
        world(folder, broker) as system,
        system.worker("cloud", "c0", CLOUD, tier="cloud"),
        gate(system, **changes),
        system.worker("edge", "e0", DEVICE, tier="edge", next_tier="gate"),
    ):
        yield system


@simulated
async def test_each_tier_answers_what_it_is_sure_of(tmp_path: Path) -> None:
    async with chain(tmp_path) as system:
        results = [await system.answer(await system.send(value)) for value in (EASY, MIDDLE, HARDEST)]
        assert [(r.by, r.tier, r.worker, r.label) for r in results] == [
            ("edge", "edge", "e0", "device"),
            ("cloud", "gate", "g0", "gate"),
            ("cloud", "cloud", "c0", "cloud"),
        ]
        assert [(r.degraded, r.reason) for r in results] == [(False, "")] * 3
        assert set(system.copies.values()) == {1}
        await eventually(lambda: system.info("g0").deferred == 1 and system.info("e0").inference_number == 3)
        between, device = system.info("g0"), system.info("e0")
        assert (between.inference_number, between.served, between.uploaded_bytes) == (0, 2, 16)
        assert (device.inference_number, device.cloud_inference_number, device.uploaded_bytes) == (3, 2, 32)
        assert (system.info("c0").served, system.infos["g0"][-1].tier) == (1, "gate")


@simulated
async def test_without_the_cloud_the_gate_answers_and_says_why_until_it_is_back(tmp_path: Path) -> None:
    async with (
        world(tmp_path) as system,
        gate(system),
        system.worker("edge", "e0", DEVICE, tier="edge", next_tier="gate"),
    ):
        result = await system.answer(await system.send(HARDEST))
        assert (result.tier, result.label, result.degraded, result.reason) == ("gate", "gate", False, "no-cloud")
        async with system.worker("cloud", "c0", CLOUD, tier="cloud"):
            await asyncio.sleep(15)  # until the way is tried again
            assert (await system.answer(await system.send(HARDEST))).tier == "cloud"


@simulated
async def test_without_the_gate_the_device_answers_and_says_why_until_it_is_back(tmp_path: Path) -> None:
    async with (
        world(tmp_path) as system,
        system.worker("cloud", "c0", CLOUD, tier="cloud"),
        system.worker("edge", "e0", DEVICE, tier="edge", next_tier="gate"),
    ):
        result = await system.answer(await system.send(HARDEST))
        assert (result.by, result.label, result.degraded, result.reason) == ("edge", "device", True, "no-cloud")
        async with gate(system):
            await asyncio.sleep(15)
            assert (await system.answer(await system.send(HARDEST))).tier == "cloud"


@simulated
async def test_a_gate_that_dies_with_a_sample_costs_it_no_answer(tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with chain(tmp_path, broker) as system, gate(system, "g1"):
        broker.links["worker.default.g0"].abort("killed")
        results = [await system.answer(await system.send(MIDDLE)) for _ in range(4)]
        assert {result.tier for result in results} == {"gate"}


@simulated
async def test_what_the_gate_fails_on_is_answered_by_the_cloud(tmp_path: Path) -> None:
    async with chain(tmp_path) as system:
        result = await system.answer(await system.send(BREAKS_GATE))
        assert (result.tier, result.worker, result.degraded) == ("cloud", "c0", False)


@simulated
async def test_a_tier_keeps_to_its_budget_and_says_what_it_withheld(tmp_path: Path) -> None:
    async with chain(tmp_path, target_upload_ratio=0.0) as system:
        result = await system.answer(await system.send(HARDEST))
        assert result.tier == "gate"
        await eventually(lambda: system.info("g0").served == 1)
        assert (system.info("g0").deferred, system.info("g0").uploaded_bytes) == (0, 0)


@simulated
async def test_a_tier_audits_easy_samples_beside_their_answers(tmp_path: Path) -> None:
    async with chain(tmp_path, audit_share=1.0) as system:
        result = await system.answer(await system.send(MIDDLE))
        assert result.tier == "gate"
        await eventually(lambda: system.info("g0").audited == 1)
        told = system.info("g0")
        assert (told.deferred, told.audit_agreed, told.uploaded_bytes) == (0, 0, 16)


@simulated
async def test_a_tier_mixes_its_answer_with_the_next_ones(tmp_path: Path) -> None:
    artefact = CalibrationFile(service=SERVICE, mixture=MixtureRule(kind="sum", edge=1000, cloud=0))
    path = tmp_path / "calibration.json"
    path.write_bytes(msgspec.json.encode(artefact))
    async with chain(tmp_path, fusion="mixture", calibration=path) as system:
        result = await system.answer(await system.send(HARDEST))
        assert (result.tier, result.worker) == ("cloud", "c0")
        assert result.score == pytest.approx(0.55, abs=1e-4)


@simulated
async def test_a_tier_can_judge_samples_as_they_are(tmp_path: Path) -> None:
    rule = {"hem_name": "Random", "hem_mode": "mining-then-inference"}
    async with chain(tmp_path, **rule, hem_parameters={"random_ratio": "1"}) as system:
        assert (await system.answer(await system.send(MIDDLE))).tier == "cloud"


@simulated
async def test_a_tiers_mistake_is_named_on_its_own_field(tmp_path: Path) -> None:
    async with world(tmp_path) as system:
        with pytest.raises(WorkerError, match=r"spec\.tiers\[gate\]\.hardExampleMining\.name"):
            async with gate(system, hem_name="Marginn", hem_parameters={}):
                pass


def test_a_tier_is_told_which_one_it_is_and_which_one_it_asks() -> None:
    told = {
        "WORKER_NAME": "s.gate-tier-n0", "NODE_NAME": "n0", "SERVICE_NAME": SERVICE, "NAMESPACE": NS,
        "MODEL_URL": "/m.onnx", "HEM_NAME": "Margin", "TIER": "gate", "NEXT_TIER": "cloud",
        "HEM_PARAMETERS": json.dumps([{"key": "threshold_margin", "value": "0.3"}]),
    }  # fmt: skip
    settings, _ = _prepare(told, False)
    assert (settings.role, settings.tier, settings.next_tier) == ("cloud", "gate", "cloud")
    for missing in ("TIER", "NEXT_TIER", "HEM_NAME"):
        with pytest.raises(InvalidFieldError, match=missing):
            _prepare({**told, missing: ""}, False)
