"""Real worker processes on Linux: ``LinuxLauncher`` starts and finds them, ``LinuxProcess`` is a running one.

A worker outlives its LC: it leads its own process group, does not depend on its parent, and writes its output directly
to its log file. It stays in the session: some kernels share the processor between sessions (``sched_autogroup``), and
then the priority of a process, such as that of a trainer's child, counts only within one. The next LC finds a worker by
pid and start ticks of the stored record, or by the record in the worker's environment. A pidfd reports the end of a
process. A group is only signalled while its leader still has its pid: a child before it is reaped, an adopted process
when it ends.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import structlog

from halimede.bus.connection import BUS_DOWN, CONNECTION_EVENTS
from halimede.system.child_process import stat_fields, tail, wait_pidfd
from halimede.system.process_limits import give_low_priority
from services.lc.paths import NodePaths, Worker
from services.lc.store import ProcessRecord
from services.lc.supervisor.process import CANNOT_START, NeededPath, Process, Start, StartError

log = structlog.get_logger()

#: variable with the record of a worker, in case the LC dies after starting it and before storing the record
RECORD_VARIABLE = "HALIMEDE_PROCESS"
#: variables that a worker inherits from its LC, in addition to those of halimede and OpenTelemetry
INHERITED = frozenset({
    "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE",
    "TMPDIR", "TZ", "USER",
})  # fmt: skip
#: variable with the LC's own credentials, which no worker inherits: it gets those of its role, or none
OWN = "HALIMEDE_CREDENTIALS"


def inherited_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the LC's environment that workers inherit."""
    return {
        k: v for k, v in environment.items() if k in INHERITED or (k.startswith(("HALIMEDE_", "OTEL_")) and k != OWN)
    }


class LogEvent(msgspec.Struct):
    """A line of a worker's log in JSON: the event, its time, and why a connection ended (else empty)."""

    event: str
    timestamp: datetime
    reason: str = ""


def connection_error(log_text: str, began: datetime) -> str:
    """Return why a worker's connection failed, if its log's last event of the connection is a failure after ``began``.

    Else the text is empty.
    """
    for line in reversed(log_text.split("\n")):
        with contextlib.suppress(msgspec.MsgspecError):
            event = msgspec.json.decode(line, type=LogEvent)
            if event.event in CONNECTION_EVENTS:
                return event.reason if event.event == BUS_DOWN and event.timestamp >= began else ""
    return ""


class LinuxProcess:
    """A ``Process`` on Linux, which leads its own group.

    ``pidfd``: a descriptor by which its end is noticed. ``child``: None: another LC has started it, so this one cannot
    reap it.
    """

    def __init__(self, record: ProcessRecord, pidfd: int, child: subprocess.Popen[bytes] | None) -> None:
        self.record = record
        self._pidfd = pidfd
        self._child = child

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it; a process held by a debugger counts as running."""
        fields = stat_fields(self.record.pid)
        return fields is not None and fields[0] == "T"

    async def wait(self) -> int | None:
        """Wait for its end, kill the rest of its group, and return its exit code; None: it is no child of this LC."""
        await wait_pidfd(self._pidfd)
        self.kill()
        return self._child.wait() if self._child else None

    def terminate(self) -> None:
        """Send SIGTERM to the group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the group."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the group, if it exists."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.record.pid, number)


