"""Finds the workers of a node that no longer report (silent ones), and kills those that hang (``SilenceWatch``).

A worker that is stopped (SIGSTOP), deadlocked or blocked reports nothing, but its process lives and keeps its
connections. Silence counts only while this controller is connected and its own event loop runs. It is confirmed
without the broker: a process that hangs accepts a connection on its health port and answers nothing there. An adopted
worker (an earlier controller has started it) counts as one that has just reported; its health port and its report
period are in its record.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import structlog

from halimede.environment import number
from halimede.errors import InvalidFieldError
from halimede.names import Key
from services.lc.paths import Worker
from services.lc.supervisor.worker_state import ReportTimes, WorkerState, is_unheard

log = structlog.get_logger()

#: seconds between two checks, and most seconds for the answer of a health port
CHECK_S, PROBE_S = 1.0, 1.0
#: time without a report after which a worker is silent: least seconds, and number of the worker's own report periods
SILENT_S, SILENT_PERIODS = 10.0, 3
#: the same after which a report is overdue: the node's status then has the time of the last one
OVERDUE_S, OVERDUE_PERIODS = 5.0, 1.5
#: seconds after its start after which a worker that has not reported may have no connection
UNCONNECTED_S = 3.0
#: seconds of silence after which a stopped process is killed; and for another one, seconds beyond the time within which
#: it ends a hanging model call itself
STOPPED_S, BEYOND_MODEL_S = 15.0, 10.0
#: most seconds of a model call in a worker without MODEL_TIMEOUT_S
MODEL_TIMEOUT_S = 60.0


class SilenceWatch:
    """Watches ``workers``, which ``Supervisor`` changes, while ``run`` runs.

    ``connected``: whether workers' reports can arrive at this LC. ``changed`` is called with the service of a worker
    whose state has changed. ``connection_error``: returns why a worker has no connection to the broker, by its log of
    the last seconds.
    """

    def __init__(
        self,
        workers: Mapping[Worker, WorkerState],
        connected: Callable[[], bool],
        changed: Callable[[Key], None],
        connection_error: Callable[[Worker, float], str],
    ) -> None:
        self._workers = workers
        self._connected = connected
        self._changed = changed
        self._connection_error = connection_error

    def begin(self, entry: WorkerState) -> None:
        """Begin to watch the process of a worker, which has just been started or adopted."""
        entry.reports = ReportTimes(last_at=entry.since)

    def record_report(self, entry: WorkerState, now: float) -> None:
        """Record that a worker has reported at the event loop's time ``now``."""
        entry.reports.last_at = now

    async def run(self) -> None:
        """Check all workers every second, until cancelled."""
        loop = asyncio.get_running_loop()
        checked = loop.time()
        while True:
            await asyncio.sleep(CHECK_S)
            now = loop.time()
            if not self._connected() or now - checked > CHECK_S + PROBE_S:
                for entry in self._workers.values():  # no report could arrive: their time begins now
                    entry.reports.last_at = now
            silent = []
            for entry in self._workers.values():
                self._note_overdue(entry, now)
                self._note_unconnected(entry, now)
                if is_silent(entry, now):
                    silent.append(entry)
                elif entry.reports.silence:
                    self._set_silence(entry, "")
            await asyncio.gather(*(self._confirm(entry) for entry in silent))
            checked = loop.time()

    def _note_overdue(self, entry: WorkerState, now: float) -> None:
        """Record since when a worker's report is overdue, or that it is not; nothing may be wrong yet."""
        overdue = is_late(entry, now, OVERDUE_S, OVERDUE_PERIODS)
        if overdue is not bool(entry.reports.overdue_since):
            last_report = datetime.now(UTC) - timedelta(seconds=now - entry.reports.last_at)
            entry.reports.overdue_since = last_report.isoformat(timespec="seconds") if overdue else ""
            self._changed(entry.service)

    def _note_unconnected(self, entry: WorkerState, now: float) -> None:
        """Record why a worker that has not reported yet has no connection, while this controller has one."""
        ran_s = now - entry.since
        if entry.process and ran_s >= UNCONNECTED_S and is_unheard(entry, now) and self._connected():
            error = self._connection_error(entry.worker, ran_s)
            if error != entry.reports.unconnected:
                entry.reports.unconnected = error
                log.warning("worker has no connection", worker=str(entry.worker), reason=error)
                self._changed(entry.service)

    async def _confirm(self, entry: WorkerState) -> None:
        """Record that a worker is silent, and kill it if it hangs for longer than a model call may take."""
        process = entry.process
        hangs = await is_hung(entry.http) or (process is not None and process.stopped)
        now = asyncio.get_running_loop().time()
        if process is None or entry.process is not process or not is_silent(entry, now):
            return
        port = "its health port does not answer" if hangs else "its process runs: check its connection to the broker"
        error = "" if hangs else self._connection_error(entry.worker, now - entry.reports.last_at)
        detail = f" ({error})" if error else ""
        self._set_silence(entry, f"no report for more than {patience_s(entry):g} s, and {port}{detail}")
        limit_s = STOPPED_S if process.stopped else hang_limit_s(entry)
        if hangs and now - entry.reports.last_at > limit_s:
            log.error("hung worker killed", worker=str(entry.worker), pid=process.record.pid, silent_s=limit_s)
            process.kill()

    def _set_silence(self, entry: WorkerState, text: str) -> None:
        """Set the message about a worker's silence; empty: it reports."""
        if entry.reports.silence != text:
            entry.reports.silence = text
            log.warning("worker silent" if text else "worker reporting again", worker=str(entry.worker), message=text)
            self._changed(entry.service)


