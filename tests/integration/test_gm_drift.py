"""A service whose samples have changed says so in a condition of its own, keeps running, and heals."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.console import Console

from halimede.api.base import kind_of
from halimede.cli.commands.describe import render
from halimede.messages import TaskInfo
from halimede.names import Key
from tests.integration.gm_world import SERVICES, World
from tests.simulated import eventually

HELMET = Key(SERVICES, "default", "helmet")


async def drift(w: World, status: str) -> Any:
    """Wait until the condition says so, and return it."""

    def found() -> Any:
        document = w.status()
        conditions = document.status.conditions if document else []
        return next((c for c in conditions if c.type == "Drift" and c.status == status), None)

    await eventually(lambda: found() is not None, 60)
    return found()


def counted(agreed: int, *, drifting: int = 0) -> TaskInfo:
    return TaskInfo(
        inference_number=1000, hard_example_number=200, cloud_inference_number=200, audited=100, audit_agreed=agreed,
        drifting=drifting,
    )  # fmt: skip


@pytest.mark.simulated
async def test_drift_is_a_condition_beside_the_phase_with_figures_and_heals(w: World) -> None:
    assert [c.type for c in (await w.reaches("Running")).conditions if c.type == "Drift"] == []

    w.edge.counts[HELMET] = counted(95, drifting=1)
    w.edge.report(HELMET)
    condition = await drift(w, "True")
    assert condition.reason == "SamplesChanged"
    assert condition.message == (
        "the samples of 1 worker differ from the calibration; 96.0 % of answers agree with the cloud (91.1 to 98.3,"
        " by audits): calibrate again (`halimede calibrate`)"
    )
    status = await w.reaches("Running")
    assert (status.conditions[-1].type, status.conditions[-1].status) == ("Running", "True")
    shown = {metric.key: metric.value for metric in status.metrics}
    assert (shown["drifting"], shown["audited"], shown["jointAccuracy"]) == ("1", "100", "0.96")
    assert float(shown["jointAccuracyLow"]) < 0.96 < float(shown["jointAccuracyHigh"])
    body = (await w.ask("get", plural=SERVICES, name="helmet")).object
    out = Console(record=True, width=240)
    assert body
    render(out, kind_of("ji"), body, [])
    assert re.search(r"Drift +True .* SamplesChanged +the samples of 1 worker", out.export_text())

    began = condition.last_transition_time
    w.edge.counts[HELMET] = counted(96)
    w.edge.report(HELMET)
    condition = await drift(w, "False")
    assert condition.reason == "SamplesAsCalibrated"
    assert condition.last_transition_time >= began
    assert (await w.reaches("Running")).conditions[-1].type == "Running"
