"""Leader election (``LeaderElection``): one GM at a time leads, by an object of the API server, the Lease.

A candidate is a GM that does not lead. It reads the Lease again and again, and takes it when the holder has released it
or has not renewed it for too long by the candidate's own clock. The leader runs its work and renews the Lease. It gives
up by itself when it could not renew for a shorter time than a candidate waits. ``decide`` is pure: it returns what to
do about a Lease. The epoch is the number of a leadership: nodes follow the highest one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog

from halimede.errors import HalimedeError
from services.gm.cluster.kubernetes.api_paths import LEASES, MANAGER, ApiResource, Object
from services.gm.cluster.kubernetes.client import AlreadyExistsError, KubernetesApiError, NotFoundError, StaleError

log = structlog.get_logger()
#: seconds: a leader gives up after this time without a renewal; between two reads or renewals
GIVE_UP, RETRY = 6.0, 1.5
#: most seconds for one call to the API server, for the release of the Lease, and for the leader's work to end
CALL, RELEASE, STOP = 2.5, 2.0, 15.0
#: the highest epoch that GM raises further: the Lease has it as an int32 (leaseTransitions)
MAX_EPOCH = 2**31 - 2
#: seconds after which a Lease that does not change may be taken
DURATION = 9.0
#: the longest such time that is accepted from a Lease
MAX_DURATION = 60.0


class NotLeadingError(HalimedeError):
    """Another GM may lead now, so this GM has written nothing."""

    def __init__(self) -> None:
        super().__init__("this global manager is no longer the leader: writes are refused")


class Leadership(Protocol):
    """The part of ``LeaderElection`` that other modules use."""

    @property
    def leading(self) -> bool:
        """Whether no other GM can be leading now."""


def check_leading(leadership: Leadership) -> None:
    """Raise NotLeadingError if another GM may lead: a leader must not act from that moment on."""
    if not leadership.leading:
        raise NotLeadingError


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease as it was last read.

    Attributes:
        holder: identity of the leader; empty: nobody holds it.
        epoch: number of the leadership (``leaseTransitions``). Each start of one raises it, also by the same GM after a
            restart, so that nodes can recognize an outdated leader.
        duration_s: seconds after which it may be taken if it does not change.
        renewed: the holder's time of the last renewal, as text: it only distinguishes renewals.
        version: resource version of the object.
        uid: of the object.

    """

    holder: str
    epoch: int
    duration_s: float
    renewed: str
    version: str
    uid: str

    @classmethod
    def of(cls, lease: Object) -> LeaseRecord:
        """Return the record of a Lease, as the API has it; missing fields count as empty."""
        spec, metadata = lease.get("spec") or {}, lease.get("metadata") or {}
        return cls(
            holder=spec.get("holderIdentity") or "",
            epoch=int(spec.get("leaseTransitions") or 0),
            duration_s=min(float(spec.get("leaseDurationSeconds") or DURATION), MAX_DURATION),
            renewed=str(spec.get("renewTime") or ""),
            version=metadata.get("resourceVersion", ""),
            uid=metadata.get("uid", ""),
        )

    @property
    def sign(self) -> tuple[str, int, str]:
        """The fields that change while the holder is alive."""
        return self.holder, self.epoch, self.renewed


@dataclass(frozen=True, slots=True)
class Take:
    """Take the Lease, and begin to lead in this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the Lease, and continue to lead."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing now: another GM leads, or did until recently."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Stop to lead: the Lease is not held any more, for a reason."""

    why: str


#: what to do about the Lease
Decision = Take | Renew | Wait | Lost


def decide(identity: str, record: LeaseRecord | None, mine: int | None, silent_s: float, highest: int = 0) -> Decision:
    """Return what to do about the Lease.

    ``identity``: this GM's. ``record``: None: there is no Lease. ``mine``: the epoch in which this GM leads; None: it
    does not. ``silent_s``: seconds for which the record has not changed. ``highest``: the highest epoch ever read.
    """
    if mine is not None:
        if record is None:
            return Lost("the Lease was deleted")
        if record.holder != identity:
            return Lost(f"{record.holder or 'no one'} holds the Lease")
        return Renew() if record.epoch == mine else Lost("another process with the same identity has the Lease")
    if record is None:
        return Take(highest + 1)
    if record.holder in {"", identity} or silent_s >= record.duration_s:
        return Take(max(record.epoch, highest) + 1)
    return Wait()


class LeadershipLostError(HalimedeError):
    """Another GM leads, or may lead soon: all work of this GM as the leader has been stopped."""


class Leases(Protocol):
    """The methods of ``KubernetesClient`` that the elector uses. All raise KubernetesApiError.

    ``timeout_s``: the deadline of a call; None: that of the client.
    """

    async def get(self, api: ApiResource, namespace: str, name: str, *, timeout_s: float | None = None) -> Object:
        """Return an object. Raises NotFoundError."""

    async def create(self, api: ApiResource, namespace: str, body: Object, *, timeout_s: float | None = None) -> Object:
        """Create an object and return it. Raises AlreadyExistsError."""

    async def patch(
        self, api: ApiResource, namespace: str, name: str, body: Object, *, timeout_s: float | None = None
    ) -> Object:
        """Merge ``body`` into an object and return it. Raises NotFoundError, StaleError."""


