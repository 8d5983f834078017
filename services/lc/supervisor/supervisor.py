"""Keeps each worker's process running: starts it, restarts it with back-off, and stops it cleanly.

Each worker has one task. The end of a process is judged from outside (exit code, run time) and combined with the
worker's own last report, so that a condition shows both. Cancelling the supervisor leaves the processes running: they
survive the death of an LC, and the next one adopts them. ``stop_all`` ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
from collections.abc import Callable, Collection, Container, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import structlog

from halimede.messages import NodeStatus, WorkerInfo, WorkerReport
from halimede.models import Cache
from halimede.models.archive import is_intact
from halimede.models.cache import in_thread
from halimede.names import Key
from halimede.system.backoff import exponential
from services.lc.paths import NodePaths, Worker
from services.lc.planning.plan import ObservedWorker, Plan
from services.lc.planning.resource_state import ResourceState, missing_text
from services.lc.status_reporter import compose
from services.lc.store import NodeStore, ProcessRecord
from services.lc.supervisor.process import (
    CANNOT_START,
    MISSING_ON_NODE,
    WORKER,
    Launcher,
    Process,
    ProcessSpec,
    Start,
    StartError,
)
from services.lc.supervisor.rollout_keeper import RolloutKeeper, model, swaps, trouble, used
from services.lc.supervisor.silence import SilenceWatch
from services.lc.supervisor.worker_state import (
    FIRST_DELAY,
    QUICK_FAILURES,
    SILENT_S,
    STABLE_S,
    WorkerState,
    phase_of,
)
from services.lc.worker_files import put_aside

log = structlog.get_logger()
LONGEST_DELAY = 60.0
#: exit code of a worker with a user's mistake: an immediate restart would fail again
USERS_MISTAKE = 2
#: seconds after a start in which a late report of the process before may arrive: none of its own is that early
OWN_REPORT_S = 0.1
#: most bytes of a user's script that are read: its imports are at its beginning
MOST_OF_SCRIPT = 256 * 1024
#: seconds beyond its grace until a process is killed, and until a killed one is given up
EXTRA_S, KILL_S = 1.0, 10.0


class Supervisor:
    """The workers of a node. ``changed`` is called with a service after each state change of its workers.

    ``missing`` is called with a model's path if the file has vanished or changed since it was prepared.
    ``connected``: whether workers' reports can arrive. ``adopted`` is called with the record of each worker that
    already runs.
    """

    def __init__(
        self,
        folders: NodePaths,
        launcher: Launcher,
        store: NodeStore,
        tasks: asyncio.TaskGroup,
        *,
        changed: Callable[[Key], None],
        missing: Callable[[Path], None],
        connected: Callable[[], bool],
        adopted: Callable[[ProcessRecord], None],
    ) -> None:
        self._folders = folders
        self._cache = Cache(folders.models)
        self._launcher = launcher
        self._store = store
        self._tasks = tasks
        self._changed = changed
        self._missing = missing
        self._adopted = adopted
        self._entries: dict[Worker, WorkerState] = {}
        self._rollouts = RolloutKeeper(folders, missing, tasks)
        self._silence = SilenceWatch(self._entries, connected, changed, launcher.connection_error)
        #: restarted processes of all workers since the controller's start
        self.restarts = 0

    def adopt(self) -> None:
        """Adopt running workers before any worker is started."""
        known = self._store.processes()
        for process in self._launcher.find(known):
            record = process.record
            entry = WorkerState(
                record.worker,
                Key.parse(record.service),
                record.uid,
                record.role,
                record.spec_hash,
                record.spec_hash,
                None,
                adopted=True,
            )
            log.info("worker adopted", worker=str(record.worker), pid=record.pid)
            self._adopted(record)
            self._supervise(entry, process)
        for record in known:
            if record.worker not in self._entries:
                self._forget(record.worker)

    @property
    def running(self) -> Mapping[Worker, ObservedWorker]:
        """All supervised workers, for plans. A stopping worker is still among them."""
        return {
            e.worker: ObservedWorker(e.worker, e.service, e.uid, e.spec_hash, e.start is not None, e.asked, swaps(e))
            for e in self._entries.values()
        }

    @property
    def models(self) -> Collection[Path | str] | None:
        """Return the models in use, by path or digest; None while a running worker is not in any plan yet."""
        entries = self._entries.values()
        if any(entry.start is None for entry in entries):
            return None
        return [each for entry in entries for each in used(entry)]

    def tasks(self) -> dict[str, Coroutine[None, None, None]]:
        """Return the watch for silent workers; each worker has its own task."""
        return {"silent workers": self._silence.run()}

    def busy(self, service: Key) -> bool:
        """Whether a worker of a service is supervised."""
        return any(entry.service == service for entry in self._entries.values())

    def clear_away(self, service: Key) -> None:
        """Move the folders of a service's workers away for removal."""
        put_aside(self._folders, service)

    def status(self, standing: ResourceState) -> NodeStatus:
        """Return the report on a resource."""
        known = (standing.key, standing.uid)
        entries = {e.worker: e for e in self._entries.values() if (e.service, e.uid) == known}
        return compose(
            standing,
            {worker: self.report(entry) for worker, entry in entries.items()},
            {worker: entry.task_info for worker, entry in entries.items() if entry.task_info},
        )

    def carry_out(self, plan: Plan) -> None:
        """Stop and start workers according to a plan, and change the models of running ones."""
        successors = {start.worker: start for start in plan.successors}
        for worker in plan.stop:
            self.stop(worker, successors.get(worker))
        for start in plan.start:
            self.start(start)
        for start in plan.swap:
            self.swap(start)

    def start(self, start: Start) -> None:
        """Run a worker from now on; an adopted one with the same spec continues."""
        entry = self._entries.get(start.worker)
        if entry is None:
            digest = start.spec.digest
            entry = WorkerState(start.worker, start.service, start.uid, start.role, digest, digest, start)
            entry.asked = start.desired_model
            self._supervise(entry, None)
        elif entry.spec_hash == start.spec.digest:
            entry.start = start

    def swap(self, start: Start) -> None:
        """Assign another model to a running worker."""
        entry = self._entries.get(start.worker)
        if entry and entry.spec_hash == start.spec.digest:
            entry.start, entry.asked = start, start.desired_model
            self._rollouts.next(entry)
            self._changed(entry.service)

    def stop(self, worker: Worker, successor: Start | None = None) -> None:
        """Stop a worker: SIGTERM, its grace, SIGKILL. It leaves ``running`` after its end.

        ``successor``: how it starts again after that.
        """
        if entry := self._entries.get(worker):
            self._rollouts.stopping(entry, successor)
            entry.stop.set()

    async def stop_all(self) -> None:
        """Stop all workers in parallel, and wait for their ends."""
        entries = list(self._entries.values())
        for entry in entries:
            entry.stop.set()
        longest = max((grace(entry) for entry in entries), default=0.0) + EXTRA_S + KILL_S
        if tasks := [entry.task for entry in entries if entry.task]:
            await asyncio.wait(tasks, timeout=longest + 1)

    def receive(self, worker: Worker, info: WorkerInfo) -> Key | None:
        """Receive a worker's report; return its service, None if it is not a worker of this node."""
        entry = self._entries.get(worker)
        if entry is None or entry.service.name != info.owner_name:
            return None
        took = swaps(entry)
        entry.info, entry.heard_at = info, asyncio.get_running_loop().time()
        if entry.process and (entry.http, entry.period_s) != (info.http, info.period_s):
            entry.http, entry.period_s = info.http, info.period_s
            with _unless_store_fails():
                self._store.put_process(
                    msgspec.structs.replace(entry.process.record, http=info.http, period_s=info.period_s)
                )
        if info.status == "running" and entry.heard_at - entry.since >= OWN_REPORT_S:
            self._rollouts.started(entry)
        self._rollouts.receive(entry, info)
        if swaps(entry) is not took:
            self._changed(entry.service)  # a model that waits for it may be assigned now
        entry.task_info = info.task_info or info.owner_info or entry.task_info
        if info.status == "failed":
            entry.last_words = info
        return entry.service

    def reports(self) -> list[WorkerReport]:
        """Return the reports on all workers."""
        return [self.report(entry) for entry in self._entries.values()]

    def report(self, entry: WorkerState) -> WorkerReport:
        """Return the report on a worker."""
        phase, reason, message = phase_of(entry, asyncio.get_running_loop().time())
        if phase == "Running" and not reason:
            reason, message = trouble(entry)
        return WorkerReport(
            name=entry.worker.name,
            role=entry.role,
            phase=phase,
            restarts=entry.restarts,
            reason=reason[:256],
            message=message[:4096],
            http=entry.http if entry.process else "",
            model=model(entry) if entry.process else None,
            url=entry.info.url if entry.info and entry.process else "",
            training=entry.info.training if entry.info else None,
            last_report=entry.quiet_since,
        )

    # --- one worker's task -------------------------------------------------------------------------------------

    def _supervise(self, entry: WorkerState, process: Process | None) -> None:
        self._entries[entry.worker] = entry
        self._rollouts.begin(entry)
        entry.task = self._tasks.create_task(self._run(entry, process), name=f"worker {entry.worker}")

    async def _run(self, entry: WorkerState, process: Process | None) -> None:
        while not entry.stop.is_set():
            try:
                process = process or await self._launch(entry)
            except StartError as error:
                entry.line, entry.last_words = "", None
                self._failed(entry, error.reason, str(error), mistaken=True)
            else:
                if process:
                    await self._attend(entry, process)
            process, entry.adopted = None, False
            if entry.start is None:
                break  # adopted, and ended before a plan included it: the next plan starts it again
            self._changed(entry.service)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(entry.delay):
                    await entry.stop.wait()
            again = 0 if entry.stop.is_set() else 1
            entry.restarts += again
            self.restarts += again
        del self._entries[entry.worker]
        self._changed(entry.service)

    async def _launch(self, entry: WorkerState) -> Process | None:
        """Start a process, unless the worker shall stop meanwhile. Raises StartError."""
        while True:
            start = entry.start
            intact = await in_thread(self._intact_files, entry.files)
            if entry.start is start:  # otherwise a plan has changed it meanwhile
                return None if entry.stop.is_set() else self._start_process(entry, intact)

    def _intact_files(self, files: Iterable[Path]) -> frozenset[Path]:
        """Return the intact ones of some files. Blocks, for a time that depends on the number of unpacked files."""
        return frozenset(path for path in files if is_intact(self._cache, path))

    def _start_process(self, entry: WorkerState, intact: Container[Path]) -> Process:
        if entry.start is None:
            raise StartError("NotConfirmed", "its start is not yet confirmed by a plan")
        spec = entry.rollout.spec(entry.start.spec)
        entry.process_hash = spec.digest
        for path in filter(None, (self._rollouts.first(entry, intact), *entry.start.files)):
            if path not in intact:
                self._missing(path)
                raise StartError("ModelMissing", missing_text(path))
        # our own worker reports before it loads its model
        entry.patience_s = STABLE_S if spec.argv[1:4] != WORKER and _may_report(spec) else SILENT_S
        try:
            process = self._launcher.start(replace(entry.start, spec=spec))
        except StartError:
            raise
        except Exception as error:
            log.exception("worker not started", worker=str(entry.worker))
            raise StartError("Internal", "the start failed, by an error in LC: see its log") from error
        with _unless_store_fails():
            self._store.put_process(process.record)
        log.info("worker started", worker=str(entry.worker), pid=process.record.pid, spec=entry.process_hash[:12])
        return process

    async def _attend(self, entry: WorkerState, process: Process) -> None:
        """Watch a process until its end, and evaluate it."""
        loop = asyncio.get_running_loop()
        entry.process, entry.since, entry.info, entry.silent, entry.quiet_since = process, loop.time(), None, "", ""
        entry.unconnected = ""
        entry.http, entry.period_s, entry.heard_at = process.record.http, process.record.period_s, entry.since
        if entry.reason:  # an earlier start failed: its cause is corrected
            entry.failures, entry.mistaken, entry.reason = 0, False, ""
        # slightly after the limits: timers of the event loop may be early by its clock's resolution
        look_again = [loop.call_later(s + 0.1, self._changed, entry.service) for s in (SILENT_S, STABLE_S)]
        self._changed(entry.service)
        try:
            code = await until_end(entry, process)
        finally:
            for timer in look_again:
                timer.cancel()
        entry.process = None
        if loop.time() - entry.since >= STABLE_S:  # a user's script may never report
            self._rollouts.started(entry)
        self._forget(entry.worker)
        log.info("worker ended", worker=str(entry.worker), code=code, asked=entry.stop.is_set())
        if not entry.stop.is_set():
            self._judge(entry, code, loop.time() - entry.since)

    def _judge(self, entry: WorkerState, code: int | None, ran_s: float) -> None:
        if ran_s >= STABLE_S:
            entry.failures = 0
        entry.line = "" if entry.silent else self._launcher.last_line(entry.worker)
        if entry.info is None or entry.info.status != "failed":
            entry.last_words = None
        how = f"it hung, {ending(code)}" if entry.silent else ending(code)
        self._rollouts.ended(entry, how)
        self._failed(entry, "", how, mistaken=code == USERS_MISTAKE)
        if entry.mistaken:
            entry.delay = LONGEST_DELAY

    def _failed(self, entry: WorkerState, reason: str, ending: str, *, mistaken: bool) -> None:
        entry.failures += 1
        entry.delay = exponential(entry.failures, FIRST_DELAY, LONGEST_DELAY)
        entry.mistaken, entry.reason, entry.ending = mistaken, reason, ending
        log.warning("worker failed", worker=str(entry.worker), ending=ending, line=entry.line, failures=entry.failures)
        repeated = entry.failures >= QUICK_FAILURES and reason in {"", CANNOT_START}
        if (reason in MISSING_ON_NODE or (mistaken and not reason) or repeated) and self._rollouts.not_started(entry):
            entry.mistaken, entry.delay = False, FIRST_DELAY

    def _forget(self, worker: Worker) -> None:
        with _unless_store_fails():
            self._store.process_ended(worker)


