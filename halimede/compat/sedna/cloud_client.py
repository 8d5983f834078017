"""Requests the cloud workers of a service, from code without an event loop.

A separate thread keeps the connection to the bus, sends requests (``OffloadClient``), counts (``Ledger``) and reports
to the local controller (``StatusReporter``), as an edge worker's loop does. A caller waits for an answer, at most until
its deadline.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future

import structlog

from halimede.bus import Bus
from halimede.errors import BusError
from halimede.log import RateLimitedLogger
from halimede.messages import Count, Frame, Reply
from halimede.observe import HttpServer
from halimede.observe.metrics import registry
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.offload.errors import OffloadError, OffloadReason
from halimede.stats.ledger import Latency, Ledger
from halimede.worker.bootstrap import open_ledger
from halimede.worker.errors import as_mistake
from halimede.worker.metrics import WorkerMetrics
from halimede.worker.roles import BusFactory
from halimede.worker.settings import WorkerSettings
from halimede.worker.status_reporter import DISK_FULL, Status, StatusReporter

log = structlog.get_logger()

#: seconds: for the first connection, after a deadline until the thread counts as dead, for the last report
FIRST_S, OVER_S, LAST_S = 3.0, 5.0, 5.0


class CloudClient:
    """The cloud workers of a service. ``open`` before ``ask``; ``close`` is called at exit as well.

    ``connect``: makes the connection to the bus. All methods are for the script's threads.
    """

    def __init__(self, settings: WorkerSettings, connect: BusFactory) -> None:
        self._settings = settings
        self._connect = connect
        self._thread = threading.Thread(target=self._run, name="sedna_bus", daemon=True)
        self._ready: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._bus: Bus
        self._offload: OffloadClient
        self._ledger: Ledger
        self._reporter: StatusReporter
        self._limited_log = RateLimitedLogger()
        #: the final report: status, reason and message
        self._last: tuple[Status, str, str] = ("completed", "", "")
        self._open = False

    def open(self) -> None:
        """Start the thread and connect; call it once. Waits for the broker, at most FIRST_S seconds.

        Without the broker it returns. Raises what prevents the thread from running, such as a refused password.
        """
        self._thread.start()
        self._ready.result()
        self._open = True
        atexit.register(self.close)

    def report_running(self) -> None:
        """Report to the local controller that the script answers samples."""
        self._loop.call_soon_threadsafe(self._reporter.set, "running")

    def ask(self, frame: Frame) -> Reply:
        """Return the answer of a cloud worker to a frame within the service's deadline. Raises OffloadError."""
        if not self._thread.is_alive():
            raise OffloadError(OffloadReason.ERROR, "the connection to the bus has ended")
        deadline = self._settings.deadline_s
        answer = asyncio.run_coroutine_threadsafe(self._ask(frame, deadline), self._loop)
        try:
            return answer.result(deadline + OVER_S)
        except TimeoutError as error:
            answer.cancel()
            raise OffloadError(OffloadReason.DEADLINE, "the thread of the bus does not answer") from error

    def count(self, counts: Mapping[Count, int], latencies: Mapping[Latency, float]) -> None:
        """Add the counts of one sample, and its times in milliseconds."""
        with contextlib.suppress(RuntimeError):  # the loop may be closed
            self._loop.call_soon_threadsafe(self._add_counts, counts, latencies)

    def close(self, error: Exception | None = None) -> None:
        """Send the final report and disconnect; ``error`` is what ended the script's service, if any."""
        atexit.unregister(self.close)
        if not self._open:
            return
        self._open = False
        if error is not None:
            mistake = as_mistake(error)
            self._last = ("failed", mistake.reason if mistake else type(error).__name__, str(error))
        with contextlib.suppress(RuntimeError):  # the loop may be closed
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LAST_S)

    async def _ask(self, frame: Frame, deadline_s: float) -> Reply:
        """Return the answer of a cloud worker; fail at once without a broker. Raises OffloadError."""
        try:
            if not self._bus.connected:  # a script waits for each call, so do not wait for the broker
                raise OffloadError(OffloadReason.NO_CLOUD, "the broker is away")
            return await self._offload.ask(frame, deadline_s)
        except OffloadError as error:
            self._limited_log.warning("cloud did not answer", reason=str(error.reason), detail=error.detail[:256])
            raise

    def _add_counts(self, counts: Mapping[Count, int], latencies: Mapping[Latency, float]) -> None:
        """Add counts and times to the ledger."""
        for count, n in counts.items():
            self._ledger.add(count, n)
        for latency, ms in latencies.items():
            self._ledger.record(latency, ms)

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Run the event loop until the script closes the client."""
        # not asyncio.run: it starts a thread at its end, which Python may refuse at exit
        loop = self._loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._serve())
        except BaseException as error:  # the caller of ``open`` gets it, otherwise the log
            if self._ready.done():
                if not threading.main_thread().is_alive():
                    return  # Python is exiting, and starts no more threads: a reconnect needs one
                log.exception("bus connection closed")
            else:
                self._ready.set_exception(error)
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks))
            loop.close()

    async def _serve(self) -> None:
        """Keep the connection, counts and reports until ``close``."""
        settings = self._settings
        self._stop = asyncio.Event()
        async with self._connect(settings.client_id()) as bus, contextlib.AsyncExitStack() as stack:
            self._bus = bus
            metrics = WorkerMetrics(settings, [bus], ready=True)
            shown = HttpServer(settings.http, health=metrics.health(), registry=registry("edge", metrics.collect))
            await stack.enter_async_context(shown)
            self._ledger = metrics.ledger = await open_ledger(settings, stack)
            self._reporter = StatusReporter(bus, settings)
            self._reporter.http = shown.url
            self._reporter.counts = self._ledger.info
            self._reporter.troubles.append((DISK_FULL, lambda: self._ledger.trouble))
            channel = inference(settings.namespace, settings.service, settings.worker, tier=settings.next_tier)
            self._offload = OffloadClient(bus, channel)
            self._ledger.follow(Count.LATE, lambda: self._offload.late)
            self._ledger.follow(Count.UNASKED, lambda: self._offload.unknown)
            await self._offload.start()
            await self._wait_for_broker()
            reports = asyncio.create_task(self._reporter.run(), name="reports")
            self._ready.set_result(None)
            await self._stop.wait()
            self._offload.abandon()
            reports.cancel()
            await self._reporter.publish_final(*self._last)

    async def _wait_for_broker(self) -> None:
        """Wait for the broker, at most FIRST_S seconds, so that cloud workers can answer the first samples."""
        try:
            await self._bus.wait_connected(min(FIRST_S, self._settings.deadline_s))
        except BusError as error:
            log.warning("broker not reachable: samples are answered by the edge only", reason=str(error))
