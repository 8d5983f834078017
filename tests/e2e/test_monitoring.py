"""Alerts and dashboards of deploy/monitoring on a running system, by a real Prometheus that scrapes every second."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from halimede.errors import HalimedeError
from tests.dashboards import FOLDER, shown_panels
from tests.e2e.running import System, digits, running
from tests.e2e.test_observability import page_of
from tests.prometheus import Prometheus, scraping
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

#: frames a second of the load
FPS = 20.0
#: why a panel has no data on a calm system of two edge nodes, by a part of its queries
EMPTY = {
    "halimede_camera_": "no camera process runs",
    "halimede_serve_": "no model server runs",
    "halimede_router_": "no router runs",
    "halimede_training_": "nothing is trained",
    "halimede_loop_": "no learning loop",
    "halimede_worker_occupancy_": "no occupancy",
    "halimede_worker_joint_": "no multi-edge service",
    "halimede_worker_shared_": "no multi-edge service",
    "halimede_worker_deferred_": "no tier in between",
    "halimede_worker_kept_": "no hard samples are kept",
    "halimede_worker_unkept_": "no hard samples are kept",
    "halimede_worker_store_": "no hard samples are kept",
    "halimede_worker_upload_": "no budget, and no encoding for uploads",
    "halimede_worker_withheld_": "no budget",
    "halimede_worker_uploaded_bytes_": "no budget",
    "halimede_worker_agreement_": "no audits",
    "halimede_worker_drift_": "no calibration",
    "halimede_bus_certificate_": "no TLS",
    "halimede_gm_unhealthy_resources": "nothing is unhealthy",
    "ALERTS": "no alert fires",
    "halimede_worker_degraded_": "no answer is degraded",
    "halimede_lc_preparation_failures": "no preparation has failed",
    "halimede_lc_download_seconds": "nothing was downloaded lately",
}


@contextlib.asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[tuple[System, Prometheus]]:
    """A system with load, and a Prometheus with the shipped rules."""
    async with running(folder / "home") as system:
        await system.run_digits()
        config = (FOLDER / "prometheus.yml").read_text()
        config = config.replace("15s", "1s").replace("http://127.0.0.1:8686", await page_of(system))
        config = config.replace("[rules.yml]", f"[{FOLDER / 'rules.yml'}]")
        load = asyncio.create_task(publish(system, digits()))
        try:
            async with scraping(folder / "prometheus", config) as prometheus:
                yield system, prometheus
        finally:
            load.cancel()
            await asyncio.wait([load])


async def publish(system: System, pictures: list[bytes]) -> None:
    """Send pictures, and a request to GM with every twentieth, for as long as the test runs.

    What a stopped broker, or a stopped GM, does not take is lost.
    """
    for number, picture in enumerate(itertools.cycle(pictures)):
        with contextlib.suppress(HalimedeError):
            await system.send([picture], fps=FPS)
            if number % FPS == 0:
                await system.client.version()


async def has_data(prometheus: Prometheus, queries: tuple[str, ...]) -> bool:
    """Whether a query of a panel has a value that is a number."""
    series = [sample for query in queries for sample in await prometheus.query(query)]
    return any(not math.isnan(float(sample["value"][1])) for sample in series)


async def test_every_panel_has_data_under_load_and_no_alert_stays_pending(tmp_path: Path) -> None:
    panels = shown_panels(rate="20s")
    async with watched(tmp_path) as (_, prometheus):
        # what a panel shows may come seconds after the first scrape: a rate needs two, a report a period
        waiting = {panel for panel in panels if not any(part in " ".join(panel.queries) for part in EMPTY)}

        async def is_shown() -> bool:
            for panel in list(waiting):
                if await has_data(prometheus, panel.queries):
                    waiting.discard(panel)
            return not waiting

        await eventually(is_shown, 60.0, 1.0, lambda: ", ".join(map(str, waiting)))
        empty = {panel for panel in panels if not await has_data(prometheus, panel.queries)}
        # pending ones as well: most alerts wait for minutes before they fire
        alerts: list[str] = []

        async def is_calm() -> bool:
            alerts[:] = [str(sample["metric"]) for sample in await prometheus.query("ALERTS")]
            return not alerts

        await eventually(is_calm, 120.0, 1.0, lambda: "\n".join(alerts))
    for panel in sorted(empty, key=str):
        print(f"no data: {panel}: {next(why for part, why in EMPTY.items() if part in ' '.join(panel.queries))}")
    print(f"{len(panels) - len(empty)} of {len(panels)} panels have data")


async def test_faults_reach_their_alerts(tmp_path: Path) -> None:
    took: list[tuple[str, str, float]] = []
    async with watched(tmp_path) as (system, prometheus):

        async def until_raised(fault: str, alert: str, began: float, about: str = "") -> None:
            """Wait until Prometheus has an alert, pending for its time or firing."""

            async def is_raised() -> bool:
                series = await prometheus.pending_or_firing(f"Halimede{alert}")
                return any(about in str(sample["metric"].values()) for sample in series)

            await eventually(is_raised, 120.0, 0.5, lambda: f"{alert} after: {fault}")
            took.append((fault, alert, time.monotonic() - began))

        async def until_gone(*alerts: str) -> None:
            for alert in alerts:
                await eventually(lambda a=alert: is_gone(f"Halimede{a}"), 60.0, 0.5, lambda a=alert: a)

        async def is_gone(alert: str) -> bool:
            return not await prometheus.pending_or_firing(alert)

        def signalled(name: str, number: signal.Signals) -> float:
            system.processes()[name].send_signal(number)
            return time.monotonic()

        # `increase` counts from the first scrape on
        restarts = 'halimede_lc_worker_restarts_total{halimede_node="edge1"}'
        await eventually(lambda: prometheus.query(restarts), 30.0, 0.5)
        began = time.monotonic()
        for _ in range(3):
            (worker,) = await eventually(lambda: live(system, "worker:digits-edge-edge1"), 60.0, 0.2)
            worker.kill()
            await eventually(lambda w=worker: not w.is_running(), 20.0, 0.1)
        await until_raised("an edge worker is killed three times", "WorkerRestarts", began, "edge1")

        began = signalled("lc:edge0", signal.SIGSTOP)
        await until_raised("a local controller hangs", "NodeOffline", began, "edge0")
        signalled("lc:edge0", signal.SIGCONT)
        await until_gone("NodeOffline", "ServiceDegraded")

        signalled("lc:cloud0", signal.SIGSTOP)
        began = signalled("worker:digits-cloud-cloud0", signal.SIGKILL)
        fault = "the cloud worker is killed, and its local controller hangs"
        await until_raised(fault, "ServiceDegraded", began, "digits")
        await until_raised(fault, "CircuitOpen", began)
        signalled("lc:cloud0", signal.SIGCONT)
        await until_gone("CircuitOpen", "ServiceDegraded")

        began = signalled("gm", signal.SIGSTOP)
        await until_raised("GM hangs", "GlobalManagerDown", began)
        await until_raised("GM hangs", "ProcessNotScraped", began, "gm")
        signalled("gm", signal.SIGCONT)
        await until_gone("GlobalManagerDown", "ProcessNotScraped")

        began = signalled("broker", signal.SIGSTOP)
        await until_raised("the broker hangs", "BrokerUnreachable", began, "halimede-gm")
        signalled("broker", signal.SIGCONT)
        await system.until("Running again", lambda: system.phase == "Running", 120)
    for fault, alert, seconds in took:
        print(f"{alert:20} {seconds:6.1f} s after: {fault}")


def live(system: System, name: str) -> tuple[Any, ...]:
    """Return a running process by its name, in a tuple; empty: there is none."""
    process = system.processes().get(name)
    return (process,) if process and process.status() != "zombie" else ()