def _may_report(spec: ProcessSpec) -> bool:
    """Whether a command or its Python script names this package: then it may report after its imports."""
    if any("halimede" in argument for argument in spec.argv):
        return True
    script = next((argument for argument in spec.argv[1:] if argument.endswith(".py")), "")
    try:
        # a file that is not regular, such as a pipe, must not block the controller
        with open(Path(spec.cwd, script), "rb", opener=_without_waiting) as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and b"halimede" in file.read(MOST_OF_SCRIPT)
    except (OSError, ValueError):  # no such file, or an invalid name
        return False


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


@contextlib.contextmanager
def _unless_store_fails() -> Iterator[None]:
    """A record that cannot be written costs only a search at the next start."""
    try:
        yield
    except sqlite3.Error as error:
        log.warning("process record not written", error=str(error))


async def until_end(entry: WorkerState, process: Process) -> int | None:
    """Wait for the end of a process, or stop it with its worker; return the exit code, None if unknown."""
    ended = asyncio.ensure_future(process.wait())
    asked = asyncio.ensure_future(entry.stop.wait())
    try:
        await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            process.terminate()
            await asyncio.wait({ended}, timeout=grace(entry) + EXTRA_S)
        if not ended.done():
            log.warning("worker killed after its grace period", worker=str(entry.worker))
            process.kill()
            await asyncio.wait({ended}, timeout=KILL_S)
        if not ended.done():
            log.error("worker abandoned", worker=str(entry.worker), pid=process.record.pid)
            return None
        return ended.result()
    finally:
        ended.cancel()
        asked.cancel()


def grace(entry: WorkerState) -> float:
    """Return the seconds that a worker has to stop."""
    return entry.start.spec.grace_s if entry.start else 10.0


def ending(code: int | None) -> str:
    """Return how a process ended, as text."""
    if code is None:
        return "ended (exit code unknown)"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
