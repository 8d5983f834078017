"""`halimede status`, `doctor`, GM's page and its readiness name the same for the same system."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

from halimede import topics
from halimede.bus.memory import MemoryBus
from halimede.cli.client import ApiRefusedError, Client
from halimede.cli.commands.status import Snapshot, document
from halimede.cli.doctor.system import examine_system
from halimede.cli.system_facts import listen, read_system
from halimede.messages import CameraStatus, DeadLetter, TaskInfo, WorkerReport
from halimede.names import Key
from services.gm.cluster.port import utc_now
from services.gm.dashboard.feed import PROBLEMS_EVERY
from tests.integration.gm_world import SERVICES, World, model, world
from tests.integration.test_observed_gm import refuse
from tests.simulated import eventually

HELMET, CLOUD = Key(SERVICES, "default", "helmet"), "helmet-cloud-cloud0"
Row = tuple[str, str, str]


def rows_of_the_page(w: World) -> set[Row]:
    return {(row["name"], row["about"], row["level"]) for row in w.manager.feed.sections()["problems"]}


def counted(w: World) -> list[int]:
    """Return the answers in the reports that GM has received."""
    return [info.inference_number for info in w.manager._plane.reports.task_infos(HELMET)]


async def rows_of_status(client: Client) -> set[Row]:
    bus, answers = await listen(client.bus, 0.3), await read_system(client)
    snapshot = Snapshot("memory", answers=replace(answers, facts=replace(answers.facts, bus=bus)))
    return {(check.name, check.about, check.level) for check in snapshot.checks()}


async def rows_of_doctor(client: Client) -> set[Row]:
    checks = [check async for check in examine_system(client, tls=False)]
    return {(check.name, check.about, check.level) for check in checks if check.level != "ok"}


def late_report(**fields: str) -> WorkerReport:
    """What a node says of a cloud worker that it has not heard for six seconds."""
    last_report = (datetime.now(UTC) - timedelta(seconds=6)).isoformat()
    return WorkerReport(name=CLOUD, role="cloud", phase="Running", last_report=last_report, **fields)


async def test_a_system_that_is_well_has_no_row_anywhere(w: World) -> None:
    async with Client(MemoryBus("cli", w.broker)) as client:
        assert await rows_of_status(client) == await rows_of_doctor(client) == rows_of_the_page(w) == set()
    assert w.manager.metrics.health().report(readiness=True)[0]


async def test_readiness_computes_no_counts_of_services(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        observer = w.manager._plane.observer
        with patch.object(observer, "_degraded_answers", side_effect=AssertionError("the counts of all services")):
            assert w.manager.metrics.health().report(readiness=True)[0]


@pytest.mark.simulated
async def test_an_open_page_names_a_problem_soon_but_the_checks_do_not_run_each_second(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        feed, observer = w.manager.feed, w.manager._plane.observer
        with patch.object(observer, "system_facts", wraps=observer.system_facts) as system_facts, feed.count_page():
            await asyncio.sleep(4 * PROBLEMS_EVERY)
            assert 2 <= system_facts.call_count <= 6
            async with w.node("edge9"):
                await eventually(lambda: w.manager._plane.nodes.is_online("edge9"))
            await eventually(lambda: b"edge9" in feed.encoded["problems"], 3 * PROBLEMS_EVERY)


async def test_a_system_in_trouble_has_the_same_rows_everywhere(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm() as cluster, w.node("edge0") as edge, w.node("cloud0") as cloud:
        cloud.overrides["cloud"] = late_report()
        await w.deploy()
        async with w.node("edge9"):
            await eventually(lambda: w.manager._plane.nodes.is_online("edge9"))
        observer = w.manager._plane.observer
        for answered, degraded in ((10, 0), (110, 60)):
            edge.counts[HELMET] = TaskInfo(inference_number=answered, degraded=degraded, current_time=utc_now())
            edge.report(HELMET)
            await eventually(lambda n=answered: counted(w) == [n])
            observer.record()
        camera = CameraStatus(camera="helmet", state="failed", reason="Unreachable", error="no route")
        await w.operator.publish(topics.CAMERA_STATUS.at(ns="default", camera="helmet"), camera)
        letter = DeadLetter(client="c", topic="t", reason="no JSON", size=1)
        await w.operator.publish(topics.DEAD_LETTER.at(node="none", client="operator"), letter)
        await eventually(lambda: w.manager._upstream.dead_letters == 1)
        refuse(cluster, refuse=True)
        with w.manager.feed.count_page():
            await eventually(lambda: bool(w.manager.feed.sections()["cameras"][0]["state"]))
            async with Client(MemoryBus("cli", w.broker)) as client:
                # a refused write shows the store's trouble
                with contextlib.suppress(ApiRefusedError):
                    await client.apply(model("another"))
                await eventually(lambda: bool(cluster.check()))
                rows = await rows_of_status(client)
                assert rows == await rows_of_doctor(client) == rows_of_the_page(w)
        assert rows == {
            ("store", "gm", "problem"),
            ("answers", "ji/helmet", "problem"),
            ("nodes", "node/edge9", "warning"),
            ("cameras", "camera/helmet", "problem"),
            ("reports", f"worker/{CLOUD}", "fact"),
            ("dead letters", "", "warning"),
        }
        ready, checks = w.manager.metrics.health().report(readiness=True)
        assert not ready
        assert {name for name, reason in checks.items() if reason != "ok"} == {"store"}
        refuse(cluster, refuse=False)


async def test_a_worker_without_a_report_for_some_seconds_is_a_fact_and_no_failure(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0"), w.node("cloud0") as cloud:
        cloud.overrides["cloud"] = late_report()
        await w.deploy()
        async with Client(MemoryBus("cli", w.broker)) as client:
            snapshot = Snapshot("memory", answers=await read_system(client))
            (check,) = snapshot.checks()
            assert (check.about, check.level, check.fails) == (f"worker/{CLOUD}", "fact", False)
            assert "on node cloud0" in check.what
            shown = document(snapshot, snapshot.checks())
            assert (shown["healthy"], shown["todo"]) == (True, [])
            # the fault takes the fact's stead
            cloud.overrides["cloud"] = late_report(reason="WorkerSilent", message="x")
            cloud.report(HELMET)
            await w.reaches("Degraded")
            checks = Snapshot("memory", answers=await read_system(client)).checks()
            assert [(check.name, check.level, check.fails) for check in checks] == [("services", "warning", True)]