class LinuxLauncher:
    """A ``Launcher`` of real processes. ``environment``: from which workers inherit; None: that of this process."""

    def __init__(self, folders: NodePaths, environment: Mapping[str, str] | None = None) -> None:
        self.folders = folders
        self.inherited = inherited_variables(os.environ if environment is None else environment)

    def start(self, start: Start) -> Process:
        """Start a worker in its own process group. Raises StartError, which says what to do about it."""
        spec, folder = start.spec, self.folders.worker(start.worker)
        record = msgspec.json.encode(_record(start, 0, 0)).decode()
        env = {**self.inherited, **spec.env, RECORD_VARIABLE: f"{self.folders.root} {record}"}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in spec.paths:
                _provide(path)
            if not Path(spec.cwd).is_dir():
                raise StartError("WorkingDirMissing", f"workingDir {spec.cwd} is not a folder on this node: create it")
            with self.folders.log(start.worker).open("ab") as output:
                child = subprocess.Popen(
                    spec.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=spec.cwd,
                    env=env,
                    process_group=0,
                )
        except (FileNotFoundError, PermissionError) as error:
            text = f"{error.filename}: {error.strerror}: install it on this node or correct the template"
            raise StartError("CommandNotFound", text) from error
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            raise StartError(CANNOT_START, f"{spec.argv[0]} could not be started: {error}") from error
        return _take(start, child)

    def find(self, records: list[ProcessRecord]) -> list[Process]:
        """Return the running workers: those of stored records, then those with only a record in their environment."""
        processes: dict[Worker, Process] = {}
        for record in [*records, *self._search()]:
            process = processes.get(record.worker)
            if process is None:
                if adopted := _adopt(record):
                    processes[record.worker] = adopted
            elif process.record.pid != record.pid:
                log.warning("second process of a worker ignored", worker=str(record.worker), pid=record.pid)
        return list(processes.values())

    def last_line(self, worker: Worker) -> str:
        """Return the last line of a worker's log, at most 500 characters; empty: there is none."""
        lines = tail(self.folders.log(worker)).split("\n")
        return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "")

    def connection_error(self, worker: Worker, age_s: float) -> str:
        """Return why a worker has no connection to the broker, by its log of the last ``age_s`` seconds, or empty."""
        began = datetime.now(UTC) - timedelta(seconds=age_s)
        return connection_error(tail(self.folders.log(worker)), began)

    def _search(self) -> Iterator[ProcessRecord]:
        """Yield the records of group leaders whose parent has none in its environment: workers, not their children."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (record := self._read_record(int(entry.name))):
                pid = int(entry.name)
                with contextlib.suppress(OSError):
                    if os.getpgid(pid) == pid and not self._read_record(_parent(pid)):
                        yield record

    def _read_record(self, pid: int) -> ProcessRecord | None:
        """Return the record in a process's environment; None: it is no worker of this node, or has ended."""
        prefix = f"{RECORD_VARIABLE}={self.folders.root} ".encode()
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            text = next((v[len(prefix) :] for v in variables if v.startswith(prefix)), None)
            ticks = start_ticks(pid)
            if text is None or ticks is None:
                return None
            return msgspec.structs.replace(msgspec.json.decode(text, type=ProcessRecord), pid=pid, ticks=ticks)
        except (OSError, msgspec.DecodeError):
            return None


def boot_id() -> str:
    """Return an identifier of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """Return a process's start in clock ticks since the boot; None: it does not exist or has ended."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields and fields[0] not in {"Z", "X"} else None


def _parent(pid: int) -> int:
    """Return the pid of a process's parent; 0: it does not exist."""
    fields = stat_fields(pid)
    return int(fields[1]) if fields else 0


def _record(start: Start, pid: int, ticks: int) -> ProcessRecord:
    """Return the record of a worker's process."""
    return ProcessRecord(
        namespace=start.worker.namespace,
        name=start.worker.name,
        service=str(start.service),
        uid=start.uid,
        role=start.role,
        spec_hash=start.spec.digest,
        pid=pid,
        ticks=ticks,
        boot=boot_id(),
        code=start.spec.code,
    )


def _take(start: Start, child: subprocess.Popen[bytes]) -> Process:
    """Limit and watch a new process. Raises StartError if that fails; then the process is killed."""
    memory, pidfd = start.spec.memory_bytes, None
    try:
        pidfd = os.pidfd_open(child.pid)
        if start.spec.trains:  # before its imports, which take most of the time of a short training
            give_low_priority(child.pid, has_share=start.spec.has_share, keeps_share=start.spec.reports)
        if memory is not None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(child.pid, resource.RLIMIT_DATA, (memory, memory))
        ticks = start_ticks(child.pid) or 0  # a child exists until it is reaped
        return LinuxProcess(_record(start, child.pid, ticks), pidfd, child)
    except Exception as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if pidfd is not None:
            os.close(pidfd)
        raise StartError(CANNOT_START, f"{start.spec.argv[0]} could not get its limits: {error}") from error


def _adopt(record: ProcessRecord) -> Process | None:
    """Return the process of a record; None: it does not run any more."""
    if record.boot != boot_id():
        return None
    try:
        pidfd = os.pidfd_open(record.pid)
    except OSError:
        return None
    if start_ticks(record.pid) == record.ticks:  # read after the pidfd is open: the pid cannot be reused now
        return LinuxProcess(record, pidfd, None)
    os.close(pidfd)
    return None


def _provide(needed: NeededPath) -> None:
    """Make a needed folder if that is allowed. Raises StartError if the path does not exist, OSError."""
    path = Path(needed.path)
    if needed.create:
        path.mkdir(parents=True, exist_ok=True)
    exists = {"any": path.exists, "folder": path.is_dir, "file": path.is_file}[needed.kind]
    if not exists():
        kind = "nothing" if needed.kind == "any" else f"no {needed.kind}"
        raise StartError("HostPathMissing", f"there is {kind} at {path} on this node: create it, or correct the volume")
