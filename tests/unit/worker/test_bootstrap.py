"""A worker says how it fares, and a user's mistake ends it with one reason that the local controller is told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from halimede.api.jointinference import FrameSourceSpec
from halimede.errors import InvalidFieldError, RefusedError
from halimede.stats.ledger import Ledger
from halimede.worker.bootstrap import serve
from halimede.worker.errors import WorkerError, as_mistake
from tests.simulated import eventually
from tests.unit.worker.world import EASY, Big, Small, World
from tests.waiting import patience

pytestmark = pytest.mark.simulated


async def test_an_edge_worker_runs_once_frames_reach_it_however_long_that_takes(w: World) -> None:
    w.cut = "intake"
    starting = asyncio.create_task(enter(w))
    await asyncio.sleep(60)
    assert {info.status for info in w.infos["e0"]} == {"starting"}
    next(bus for id_, bus in w.buses.items() if "intake" in id_).heal()
    await starting


async def enter(w: World) -> None:
    """Run an edge worker, and send it a frame in the moment in which it says that it runs."""
    stop = asyncio.Event()
    running = asyncio.create_task(serve(w.settings("edge", "e0"), w.connect, stop, Small))
    await eventually(lambda: w.status("e0") == "running", 100)
    await w.answer(await w.send(EASY))
    stop.set()
    await running


async def test_reports_come_on_change_and_every_third_period_all_the_same(lone_edge: World) -> None:
    await asyncio.sleep(5)
    before = len(lone_edge.infos["e0"])
    await asyncio.sleep(60)
    assert 18 <= len(lone_edge.infos["e0"]) - before <= 21
    before = len(lone_edge.infos["e0"])
    for _ in range(40):
        await lone_edge.send(EASY)
        await asyncio.sleep(0.25)
    assert 8 <= len(lone_edge.infos["e0"]) - before <= 13


async def test_a_new_connection_brings_a_report(lone_edge: World) -> None:
    await asyncio.sleep(12)
    before = len(lone_edge.infos["e0"])
    lone_edge.buses["worker.default.e0"].cut()
    lone_edge.buses["worker.default.e0"].heal()
    await asyncio.sleep(1)
    assert len(lone_edge.infos["e0"]) == before + 1


class CannotLoad:
    def load(self, model_url: str) -> None:
        raise OSError(f"no {model_url}")

    def predict(self, _: object) -> None: ...


@pytest.mark.parametrize(
    ("role", "estimator", "changes", "reason"),
    [
        ("edge", CannotLoad, {}, "ModelInvalid"),
        ("cloud", CannotLoad, {}, "ModelInvalid"),
        ("cloud", None, {"model_path": "/nowhere/big.onnx"}, "ModelInvalid"),
        ("edge", Small, {"hem_name": "Marginn"}, "HardExampleMiningUnknown"),
        ("edge", Small, {"hem_parameters": {"threshold": "0.2"}}, "HardExampleMiningInvalid"),
        ("edge", Small, {"hem_parameters": {"threshold_margin": "much"}}, "HardExampleMiningInvalid"),
        ("edge", Small, {"source": FrameSourceSpec(url="gopher://camera/1")}, "SourceInvalid"),
        ("edge", Small, {"source": FrameSourceSpec(path="/nowhere/pictures")}, "SourceInvalid"),
        ("edge", Small, {"calibration": Path("/nowhere/calibration.json")}, "CalibrationInvalid"),
        ("edge", None, {"estimator": "no_such_module:Small"}, "EstimatorInvalid"),
        ("cloud", None, {"estimator": "json:JSONDecoder"}, "EstimatorInvalid"),
    ],
)
async def test_a_mistake_is_reported_with_its_reason(
    w: World, role: Any, estimator: object, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(WorkerError) as caught:
        await serve(w.settings(role, "w0", **changes), w.connect, asyncio.Event(), estimator)
    assert caught.value.reason == reason
    await eventually(lambda: w.status("w0") == "failed")
    last = w.infos["w0"][-1]
    assert (last.reason, last.message) == (reason, str(caught.value))
    assert "\n" not in last.message


async def test_a_worker_whose_folder_another_one_keeps_is_refused_after_its_patience(w: World, tmp_path: Path) -> None:
    with Ledger(tmp_path / "w0", "u-1"), pytest.raises(WorkerError) as caught:
        await serve(w.settings("cloud", "w0"), w.connect, asyncio.Event(), Big)
    assert caught.value.reason == "StateUnusable"


async def test_a_new_worker_waits_for_the_old_one_to_drain(w: World, tmp_path: Path) -> None:
    old, loop = Ledger(tmp_path / "w0", "u-1"), asyncio.get_running_loop()
    old.__enter__()
    loop.call_later(3, old.__exit__)
    async with w.worker("cloud", "w0"):
        assert loop.time() >= 3


async def test_a_worker_that_is_stopped_without_a_broker_ends(w: World) -> None:
    w.broker.stop()
    stop = asyncio.Event()
    running = asyncio.create_task(serve(w.settings("edge", "e0"), w.connect, stop, Small))
    await asyncio.sleep(5)
    assert not running.done()
    stop.set()
    await asyncio.wait_for(running, patience(60))


def test_faults_and_defects_are_no_mistakes_of_the_user() -> None:
    mistake = InvalidFieldError("HALIMEDE_STATE", "/x", "make it writable")
    assert as_mistake(KeyError("x")) is None
    assert as_mistake(ExceptionGroup("", [mistake, KeyError("x")])) is None
    assert as_mistake(ExceptionGroup("", [ExceptionGroup("", [mistake])])).reason == "StateUnusable"
    assert as_mistake(RefusedError("t", 0x87, "not authorised")).reason == "BrokerRefused"
    assert as_mistake(InvalidFieldError("other", 1, "x")).reason == "Invalid"