class LeaderElection:
    """A ``Leadership`` by a Lease: ``lead`` waits for it and runs work as the leader.

    ``namespace`` and ``name``: of the Lease. ``identity``: this process's name in it, such as that of its pod.
    ``duration_s``: seconds after which others may take the Lease. ``give_up_s``: seconds without a renewal after which
    this GM stops to lead. ``retry_s``: seconds between two reads or renewals.
    """

    def __init__(
        self,
        client: Leases,
        namespace: str,
        identity: str,
        *,
        name: str = MANAGER,
        duration_s: float = DURATION,
        give_up_s: float = GIVE_UP,
        retry_s: float = RETRY,
    ) -> None:
        self._client = client
        self.namespace = namespace
        self.identity = identity
        self.name = name
        self._duration_s = duration_s
        self._give_up_s = give_up_s
        self._retry_s = retry_s
        #: the epoch in which this GM leads; None: it does not
        self._mine: int | None = None
        #: the Lease as last read, and when its record changed last, by the event loop's time
        self._record: LeaseRecord | None = None
        self._changed_at = 0.0
        #: the highest epoch ever read
        self._highest = 0
        #: the event loop's time until which no other GM can lead
        self._deadline = 0.0
        #: why this GM cannot try to lead; empty: it leads, another GM does, or there is no problem
        self.trouble = ""
        self._troubled_at = 0.0
        self._writing = asyncio.Lock()

    @property
    def epoch(self) -> int:
        """The epoch in which this GM leads; if it does not lead, the highest one that it has read."""
        return self._highest if self._mine is None else self._mine

    @property
    def uid(self) -> str:
        """The uid of the Lease; empty: it was not read yet."""
        return self._record.uid if self._record else ""

    @property
    def leading(self) -> bool:
        """Whether no other GM can be leading now."""
        return self._mine is not None and asyncio.get_running_loop().time() < self._deadline

    @property
    def troubled_s(self) -> float:
        """Seconds for which this GM has not been able to try to lead; 0: it is able to."""
        return asyncio.get_running_loop().time() - self._troubled_at if self.trouble else 0.0

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait until this GM leads, however long that takes, then run ``work`` to its end, and release the Lease.

        When leadership is lost, ``work`` is cancelled and LeadershipLostError raised: call again to be a candidate
        again. When this call is cancelled, ``work`` ends first, still as the leader; then the Lease is released, unless
        ``work`` has not ended within ``STOP`` seconds. An error of ``work`` is raised.
        """
        await self._begin()
        working = asyncio.ensure_future(work())
        keeping = asyncio.create_task(self._keep(), name="lease")
        try:
            await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = await _stop(working)
            await _stop(keeping)
            if ended:
                await self._release()
        if keeping.done() and not keeping.cancelled():
            raise LeadershipLostError(f"no longer the leader: {keeping.result()}")
        await working

    async def overtake(self, epoch: int) -> bool:
        """Raise this GM's epoch above ``epoch`` if the Lease confirms that it leads; return whether it is above now.

        A node with a higher epoch follows a newer leader, unless the Lease shows that there is none.
        """
        if epoch >= MAX_EPOCH:
            return False
        async with self._writing:
            if self._mine is None or not self.leading:
                return False
            if epoch < self._mine:
                return True
            try:
                lost = await self._write_epoch(self._mine, epoch + 1)
            except KubernetesApiError as error:  # the next renewal finds out whether leadership was lost
                lost = str(error)
            else:
                self._deadline = 0.0 if lost else self._deadline
        if lost:
            log.warning("epoch not increased", epoch=epoch, why=lost)
        return not lost

    # --- beginning, going on, ending --------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Try to take the Lease until that succeeds."""
        logged = ""
        while True:
            try:
                began, trouble = await self._try_to_begin(), ""
                why = f"{self._record.holder} leads" if self._record else ""
            except (StaleError, AlreadyExistsError):
                began, trouble, why = False, "", "another candidate was faster"
            except KubernetesApiError as error:
                began, trouble, why = False, str(error), str(error)
            if trouble and not self.trouble:
                self._troubled_at = asyncio.get_running_loop().time()
            self.trouble = trouble
            if began:
                log.info("leadership acquired", lease=self.name, identity=self.identity, epoch=self.epoch)
                return
            if why != logged:
                write = log.warning if trouble else log.info
                write("leadership not acquired", lease=self.name, identity=self.identity, why=why)
                logged = why
            await asyncio.sleep(self._retry_s * random.uniform(0.8, 1.2))  # noqa: S311

    async def _try_to_begin(self) -> bool:
        """Read the Lease, and take it if that is allowed; return whether this GM leads. Raises KubernetesApiError."""
        record = await self._read_lease()
        silent_s = asyncio.get_running_loop().time() - self._changed_at
        decision = decide(self.identity, record, None, silent_s, self._highest)
        if not isinstance(decision, Take):
            return False
        if decision.epoch > MAX_EPOCH + 1:
            raise KubernetesApiError(
                f"Lease {self.namespace}/{self.name}", 0, "leaseTransitions is at its maximum: delete the Lease"
            )
        await self._write(record, decision.epoch)
        return True

    async def _keep(self) -> str:
        """Renew the Lease until that fails for too long; return why leadership is lost."""
        why, lost = "the Lease could not be renewed in time", ""
        try:
            async with asyncio.timeout_at(self._deadline) as deadline:
                while self._mine is not None and not lost:
                    await asyncio.sleep(self._retry_s)
                    try:
                        async with self._writing:
                            lost = await self._write_epoch(self._mine, self._mine)
                    except KubernetesApiError as error:
                        why = f"the Lease could not be renewed in time: {error}"
                        log.warning("lease not renewed", error=str(error))
                    else:
                        deadline.reschedule(self._deadline)
        except TimeoutError:
            lost = why
        self._mine = None
        return lost

    async def _write_epoch(self, mine: int, epoch: int) -> str:
        """Write the Lease with an epoch (``mine``: that until now); return why leadership is lost, empty: it is not.

        Raises KubernetesApiError.
        """
        try:
            await self._write(self._record, epoch)
        except (StaleError, NotFoundError):
            # the Lease was changed in between: perhaps by an own earlier attempt, or by a user who edits labels
            decision = decide(self.identity, await self._read_lease(), mine, 0.0, self._highest)
            if isinstance(decision, Lost):
                return decision.why
            await self._write(self._record, epoch)
        return ""

    async def _release(self) -> None:
        """Release the Lease if this GM still leads, so that another one need not wait. The epoch stays in it."""
        if not self.leading or self._record is None or self._mine is None:
            self._mine = None
            return
        record, mine, self._mine = self._record, self._mine, None
        with contextlib.suppress(KubernetesApiError):
            try:
                await self._empty(record)
            except StaleError:
                # the renewal that the stop interrupted may have been written: then the Lease is still ours
                now = await self._read_lease()
                if now is None or not isinstance(decide(self.identity, now, mine, 0.0), Renew):
                    return
                await self._empty(now)
            log.info("leadership released", lease=self.name, identity=self.identity)

    async def _empty(self, record: LeaseRecord) -> None:
        """Write into the Lease that nobody holds it. Raises StaleError if it was changed since ``record``."""
        body = self._body(record, self._highest)
        body["spec"]["holderIdentity"] = ""
        self._observe(await self._client.patch(LEASES, self.namespace, self.name, body, timeout_s=RELEASE))

    # --- the Lease itself -------------------------------------------------------------------------------------

    async def _read_lease(self) -> LeaseRecord | None:
        """Read the Lease; None: there is none. Raises KubernetesApiError."""
        try:
            self._observe(await self._client.get(LEASES, self.namespace, self.name, timeout_s=CALL))
        except NotFoundError:
            self._record = None
        return self._record

    def _observe(self, lease: Object) -> None:
        """Record a Lease as it was read or written."""
        record = LeaseRecord.of(lease)
        if self._record is None or record.sign != self._record.sign or record.uid != self._record.uid:
            self._changed_at = asyncio.get_running_loop().time()
        self._record = record
        self._highest = max(self._highest, record.epoch)

    async def _write(self, record: LeaseRecord | None, epoch: int) -> None:
        """Take or renew the Lease in an epoch. Raises StaleError or AlreadyExistsError if it was changed meanwhile."""
        began = asyncio.get_running_loop().time()
        body = self._body(record, epoch)
        if record is None:
            body |= {"apiVersion": LEASES.version, "kind": LEASES.kind}
            body["metadata"] = {"name": self.name, "namespace": self.namespace}
            lease = await self._client.create(LEASES, self.namespace, body, timeout_s=CALL)
        else:
            lease = await self._client.patch(LEASES, self.namespace, self.name, body, timeout_s=CALL)
        self._observe(lease)
        self._mine = epoch
        # counted from before the call: candidates count from when they read the record, which is later
        self._deadline = began + self._give_up_s

    def _body(self, record: LeaseRecord | None, epoch: int) -> dict[str, Any]:
        """Return what to write into the Lease, if it is still as in ``record``."""
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": round(self._duration_s),
            "leaseTransitions": epoch,
            "renewTime": now,
        }
        if record is None or epoch != record.epoch or self._mine is None:
            spec["acquireTime"] = now
        metadata = {"resourceVersion": record.version, "uid": record.uid} if record else {}
        return {"metadata": metadata, "spec": spec}


async def _stop(task: asyncio.Future[Any]) -> bool:
    """Cancel a task and wait at most ``STOP`` seconds until it has ended; return whether it has."""
    if task.done():
        return True
    task.cancel()
    await asyncio.wait({task}, timeout=STOP)
    if not task.done():
        log.error("task not stopped", task=str(task))
    elif not task.cancelled() and (error := task.exception()):
        log.error("task failed at stop", task=str(task), error=str(error))
    return task.done()
