"""The worker of a tier: what it is told, and where its mistakes are."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from halimede.errors import InvalidFieldError
from halimede.worker.errors import WorkerError
from halimede.worker.tier_worker import _prepare, tier
from tests.unit.worker.world import NS, SERVICE, Small, World

pytestmark = pytest.mark.simulated


def gate(system: World, name: str = "g0", **changes: Any) -> AbstractAsyncContextManager[asyncio.Event]:
    settings = system.settings("cloud", name, tier="gate", next_tier="cloud", **changes)
    return system.run(settings, Small, tier(settings))


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
