"""The whole system on one machine: a broker, GM and one LC for each node, as child processes.

``run`` runs a ``System``, which starts, restarts and stops the processes of a ``SystemLayout``. ``ReadinessWaiter``
waits until all are online, and a ``RunFile`` says to the CLI where the broker is.

A process that dies is restarted after a short pause. The stop has an order: LCs first, because they let their workers
finish; then GM; then the broker, which the others need until they end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from halimede import home_folder, programs, topics
from halimede.bus.message import Delivery
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import HalimedeError, InvalidFieldError, first_error
from halimede.messages import GmPresence, Presence
from halimede.names import check_name
from halimede.system.backoff import Backoff
from halimede.system.child_process import MAX_LOG, rotate
from halimede.system.files import write_atomic
from services import processes
from services.broker import DEFAULT_PORT, HOST, MosquittoProcess
from services.processes import USER_ERROR, Child, Exit, usable
from services.site import LocalSite, Security

#: seconds until GM and all nodes must be up after the start
UP_TIMEOUT = 120.0
#: seconds until SIGKILL at the stop of LCs: each gives its workers the grace that their users set
LC_STOP = 120.0
#: seconds until SIGKILL at the stop of GM
GM_STOP = 10.0
#: seconds until SIGKILL at the stop of workers without an LC
ORPHAN_STOP = 15.0
#: seconds between two reports of whom the stop waits for
REMAINING_REPORT_S = 5.0
#: seconds between two checks of the logs' sizes
LOG_CHECK_S = 5.0
#: deaths of a service while the system starts, after which the system gives up
START_ATTEMPTS = 3
#: seconds before the broker's first restart
BROKER_PAUSE = 0.2
#: seconds of the longest pause before a restart of the broker
BROKER_LONGEST_PAUSE = 10.0
#: seconds that the broker has to run until its pauses begin anew
BROKER_GOOD_RUN = 30.0
#: the label of a node whose name begins with a word
ROLE_LABELS = {"edge": "node-role.kubernetes.io/edge", "cloud": "node-role.kubernetes.io/cloud"}
#: port of GM's page if the broker has port 1883; of another broker port the same number of ports above or below
PAGE_PORT = 8686
#: names of the nodes of ``halimede up``, by default
DEFAULT_NODES = ("edge0", "edge1", "cloud0")
#: shows a text to the user
Report = Callable[[str], None]


class RunFile:
    """``run.json`` in ``home``, by which the CLI finds the broker. Inside ``with`` the folder is locked for one system.

    The kernel releases the lock when its process ends.
    """

    def __init__(self, home: Path) -> None:
        self.path = home / "run.json"
        self._home = home
        #: file descriptor of the lock file while it is locked
        self._handle: int | None = None

    def __enter__(self) -> Self:
        """Lock the folder. Raises HalimedeError if it cannot be used, has another's files, or another system runs."""
        self._handle = home_folder.lock(self._home)
        with usable(self.path):
            self.path.unlink(missing_ok=True)  # of a killed system
        return self

    def __exit__(self, *_: object) -> None:
        """Remove ``run.json``, then unlock the folder. The lock file stays: its removal would admit two systems."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def write(self, broker: str, nodes: list[str], credentials: Path | None = None) -> None:
        """Write the broker's URL, the names of nodes and the folder of the operator's credentials (None: none needed).

        A reader sees the whole file or none. Raises HalimedeError if it cannot be written.
        """
        content: dict[str, Any] = {"broker": broker}
        if credentials:
            content["credentials"] = str(credentials)
        content |= {"pid": os.getpid(), "nodes": nodes, "started": datetime.now(UTC).isoformat()}
        with usable(self.path):
            write_atomic(self.path, f"{json.dumps(content, indent=2)}\n".encode())


class ReadinessWaiter:
    """Collects the presences (retained messages of who is online) of GM and of each node, until none is missing."""

    def __init__(self, nodes: Sequence[str]) -> None:
        #: who is not online yet, as texts for the user
        self.missing = {"global manager", *(f"node {node}" for node in nodes)}
        #: set once nobody is missing
        self.complete = asyncio.Event()
        #: URL of GM's page; empty until GM is online
        self.page = ""

    async def gm(self, delivery: Delivery[GmPresence]) -> None:
        """Receive GM's presence: a handler for a subscription."""
        if delivery.body.online:
            self.page = delivery.body.http
            self._remove("global manager")

    async def node(self, delivery: Delivery[Presence]) -> None:
        """Receive a node's presence: a handler for a subscription."""
        if delivery.body.online:
            self._remove(f"node {delivery.names['node']}")

    def _remove(self, name: str) -> None:
        """Record that one of the missing is online."""
        self.missing.discard(name)
        if not self.missing:
            self.complete.set()