def patience_s(entry: WorkerState, least_s: float = SILENT_S, periods: float = SILENT_PERIODS) -> float:
    """Return the seconds without a report after which a worker is late; infinity if it need not report.

    They are ``periods`` of the worker's report periods, and at least ``least_s``.
    """
    # the record of an adopted worker may lack the period: an earlier version wrote it, or the store was lost
    reports = entry.adopted and entry.info is None and entry.start is not None and entry.start.spec.reports
    return max(least_s, periods * entry.period_s) if entry.period_s or reports else float("inf")


def is_late(entry: WorkerState, now: float, least_s: float, periods: float) -> bool:
    """Return whether a running worker is late with its report by ``patience_s``, at the event loop's time ``now``."""
    runs = entry.process is not None and (entry.info is None or entry.info.status in {"starting", "running"})
    return runs and not entry.stop.is_set() and now - entry.reports.last_at > patience_s(entry, least_s, periods)


def is_silent(entry: WorkerState, now: float) -> bool:
    """Return whether a running worker is silent at the event loop's time ``now``."""
    return is_late(entry, now, SILENT_S, SILENT_PERIODS)


def hang_limit_s(entry: WorkerState) -> float:
    """Return the seconds of silence after which a hanging worker is killed: always above its MODEL_TIMEOUT_S."""
    model_s = MODEL_TIMEOUT_S
    with contextlib.suppress(InvalidFieldError):  # the worker itself refuses the value and ends
        if entry.start:
            model_s = number(entry.start.spec.env, "MODEL_TIMEOUT_S", MODEL_TIMEOUT_S, least=0.1, most=86_400)
    return max(STOPPED_S, model_s + BEYOND_MODEL_S)


async def is_hung(url: str) -> bool:
    """Return whether a health port of this machine accepts a connection and answers nothing within 1 s.

    ``url``: of the health; empty: there is none. Any other result proves nothing against the process, so it is False:
    any answer, a refusal, no port.
    """
    port = urlsplit(url).port if url else None
    if not port:
        return False
    writer = None
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            await reader.read(1)
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        if writer:
            writer.close()
    return False
