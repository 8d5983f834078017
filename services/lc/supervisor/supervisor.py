"""Keeps each worker's process running (``Supervisor``): starts it, restarts it with back-off, and stops it cleanly.

Each worker has a ``WorkerState`` and one task. The task launches the process, watches the process until its end, judges
the end, waits for the back-off, and launches the next process, until a plan stops the worker. The end is judged from
outside (exit code, run time) and by the worker's own last report, so that a condition shows both. Plans call
``carry_out``, and workers' reports arrive at ``receive``. Another loop (``SilenceWatch``) kills processes that hang.

If the supervisor is cancelled, the processes continue: they survive the death of an LC, and the next LC adopts them.
``stop_all`` ends them.
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
from services.lc.code_files import open_without_waiting
from services.lc.paths import NodePaths, Worker
from services.lc.planning.plan import ObservedWorker, Plan
from services.lc.planning.resource_state import ResourceState, missing_text
from services.lc.status_reporter import MAX_MESSAGE, MAX_REASON, compose
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
from services.lc.supervisor.rollout_keeper import RolloutKeeper, can_swap, model_report, models_in_use, trouble
from services.lc.supervisor.silence import SilenceWatch
from services.lc.supervisor.worker_state import FIRST_DELAY, QUICK_FAILURES, SILENT_S, STABLE_S, WorkerState, phase_of
from services.lc.worker_files import move_worker_folders

log = structlog.get_logger()
#: most seconds until a restart
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
    """A ``WorkerBackend`` of processes, with one task in ``tasks`` for each worker.

    ``changed`` is called with a service's key after each change of its workers' states. ``missing`` is called with a
    model's path if the file is missing or has changed since it was prepared. ``connected``: whether workers' reports
    can arrive. ``adopted`` is called with the record of each worker that runs at the start.
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
        #: number of restarted processes of all workers since the LC's start
        self.restarts = 0

    def adopt(self) -> None:
        """Take over the workers of an earlier LC that still run, and drop the records of all others.

        Called before any worker is started.
        """
        records = self._store.processes()
        for process in self._launcher.find(records):
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
        for record in records:
            if record.worker not in self._entries:
                self._forget(record.worker)

    @property
    def running(self) -> Mapping[Worker, ObservedWorker]:
        """All supervised workers, for plans; one that is stopping is among them until its end."""
        return {
            w: ObservedWorker(
                w, e.service, e.uid, e.spec_hash, e.start is not None, e.assignment.planned_model, can_swap(e)
            )
            for w, e in self._entries.items()
        }

    @property
    def models(self) -> Collection[Path | str] | None:
        """The models that workers use or may return to, by path or digest; None: a worker is in no plan yet."""
        entries = self._entries.values()
        if any(entry.start is None for entry in entries):
            return None
        return [model for entry in entries for model in models_in_use(entry)]

    def tasks(self) -> dict[str, Coroutine[None, None, None]]:
        """Return the coroutine that watches for silent workers, by name; each worker has its own task."""
        return {"silent workers": self._silence.run()}

    def is_busy(self, service: Key) -> bool:
        """Whether a worker of a service is supervised."""
        return any(entry.service == service for entry in self._entries.values())

    def clear_away(self, service: Key) -> None:
        """Have the folders of a service's workers removed."""
        move_worker_folders(self._folders, service)

    def status(self, state: ResourceState) -> NodeStatus:
        """Return the report on a resource, by its state in the last plan and its workers."""
        entries = {e.worker: e for e in self._entries.values() if (e.service, e.uid) == (state.key, state.uid)}
        return compose(
            state,
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
        """Run a worker from now on; one that is supervised already continues, if it is to have the same process."""
        entry = self._entries.get(start.worker)
        if entry is None:
            digest = start.spec.digest
            entry = WorkerState(start.worker, start.service, start.uid, start.role, digest, digest, start)
            self._supervise(entry, None)
        elif entry.spec_hash == start.spec.digest:
            entry.start = start

    def swap(self, start: Start) -> None:
        """Have a running worker change its model to that of ``start``."""
        entry = self._entries.get(start.worker)
        if entry and entry.spec_hash == start.spec.digest:
            entry.start = start
            self._rollouts.plan_model(entry, start.desired_model)
            self._changed(entry.service)

    def stop(self, worker: Worker, successor: Start | None = None) -> None:
        """Begin to stop a worker: SIGTERM, its grace, SIGKILL. It leaves ``running`` after its end.

        ``successor``: how it starts again after that; None: it does not.
        """
        if entry := self._entries.get(worker):
            self._rollouts.record_stop(entry, successor)
            entry.stop.set()

    async def stop_all(self) -> None:
        """Stop all workers in parallel, and wait for their ends, at most some seconds beyond the longest grace."""
        entries = list(self._entries.values())
        for entry in entries:
            entry.stop.set()
        if tasks := [entry.task for entry in entries if entry.task]:
            longest = max(grace(entry) for entry in entries) + EXTRA_S + KILL_S
            await asyncio.wait(tasks, timeout=longest + 1)

    def receive(self, worker: Worker, info: WorkerInfo) -> Key | None:
        """Process a worker's report; return the key of its service; None: no such worker of that service runs here."""
        entry = self._entries.get(worker)
        if entry is None or entry.service.name != info.owner_name:
            return None
        could_swap, now = can_swap(entry), asyncio.get_running_loop().time()
        entry.info = info
        self._silence.record_report(entry, now)
        if entry.process and (entry.http, entry.period_s) != (info.http, info.period_s):
            entry.http, entry.period_s = info.http, info.period_s
            with _unless_store_fails():
                self._store.put_process(
                    msgspec.structs.replace(entry.process.record, http=info.http, period_s=info.period_s)
                )
        if info.status == "running" and now - entry.since >= OWN_REPORT_S:
            self._rollouts.record_start(entry)
        self._rollouts.receive(entry, info)
        if can_swap(entry) is not could_swap:
            self._changed(entry.service)  # a waiting model may be assigned now
        entry.task_info = info.task_info or info.owner_info or entry.task_info
        if info.status == "failed":
            entry.failure_report = info
        return entry.service

    def reports(self) -> list[WorkerReport]:
        """Return the states of all workers."""
        return [self.report(entry) for entry in self._entries.values()]

    def report(self, entry: WorkerState) -> WorkerReport:
        """Return the state of a worker, as a report has it."""
        phase, reason, message = phase_of(entry, asyncio.get_running_loop().time())
        if phase == "Running" and not reason:
            reason, message = trouble(entry)
        return WorkerReport(
            name=entry.worker.name,
            role=entry.role,
            phase=phase,
            restarts=entry.restarts,
            reason=reason[:MAX_REASON],
            message=message[:MAX_MESSAGE],
            http=entry.http if entry.process else "",
            model=model_report(entry) if entry.process else None,
            url=entry.info.url if entry.info and entry.process else "",
            training=entry.info.training if entry.info else None,
            last_report=entry.reports.overdue_since,
        )

    # --- one worker's task -------------------------------------------------------------------------------------

    def _supervise(self, entry: WorkerState, process: Process | None) -> None:
        """Start the task of a worker; ``process``: the one that runs already."""
        self._entries[entry.worker] = entry
        entry.spec_hash = self._rollouts.begin(entry)
        entry.task = self._tasks.create_task(self._run(entry, process), name=f"worker {entry.worker}")

    async def _run(self, entry: WorkerState, process: Process | None) -> None:
        """Keep a worker's process running until the worker is stopped."""
        while not entry.stop.is_set():
            try:
                process = process or await self._launch(entry)
            except StartError as error:
                entry.last_log_line, entry.failure_report = "", None
                self._record_failure(entry, error.reason, str(error), needs_person=True)
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
            restarted = 0 if entry.stop.is_set() else 1
            entry.restarts += restarted
            self.restarts += restarted
        del self._entries[entry.worker]
        self._changed(entry.service)

    async def _launch(self, entry: WorkerState) -> Process | None:
        """Start a worker's process; None: the worker was stopped meanwhile. Raises StartError."""
        while True:
            start = entry.start
            intact = await in_thread(self._intact_files, entry.files)
            if entry.start is start:  # otherwise a plan has changed the start meanwhile
                return None if entry.stop.is_set() else self._start_process(entry, intact)

    def _intact_files(self, files: Iterable[Path]) -> frozenset[Path]:
        """Return those of some files that are intact. Blocks, the longer the more files of archives there are."""
        return frozenset(path for path in files if is_intact(self._cache, path))

    def _start_process(self, entry: WorkerState, intact: Container[Path]) -> Process:
        """Start a worker's process with its first model, and store its record. Raises StartError."""
        if entry.start is None:
            raise StartError("NotConfirmed", "its start is not yet confirmed by a plan")
        spec = entry.assignment.rollout.spec(entry.start.spec)
        entry.process_hash = spec.digest
        for path in filter(None, (self._rollouts.assign_first(entry, intact), *entry.start.files)):
            if path not in intact:
                self._missing(path)
                raise StartError("ModelMissing", missing_text(path))
        # a worker of this package reports before it loads its model
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
        """Watch a process until its end, and judge the end."""
        loop = asyncio.get_running_loop()
        entry.process, entry.since, entry.info = process, loop.time(), None
        entry.http, entry.period_s = process.record.http, process.record.period_s
        self._silence.begin(entry)
        if entry.reason:  # an earlier start failed: its cause is corrected
            entry.failures, entry.needs_person, entry.reason = 0, False, ""
        # slightly after the limits: timers of the event loop may be early by its clock's resolution
        timers = [loop.call_later(s + 0.1, self._changed, entry.service) for s in (SILENT_S, STABLE_S)]
        self._changed(entry.service)
        try:
            code = await wait_for_end(entry, process)
        finally:
            for timer in timers:
                timer.cancel()
        entry.process = None
        if loop.time() - entry.since >= STABLE_S:  # a user's script may never report
            self._rollouts.record_start(entry)
        self._forget(entry.worker)
        log.info("worker ended", worker=str(entry.worker), code=code, asked=entry.stop.is_set())
        if not entry.stop.is_set():
            self._judge(entry, code, loop.time() - entry.since)

    def _judge(self, entry: WorkerState, code: int | None, ran_s: float) -> None:
        """Record how a process has ended by itself, and decide when the next one starts."""
        if ran_s >= STABLE_S:
            entry.failures = 0
        entry.last_log_line = "" if entry.reports.silence else self._launcher.last_line(entry.worker)
        if entry.info is None or entry.info.status != "failed":
            entry.failure_report = None
        cause = f"it hung, {exit_text(code)}" if entry.reports.silence else exit_text(code)
        self._rollouts.record_end(entry, cause)
        self._record_failure(entry, "", cause, needs_person=code == USERS_MISTAKE)
        if entry.needs_person:
            entry.delay = LONGEST_DELAY

    def _record_failure(self, entry: WorkerState, reason: str, ending: str, *, needs_person: bool) -> None:
        """Record a failed start (with a reason) or a failed process, and when the next one starts.

        ``ending``: how it failed, for users. ``needs_person``: whether a person must act before it can succeed. If new
        settings are the probable cause, the next process has the previous ones.
        """
        entry.failures += 1
        entry.delay = exponential(entry.failures, FIRST_DELAY, LONGEST_DELAY)
        entry.needs_person, entry.reason, entry.ending = needs_person, reason, ending
        log.warning(
            "worker failed", worker=str(entry.worker), ending=ending, line=entry.last_log_line, failures=entry.failures
        )
        repeated = entry.failures >= QUICK_FAILURES and reason in {"", CANNOT_START}
        cannot_start = reason in MISSING_ON_NODE or (needs_person and not reason) or repeated
        if cannot_start and self._rollouts.record_failed_start(entry):
            entry.needs_person, entry.delay = False, FIRST_DELAY

    def _forget(self, worker: Worker) -> None:
        """Drop the record of a worker's process."""
        with _unless_store_fails():
            self._store.process_ended(worker)


def _may_report(spec: ProcessSpec) -> bool:
    """Whether a command or its Python script names halimede: then the worker may report after its imports. Blocks."""
    # only names count: a folder of the interpreter or of the script may have any name, such as that of a clone
    if any("halimede" in Path(argument).name for argument in spec.argv):
        return True
    script = next((argument for argument in spec.argv[1:] if argument.endswith(".py")), "")
    try:
        # a file that is not regular, such as a pipe, must not block the controller
        with open(Path(spec.cwd, script), "rb", opener=open_without_waiting) as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and b"halimede" in file.read(MOST_OF_SCRIPT)
    except (OSError, ValueError):  # no such file, or an invalid name
        return False


@contextlib.contextmanager
def _unless_store_fails() -> Iterator[None]:
    """Log an error of the store in the block: a process without a record costs only a search at the next start."""
    try:
        yield
    except sqlite3.Error as error:
        log.warning("process record not written", error=str(error))


async def wait_for_end(entry: WorkerState, process: Process) -> int | None:
    """Wait for the end of a worker's process, and stop it when the worker is stopped.

    Return the exit code; None: unknown, or the process could not be killed.
    """
    end = asyncio.ensure_future(process.wait())
    stop = asyncio.ensure_future(entry.stop.wait())
    try:
        await asyncio.wait({end, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not end.done():
            process.terminate()
            await asyncio.wait({end}, timeout=grace(entry) + EXTRA_S)
        if not end.done():
            log.warning("worker killed after its grace period", worker=str(entry.worker))
            process.kill()
            await asyncio.wait({end}, timeout=KILL_S)
        if not end.done():
            log.error("worker abandoned", worker=str(entry.worker), pid=process.record.pid)
            return None
        return end.result()
    finally:
        end.cancel()
        stop.cancel()


def grace(entry: WorkerState) -> float:
    """Return the seconds that a worker has to stop: a default for an adopted one that is in no plan yet."""
    return entry.start.spec.grace_s if entry.start else 10.0


def exit_text(code: int | None) -> str:
    """Return how a process ended, as text."""
    if code is None:
        return "ended (exit code unknown)"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