@dataclass(frozen=True, slots=True)
class SystemLayout:
    """What ``halimede up`` runs.

    Attributes:
        home: the folder of all files.
        nodes: names of the nodes, each with one LC.
        port: of the broker; None: the first free one from 1883 on.
        security: how the broker is protected.
        fetch_allow: addresses that models may come from besides public ones, as in the option ``--fetch-allow`` of an
            LC, such as ``loopback,private``.

    """

    home: Path
    nodes: Sequence[str] = DEFAULT_NODES
    port: int | None = None
    security: Security = Security.PASSWORDS
    fetch_allow: str = ""


def parse_nodes(text: str) -> list[str]:
    """Return the names in a text such as ``edge0,cloud0``. Raises InvalidFieldError for a bad or repeated name."""
    names = [check_name("--nodes", name.strip()) for name in text.split(",")]
    for name in names:
        if names.count(name) > 1:
            raise InvalidFieldError("--nodes", text, f"give {name} only once")
    return names


def labels_of(node: str) -> dict[str, str]:
    """Return a node's labels by its name: ``edge0`` has that of edge nodes, with an empty value."""
    return {label: "" for role, label in ROLE_LABELS.items() if node.startswith(role)}


async def run(layout: SystemLayout, report: Report) -> None:
    """Run the system until SIGINT or SIGTERM; a second signal ends the waits of the stop.

    ``report`` gets the texts for the user. Raises HalimedeError if the system cannot start.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()

    def stop_or_hurry() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    processes.become_subreaper()
    with RunFile(layout.home) as run_file:
        system = System(layout, run_file, report)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop_or_hurry)
        loop.add_signal_handler(signal.SIGCHLD, system.reap)
        try:
            await system.run(stop, hurry)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                loop.remove_signal_handler(number)


class System:
    """The processes of one machine: ``run`` starts them, restarts them and stops them."""

    def __init__(self, layout: SystemLayout, run_file: RunFile, report: Report) -> None:
        self._layout = layout
        self._run_file = run_file
        self._report = report
        self._site = LocalSite(layout.home, layout.nodes, layout.security)
        self._broker = MosquittoProcess(
            layout.home / "broker", port=layout.port, access=self._site.access, secure=self._site.secure
        )
        #: children of this process from before this system: not its orphans
        self._before = frozenset(processes.children())
        self._gm: Child | None = None
        self._lcs: list[Child] = []
        self._page = ""
        #: gets the error if a child cannot start; None except while the system starts
        self._start_failure: asyncio.Future[None] | None = None
        self._stopping = asyncio.Event()

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Start all processes, report their addresses, wait for ``stop``, and stop all; ``hurry`` ends the waits.

        Raises HalimedeError if a process cannot start, or if not all are up within ``UP_TIMEOUT``.
        """
        with usable(self._site.folder):
            await asyncio.to_thread(self._site.make)
        await self._broker.start()
        try:
            if count := await processes.end_strays(self._layout.home, self._layout.nodes, ORPHAN_STOP, hurry):
                self._report(f"ended {count} processes of nodes that are no longer in --nodes")
            with first_error():
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._keep_broker(), name="broker")
                    self._make_children()
                    for child in self._all():
                        group.create_task(child.run(), name=child.name)
                    group.create_task(self._run_until_stop(stop, hurry), name="live")
                    group.create_task(self._rotate_logs(), name="logs")
        finally:
            self._stopping.set()
            await self._broker.stop()
            self._site.forget_clients()  # options files of Mosquitto's tools

    def reap(self) -> None:
        """Reap workers that have ended without an LC. Called at each SIGCHLD."""
        processes.reap_orphans(self._own_pids())

    async def _run_until_stop(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Wait until all are up, publish the addresses, and stop all once ``stop`` is set or the start has failed.

        The addresses go to the run file, to the options of Mosquitto's tools, and to the user.
        """
        try:
            came_up = asyncio.ensure_future(self._wait_up())
            stopped = asyncio.ensure_future(stop.wait())
            await asyncio.wait([came_up, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not came_up.done():
                came_up.cancel()
                await asyncio.wait([came_up])
            else:
                came_up.result()
                with usable(self._site.clients):
                    self._site.write_clients(HOST, self._broker.port)
                self._run_file.write(self._broker.url, list(self._layout.nodes), self._site.operator)
                self._report(self._summary_text())
            await stopped
        finally:
            stopped.cancel()
            await self._stop(hurry)

    async def _stop(self, hurry: asyncio.Event) -> None:
        """Stop LCs with their workers, then workers without an LC, then GM, then the broker."""
        self._stopping.set()
        self._report("stopping: workers and local controllers, the global manager, the broker (Ctrl-C again: at once)")
        reporter = asyncio.create_task(self._report_remaining(), name="waiting")
        try:
            await asyncio.gather(*(lc.stop(LC_STOP, hurry) for lc in self._lcs))
        finally:
            reporter.cancel()
        # orphans: children that an ended LC left to this process; strays: other workers of this home
        await processes.end_orphans(self._own_pids, ORPHAN_STOP, hurry)
        await processes.end_strays(self._layout.home, (), ORPHAN_STOP, hurry)
        if self._gm:
            await self._gm.stop(GM_STOP, hurry)
        await self._broker.stop()
        self._report("stopped: all processes have ended")

    async def _report_remaining(self) -> None:
        """Report periodically which LCs still run, until cancelled."""
        while True:
            await asyncio.sleep(REMAINING_REPORT_S)
            names = ", ".join(lc.name for lc in self._lcs if lc.pid)
            self._report(f"waiting for {names}: workers answer what they accepted (Ctrl-C again ends them now)")

    async def _rotate_logs(self) -> None:
        """Rotate logs of the broker, GM and LCs that are too large, until the stop."""
        while not await self._is_stopped_within(LOG_CHECK_S):
            for log in (self._broker.log, *(child.log for child in self._all())):
                with contextlib.suppress(OSError):
                    if log.stat().st_size > MAX_LOG:
                        rotate(log)

    def _make_children(self) -> None:
        """Make the children for GM and the LCs, not started yet. Raises HalimedeError if logs cannot be written."""
        home, url = self._layout.home, self._broker.url
        logs = home / "logs"
        with usable(logs):  # check now, not when the first service starts
            logs.mkdir(parents=True, exist_ok=True)
        # each system on one machine prefers another port
        page = (PAGE_PORT + self._broker.port - DEFAULT_PORT) % 65_536
        arguments = ["--store", str(home / "gm"), "--broker", url, *_credentials(self._site.gm)]
        arguments += ["--http", f"{HOST}:{page}", "--http-or-any"]
        self._gm = Child("gm", programs.command("gm", *arguments), logs / "gm.log", self._report_end)
        for node in self._layout.nodes:
            arguments = ["--node", node, "--home", str(home), "--broker", url, *_credentials(self._site.node(node))]
            arguments += ["--http", f"{HOST}:0", "--fetch-allow", self._layout.fetch_allow]
            for key, value in labels_of(node).items():
                arguments += ["--label", f"{key}={value}"]
            command = programs.command("lc", *arguments)
            self._lcs.append(Child(f"lc {node}", command, logs / f"lc-{node}.log", self._report_end))

    def _report_end(self, child: Child, exit_: Exit) -> None:
        """Report the end of a child. While the system starts, give up if a restart cannot help."""
        self._report(str(exit_))
        is_hopeless = exit_.code == USER_ERROR or child.restarts >= START_ATTEMPTS
        if is_hopeless and self._start_failure and not self._start_failure.done():
            reason = child.log_tail() or "its log is empty"
            self._start_failure.set_exception(HalimedeError(f"{child.name} does not start: {reason} (see {child.log})"))

    async def _keep_broker(self) -> None:
        """Restart the broker on its port when it dies, and repeat that until it starts; returns at the stop.

        Meanwhile edge workers answer without it. The new broker is empty: all clients publish their state again.
        """
        loop = asyncio.get_running_loop()
        backoff = Backoff(BROKER_PAUSE, BROKER_LONGEST_PAUSE)
        while not self._stopping.is_set():
            started = loop.time()
            await self._broker.wait()
            if loop.time() - started > BROKER_GOOD_RUN:
                backoff.reset()
            message = "the broker ended; restarting it"
            while True:
                # if the whole process group was signalled, this process's own stop comes first
                if await self._is_stopped_within(backoff.fail()):
                    return
                self._report(message)
                try:
                    await self._broker.restart()
                    break
                except (HalimedeError, OSError) as error:
                    message = f"the broker did not start ({error}); retrying"

    async def _is_stopped_within(self, seconds: float) -> bool:
        """Wait for the stop, at most so long; return whether it has begun."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()

    async def _wait_up(self) -> None:
        """Wait until GM and all nodes are online. Raises HalimedeError with the missing ones after ``UP_TIMEOUT``."""
        self._start_failure = asyncio.get_running_loop().create_future()
        waiter = ReadinessWaiter(self._layout.nodes)
        settings = MqttSettings.from_url(self._broker.url, credentials=self._site.operator)
        async with MqttBus(f"system-{os.getpid()}", settings) as bus:
            await bus.subscribe(topics.GM_PRESENCE.filter(), waiter.gm)
            await bus.subscribe(topics.PRESENCE.filter(), waiter.node)
            complete = asyncio.ensure_future(waiter.complete.wait())
            either: list[asyncio.Future[Any]] = [complete, self._start_failure]
            try:
                await asyncio.wait(either, timeout=UP_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
                if self._start_failure.done():
                    self._start_failure.result()
            finally:
                complete.cancel()
                self._start_failure = None
        self._page = waiter.page
        if waiter.missing:
            logs = self._layout.home / "logs"
            raise HalimedeError(f"not up after {UP_TIMEOUT:g} s: {', '.join(sorted(waiter.missing))} (see {logs})")

    def _all(self) -> list[Child]:
        """Return GM and the LCs."""
        return [*([self._gm] if self._gm else []), *self._lcs]

    def _own_pids(self) -> set[int | None]:
        """Return the pids that are no orphans: broker, GM, LCs, and what ran before (None: one does not run)."""
        return {self._broker.pid, *(child.pid for child in self._all()), *self._before}

    def _summary_text(self) -> str:
        """Return the text for the user when the system is up: addresses, files and next commands, one a line."""
        home = self._layout.home
        rows = [
            ("broker", f"{self._broker.url} ({self._site.security.description})"),
            ("page", f"{self._page} (also health, metrics and Prometheus' /targets)"),
            ("nodes", ", ".join(self._layout.nodes)),
            *rows_of_earlier_nodes(home, self._layout.nodes),
            (
                "status",
                f"XDG_CONFIG_HOME={shlex.quote(str(self._site.clients))} mosquitto_sub -t '+/sedna/status/#' -v",
            ),
            ("run file", str(self._run_file.path)),
            ("logs", str(home / "logs")),
            *rows_of_example(home),
            ("stop", "Ctrl-C"),
        ]
        return "halimede is up\n" + "\n".join(f"  {name:<9} {value}" for name, value in rows)


def rows_of_earlier_nodes(home: Path, nodes: Collection[str]) -> list[tuple[str, str]]:
    """Return a row (name, text) for each node of an earlier run in this folder: how to make GM forget it."""
    names = sorted(path.name for path in (home / "nodes").glob("*/") if path.name not in nodes)
    return [("earlier", f"{name} does not run now; to forget it: halimede delete node {name}") for name in names]


def rows_of_example(home: Path) -> list[tuple[str, str]]:
    """Return rows (name, command) to run the example in another terminal. Only the default home is known there.

    In a checkout the example's files are there; an installed wheel writes them first.
    """
    folder, first = (
        ("examples/digits", "make train") if programs.CHECKOUT else ("digits", "halimede demo --files digits")
    )
    applied, published = f"halimede apply -f {folder} --wait", f"halimede publish {folder}/pictures --camera cam0"
    is_default = home == Path(home_folder.DEFAULT_HOME).expanduser()
    exported = [] if is_default else [f"export HALIMEDE_HOME={shlex.quote(str(home))}"]
    return [("" if i else "try", command) for i, command in enumerate([*exported, first, applied, published])]


def _credentials(folder: Path | None) -> list[str]:
    """Return the option ``--credentials``; with None an empty value, which overrides the caller's environment."""
    return ["--credentials", str(folder or "")]
