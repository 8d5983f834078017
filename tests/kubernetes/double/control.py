"""What a test may do to the server behind its clients' backs: read its log, make it fail, hang, forget or go away."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.kubernetes.double.access import Access, Refusal

if TYPE_CHECKING:
    from tests.kubernetes.double.server import Double

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
LOG = 200_000


@dataclass(kw_only=True)
class Request:
    """One request as the server understood it; ``code`` is 0 until it was answered (watches: when they began)."""

    verb: str
    method: str
    path: str
    user: str
    query: dict[str, str]
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    agent: str = ""
    at: float = field(default_factory=time.monotonic)
    code: int = 0

    @property
    def writes(self) -> bool:
        return self.verb in WRITES


Matches = Callable[[Request], bool]
#: None: go on as if nothing was; an int: answer with that code; "drop": close the connection; "lose": after it is done;
#: "hang": hold the connection
Outcome = int | str | None


@dataclass(kw_only=True)
class Fault:
    """What happens to the next requests of a kind."""

    outcome: Outcome
    matches: Matches
    left: int
    retry_after: int | None = None
    #: how often it struck
    struck: int = 0

    def end(self) -> None:
        self.left = 0


class Control:
    """The other side of the server."""

    def __init__(self, double: Double) -> None:
        self._double = double
        self._faults: list[Fault] = []
        self.log: deque[Request] = deque(maxlen=LOG)

    @property
    def access(self) -> Access:
        return self._double.access

    @property
    def forbidden(self) -> list[Refusal]:
        return self._double.access.forbidden

    def writes(self, resource: str | None = None, *, since: float = 0.0) -> list[Request]:
        """Return the requests for changes (of one plural), whatever the answer was."""
        return [r for r in self.log if r.writes and r.at >= since and resource in {None, r.resource}]

    def fail(
        self, code: int, *, times: int = 1, matches: Matches = lambda _: True, retry_after: int | None = None
    ) -> Fault:
        """Answer the next requests with a code: 409, 410, 429, 500, 503, 504."""
        return self._add(Fault(outcome=code, matches=matches, left=times, retry_after=retry_after))

    def drop(self, *, times: int = 1, matches: Matches = lambda _: True) -> Fault:
        """Close the connection of the next requests instead of answering; nothing is done."""
        return self._add(Fault(outcome="drop", matches=matches, left=times))

    def lose(self, *, times: int = 1, matches: Matches = lambda _: True) -> Fault:
        """Do what the next requests ask for, but close the connection instead of answering."""
        return self._add(Fault(outcome="lose", matches=matches, left=times))

    def hang(self, *, times: int = 1, matches: Matches = lambda _: True) -> Fault:
        """Never answer the next requests; they hold their connections."""
        return self._add(Fault(outcome="hang", matches=matches, left=times))

    def calm(self) -> None:
        self._faults.clear()

    def _add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    async def meet(self, request: Request) -> tuple[Outcome, Fault | None]:
        """Note a request, and let the first fault that it matches strike."""
        self.log.append(request)
        self._faults = [fault for fault in self._faults if fault.left > 0]
        fault = next((each for each in self._faults if each.matches(request)), None)
        if fault is None:
            return None, None
        fault.left -= 1
        fault.struck += 1
        if fault.outcome == "hang":
            await asyncio.sleep(3600.0)
        return fault.outcome, fault

    def expire(self) -> None:
        """Forget the history of changes: watches and continued lists from before get 410."""
        self._double.store.expire()

    def hasten_bookmarks(self, seconds: float) -> None:
        """Send them so often."""
        self._double.streams.bookmarks = seconds

    def break_watches(self, code: int | None = None) -> int:
        """End all open watches, in silence or with an ERROR event; return how many there were."""
        return self._double.streams.end(code)

    async def stop(self) -> None:
        """Go away: connections break, new ones are refused."""
        await self._double.stop()

    async def start(self) -> None:
        """Come back on the same port with everything that was kept."""
        await self._double.start()
