"""A whole system in one loop with simulated time: its parts, an operator, and what may go wrong with them.

Nothing here knows what is right: that is ``expected.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import tempfile
import time
import types
import uuid
from collections.abc import Callable, Coroutine
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import structlog

import services.gm.cluster.port
import services.gm.cluster.sqlite_file
import services.gm.cluster.store
import services.lc.store
from halimede.bus import Packet
from halimede.bus.memory import MemoryBus
from halimede.cli.client import ApiRefusedError, Client, UnreachableError
from tests.stateful.parts import BEGAN_S, Broker, Gm, Loop, Node, Part

T = TypeVar("T")

NODES = ("edge0", "edge1", "cloud0")
SITES = ("north", "south")
#: in memory where there is such a place: SQLite waits for every write to be on disk
FOLDER = next((path for path in ("/dev/shm",) if Path(path).is_dir()), None)


class World:
    """The parts, and the loop that they run in. ``run`` drives it, ``close`` ends it."""

    def __init__(self, seed: int) -> None:
        self.errors: list[str] = []
        self.loop = Loop()
        self.loop.set_exception_handler(self._unhandled)
        self._log = structlog.get_config()
        structlog.configure(
            processors=[self._logged],
            wrapper_class=structlog.make_filtering_bound_logger("error"),
            logger_factory=structlog.ReturnLoggerFactory(),
        )
        numbers = itertools.count(1)
        services.gm.cluster.store.uuid = types.SimpleNamespace(uuid4=lambda: f"uid-{next(numbers)}")  # type: ignore[assignment, attr-defined]
        clock: Any = types.SimpleNamespace(time=lambda: BEGAN_S + self.loop.time())
        services.gm.cluster.sqlite_file.time = services.lc.store.time = clock  # type: ignore[attr-defined]
        dates: Any = types.SimpleNamespace(now=lambda zone: datetime.fromtimestamp(clock.time(), zone))
        services.gm.cluster.port.datetime = dates  # type: ignore[attr-defined]
        self.folder = Path(tempfile.mkdtemp(prefix="halimede-", dir=FOLDER))
        self.run(self._build(seed))

    async def _build(self, seed: int) -> None:
        self.broker = Broker(seed)
        self.chance = random.Random(seed)
        self.nodes = {name: Node(name, self.broker, self.folder, SITES[i % len(SITES)]) for i, name in enumerate(NODES)}
        self.gm = Gm(self.broker, self.folder / "gm" / "store.db")
        self.wills: list[Packet] = []
        self.client = Client(MemoryBus("operator", self.broker))
        await self.gm.start()
        for node in self.nodes.values():
            node.start()
        ready = asyncio.Event()
        self._operator = asyncio.create_task(self._operate(ready))
        await ready.wait()

    async def _operate(self, ready: asyncio.Event) -> None:
        async with self.client:
            ready.set()
            await asyncio.Event().wait()

    @property
    def parts(self) -> list[Part]:
        return [self.gm, *self.nodes.values()]

    @property
    def now(self) -> float:
        return self.loop.time()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run until this is done; everything else goes on meanwhile."""
        return self.loop.run_until_complete(work)

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self.run(asyncio.sleep(seconds))

    async def ask(self, call: Callable[[Client], Coroutine[Any, Any, T]]) -> T | ApiRefusedError:
        """Ask GM until there is an answer."""
        for _ in range(50):
            try:
                return await call(self.client)
            except ApiRefusedError as error:
                return error
            except UnreachableError:
                await asyncio.sleep(0.5)
        raise AssertionError("GM does not answer")

    def check(self) -> None:
        """Fail if something was logged as an error, or has ended that should run."""
        assert not self.errors, self.errors
        for part in self.parts:
            if part.task and part.task.done():
                part.task.result()
                raise AssertionError(f"{part.name} has ended")

    def close(self) -> None:
        """End everything that runs, and remove all files."""
        try:
            for task in sorted(asyncio.all_tasks(self.loop), key=hash):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0.01))
            self.run(self.gm.cluster.__aexit__(None, None, None)) if self.gm.running else None
        finally:
            structlog.configure(**self._log)
            services.gm.cluster.store.uuid = uuid  # type: ignore[assignment, attr-defined]
            services.gm.cluster.sqlite_file.time = services.lc.store.time = time  # type: ignore[assignment, attr-defined]
            services.gm.cluster.port.datetime = datetime  # type: ignore[misc, attr-defined]
            self.loop.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _logged(self, _logger: Any, _name: str, event: Any) -> str:
        self.errors.append(str(event))
        raise structlog.DropEvent

    def _unhandled(self, _loop: Any, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")
