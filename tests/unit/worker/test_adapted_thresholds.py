"""A running edge worker adapts its thresholds: the cloud corrects its class, and a restart continues."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from halimede.api.deferral import Costs
from halimede.worker.threshold_file import read_thresholds
from tests.simulated import eventually
from tests.unit.worker.world import World

pytestmark = pytest.mark.simulated

SETTINGS = {
    "hem_name": "TwoThresholds",
    "hem_parameters": {"positive": "yes", "negative": "no", "low": "0.6", "high": "0.6"},
    "costs": Costs(miss=10, false_alarm=1, upload=0.01, positive="yes", adaptive=True),
}


class Doubtful:
    """Gives each sample a third of a chance to be positive."""

    def predict(self, data: Any) -> dict[str, Any]:
        return {"label": "no", "score": 2 / 3, "probabilities": [2 / 3, 1 / 3]}


class Certain:
    """Finds bright samples positive."""

    def predict(self, data: Any) -> dict[str, Any]:
        label = "yes" if int(np.asarray(data).flat[0]) > 100 else "no"
        return {"label": label, "score": 1.0, "probabilities": [0.0, 1.0]}


async def send(w: World, count: int) -> list[str]:
    """Return who answered each of so many samples, of which half are positive."""
    return [(await w.answer(await w.send(10 if i % 2 else 200))).by for i in range(count)]


async def test_an_edge_that_misses_too_much_learns_to_ask_and_remembers_it(w: World) -> None:
    random.seed(1)
    async with w.worker("cloud", "c0", Certain):
        async with w.worker("edge", "e0", Doubtful, **SETTINGS):
            first = await send(w, 40)
            await send(w, 160)
            last = await send(w, 40)
            await eventually(lambda: w.info("e0").audited > 0)
        assert last.count("cloud") > first.count("cloud")
        assert last.count("cloud") > 30
        state = read_thresholds(w.settings("edge", "e0", **SETTINGS))
        assert state.samples == 240
        assert state.low < 1 / 3
        async with w.worker("edge", "e0", Doubtful, **SETTINGS):
            assert (await send(w, 40)).count("cloud") > 25
