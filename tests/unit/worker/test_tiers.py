"""Device, gate and cloud as they run: each asks the next, each frame is answered once, and says by whom and why."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np
import pytest

from halimede.errors import InvalidFieldError
from halimede.worker.errors import WorkerError
from halimede.worker.tier_worker import _prepare, tier
from tests.simulated import eventually
from tests.unit.worker.world import NS, SERVICE, World

pytestmark = pytest.mark.simulated

#: sure from the gate on; sure in the cloud alone
MIDDLE, HARDEST = 150, 200


class Knows:
    """A model that is sure below a brightness."""

    def __init__(self, name: str, below: int) -> None:
        self.name, self.below = name, below

    def predict(self, data: Any) -> dict[str, Any]:
        is_sure = int(np.asarray(data).flat[0]) < self.below
        return {"label": self.name, "probabilities": [0.9, 0.1] if is_sure else [0.55, 0.45]}


DEVICE, GATE, CLOUD = Knows("device", 100), Knows("gate", 180), Knows("cloud", 256)


def gate(system: World, name: str = "g0", **changes: Any) -> AbstractAsyncContextManager[asyncio.Event]:
    settings = system.settings("cloud", name, tier="gate", next_tier="cloud", **changes)
    return system.run(settings, GATE, tier(settings))


def device(system: World) -> AbstractAsyncContextManager[asyncio.Event]:
    return system.worker("edge", "e0", DEVICE, tier="edge", next_tier="gate")


def cloud(system: World) -> AbstractAsyncContextManager[asyncio.Event]:
    return system.worker("cloud", "c0", CLOUD, tier="cloud")


async def test_without_the_cloud_the_gate_answers_and_says_why_until_it_is_back(w: World) -> None:
    async with gate(w), device(w):
        result = await w.answer(await w.send(HARDEST))
        assert (result.tier, result.label, result.degraded, result.reason) == ("gate", "gate", False, "no-cloud")
        async with cloud(w):
            await asyncio.sleep(15)  # until the way is tried again
            assert (await w.answer(await w.send(HARDEST))).tier == "cloud"


async def test_without_the_gate_the_device_answers_and_says_why_until_it_is_back(w: World) -> None:
    async with cloud(w), device(w):
        result = await w.answer(await w.send(HARDEST))
        assert (result.by, result.label, result.degraded, result.reason) == ("edge", "device", True, "no-cloud")
        async with gate(w):
            await asyncio.sleep(15)
            assert (await w.answer(await w.send(HARDEST))).tier == "cloud"


async def test_a_gate_that_dies_with_a_sample_costs_it_no_answer(w: World) -> None:
    async with cloud(w), gate(w), device(w), gate(w, "g1"):
        w.broker.links["worker.default.g0"].abort("killed")
        results = [await w.answer(await w.send(MIDDLE)) for _ in range(4)]
        assert {result.tier for result in results} == {"gate"}


async def test_a_tier_keeps_to_its_budget_and_says_what_it_withheld(w: World) -> None:
    async with cloud(w), gate(w, target_upload_ratio=0.0), device(w):
        assert (await w.answer(await w.send(HARDEST))).tier == "gate"
        await eventually(lambda: w.info("g0").served == 1)
        assert (w.info("g0").deferred, w.info("g0").uploaded_bytes, w.infos["g0"][-1].tier) == (0, 0, "gate")


async def test_a_tiers_mistake_is_named_on_its_own_field(w: World) -> None:
    with pytest.raises(WorkerError, match=r"spec\.tiers\[gate\]\.hardExampleMining\.name"):
        async with gate(w, hem_name="Marginn", hem_parameters={}):
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
