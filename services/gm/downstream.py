"""Brings each node to its desired resources: sends them again until it acknowledges, and answers syncs.

The reconciler decides, and calls ``set_desired``, ``keep`` and ``forget``: they set what a node should hold. The node's
reports and syncs list what the node holds. The loop (``queue``) sends the difference to each online node, in the order
in which it was set, and again until the node acknowledges. An offline node receives nothing: its next sync requests
what the node lacks. A report of the same uid and at least that generation acknowledges an insert. A cleared report, a
report of another uid, or a sync without the uid acknowledges a delete.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import structlog

from halimede.api import Resource
from halimede.api.worker_environment import SESSION_KEY_PROPERTY, WITH_SESSIONS, session_mark
from halimede.bus import Bus
from halimede.bus.message import judge
from halimede.bus.ordering import SequenceNumber
from halimede.errors import BusError, HalimedeError, RefusedError, TooLargeError
from halimede.messages import Delete, Held, Synced
from halimede.names import Key
from halimede.system.backoff import exponential
from halimede.topic import Address
from halimede.topics import DELETE, INSERT, SYNCED
from services.gm.workqueue import WorkQueue, has_come

#: seconds that a node has to send its sync after it came online: the answer then has all that it lacks, in order
SYNC_PATIENCE = 2.0
#: nodes that are sent messages at a time: sending does not wait for the broker's answers one by one
AT_ONCE = 64
#: the lowest rate at which GM processes acknowledgements: if many nodes must answer, their answers take longer
ACKNOWLEDGED_PER_SECOND = 500.0
#: resources whose key and version are cached: one reconciliation uses the same few for each node
MOST_CACHED = 256
#: deletes that wait for one node, as many as it may hold resources; its next sync lists what else it holds
MAX_DELETES = 10_000
log = structlog.get_logger()
M = TypeVar("M")
#: the attempts that a refusal by the broker counts as: a repetition hardly helps, but its rules may be corrected
REFUSED = 16
#: seconds between two attempts for a message that is not acknowledged
FIRST_RESEND, LAST_RESEND = 1.0, 30.0
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SentVersion:
    """A uid and a generation of it."""

    uid: str
    generation: int

    @classmethod
    def of(cls, resource: Resource[Any]) -> SentVersion:
        """Return the version of a resource."""
        return cls(resource.metadata.uid, resource.metadata.generation)

    def is_at_least(self, other: SentVersion) -> bool:
        """Whether a node that holds this version does not need ``other``."""
        return self.uid == other.uid and self.generation >= other.generation


@dataclass(slots=True)
class Attempt:
    """The state of a message that is to be sent, for the first time or again."""

    due: float
    count: int = 0

    def schedule_next(self, now: float, patience: float = 0.0) -> None:
        """Schedule the next attempt, each time later; ``patience``: more seconds because many nodes must answer."""
        self.count += 1
        self.due = now + exponential(self.count, FIRST_RESEND + patience, LAST_RESEND)


@dataclass(slots=True, eq=False)
class SyncReply:
    """The answer to one sync: the number of its messages so far, and of the sync's resources that GM lost."""

    unknown: int
    count: int = 0


@dataclass(slots=True)
class NodeState:
    """The state of one node: what the node should hold, what it has reported, and the messages that are being sent."""

    desired: dict[Key, Resource[Any] | None] = field(default_factory=dict)
    reported: dict[Key, SentVersion] = field(default_factory=dict)
    inserts: dict[Key, Attempt] = field(default_factory=dict)
    deletes: dict[tuple[Key, str], tuple[int, Attempt]] = field(default_factory=dict)
    #: services of the last sync with another session key, or without one
    rekeyed: tuple[Key, ...] = ()
    #: the sync that is being answered
    sync: SyncReply | None = None
    #: nothing is sent before this time, unless a sync arrives
    silent_until: float = 0.0


class Downstream:
    """The state of all nodes. ``is_online`` returns whether a node is online; each message has GM's ``epoch``.

    ``session_key`` returns the session key of a service by its uid, empty if its node does not need it.
    """

    def __init__(
        self, bus: Bus, epoch: int, is_online: Callable[[str], bool], session_key: Callable[[str], str] = lambda _: ""
    ) -> None:
        self.sender = DownstreamSender(bus, epoch)
        self._bus = bus
        self._is_online = is_online
        self._session_key = session_key
        #: inserts and deletes that nodes have acknowledged
        self.acknowledgements = 0
        self._states: defaultdict[str, NodeState] = defaultdict(NodeState)
        self._cached: dict[int, tuple[Resource[Any], Key, SentVersion]] = {}
        self._holders: defaultdict[Key, set[str]] = defaultdict(set)
        #: the nodes that should hold a resource: a node may not hold the resource yet
        self._desiring: defaultdict[Key, set[str]] = defaultdict(set)
        #: online nodes that have not acknowledged an insert yet
        self._awaited: dict[Key, set[str]] = {}
        self.queue: WorkQueue[str] = WorkQueue("downstream", self._serve, workers=AT_ONCE)

    # --- what nodes should hold -------------------------------------------------------------------------------

    def set_desired(self, node: str, resource: Resource[Any]) -> None:
        """Set that the node shall hold this generation."""
        state = self._states[node]
        _, key, version = self._identity(resource)
        previous, reported = state.desired.get(key), state.reported.get(key)
        if previous is resource and (key in state.inserts or (reported and reported.is_at_least(version))):
            return  # each reconciliation sets it again, for each node
        state.desired[key] = resource
        self._desiring[key].add(node)
        state.deletes.pop((key, version.uid), None)
        if reported and reported.is_at_least(version):
            self._settle(node, state, key)
        elif key not in state.inserts or previous is None or SentVersion.of(previous) != version:
            self._insert(node, state, key)

    def keep(self, node: str, key: Key, uid: str) -> None:
        """Set that the node shall keep what it holds of this uid: nothing is sent, nothing deleted."""
        state = self._states[node]
        state.desired[key] = None
        self._desiring[key].add(node)
        self._settle(node, state, key)
        state.deletes.pop((key, uid), None)

    def repeat(self, key: Key) -> None:
        """Send a resource again to the nodes that hold it: they check at once whether its files have changed."""
        for node in self.reported_versions(key):
            state = self._states[node]
            if state.desired.get(key) is not None and key not in state.inserts:
                self._insert(node, state, key)

    def forget(self, node: str, key: Key, uid: str, generation: int) -> None:
        """Set that the node shall not hold this uid. ``generation`` is the highest that it must not accept again."""
        state = self._states[node]
        desired = state.desired.get(key)
        if desired is None or desired.metadata.uid == uid:
            state.desired.pop(key, None)
            self._settle(node, state, key)
        reported = state.reported.get(key)
        if reported and reported.uid != uid:
            return  # a resource with another uid has replaced it
        _, attempt = state.deletes.get((key, uid), (0, Attempt(_now())))
        if len(state.deletes) >= MAX_DELETES and (key, uid) not in state.deletes:
            del state.deletes[next(iter(state.deletes))]
        state.deletes[key, uid] = (generation, attempt)
        self.queue.add(node)

    def holders(self, key: Key) -> frozenset[str]:
        """Return the nodes that may hold a resource: it was sent to them, or they reported it."""
        return frozenset(self._holders.get(key, ()))

    def may_hold(self, key: Key, node: str) -> bool:
        """Whether one node may hold a resource."""
        return node in self._holders.get(key, ())

    def reported_versions(self, key: Key) -> dict[str, SentVersion]:
        """Return the versions of a resource that nodes have reported."""
        states = ((node, self._states[node]) for node in self.holders(key))
        return {node: state.reported[key] for node, state in states if key in state.reported}

    def surplus_versions(self, node: str) -> dict[Key, SentVersion]:
        """Return what a node has reported to hold, should not hold, and was sent no delete for."""
        state = self._states[node]
        deleted = {key for key, _ in state.deletes}
        return {key: v for key, v in state.reported.items() if key not in state.desired and key not in deleted}

    def keys(self, node: str) -> set[Key]:
        """Return the keys that a node holds or should hold."""
        state = self._states[node]
        return {*state.desired, *state.reported, *(key for key, _ in state.deletes)}

    def withdraw(self, key: Key) -> None:
        """Stop sending the resource to any node, also to nodes that were never sent it."""
        for node in self._desiring.pop(key, set()):
            state = self._states[node]
            state.desired.pop(key, None)
            self._settle(node, state, key)

    def drop(self, key: Key, uid: str) -> None:
        """Drop a deleted resource: offline nodes learn of it by their sync."""
        self.withdraw(key)
        for node in self._holders.pop(key, set()):
            state = self._states[node]
            state.reported.pop(key, None)
            state.deletes.pop((key, uid), None)

    def remove(self, node: str) -> set[Key]:
        """Drop a node that a user removed; return what it held or should hold."""
        keys = self.keys(node)
        for key in keys:
            self._holders.get(key, set()).discard(node)
            self._desiring.get(key, set()).discard(node)
            self._stop_awaiting(node, key)
        del self._states[node]
        return keys

    # --- what nodes hold --------------------------------------------------------------------------------------

    def acknowledge(self, node: str, key: Key, uid: str, generation: int) -> bool:
        """Record that the node holds this; return whether no online node still has to acknowledge it."""
        state, version = self._states[node], SentVersion(uid, generation)
        state.reported[key] = version
        self._holders[key].add(node)
        desired, is_last = state.desired.get(key), False
        if key in state.inserts and desired and version.is_at_least(SentVersion.of(desired)):
            is_last = self._settle(node, state, key)
            self.acknowledgements += 1
        for delete in [d for d in state.deletes if d[0] == key and d[1] != uid]:
            del state.deletes[delete]
            self.acknowledgements += 1
        return is_last

    def clear_reported(self, node: str, key: Key) -> None:
        """Record that the node holds nothing of that name."""
        state = self._states[node]
        state.reported.pop(key, None)
        for delete in [d for d in state.deletes if d[0] == key]:
            del state.deletes[delete]
            self.acknowledgements += 1
        self._holders.get(key, set()).discard(node)
        desired = state.desired.get(key)
        if desired is not None and key not in state.inserts:
            self._insert(node, state, key)

    def replace_reported(self, node: str, holds: Iterable[Held]) -> set[Key]:
        """Replace what the node holds by its sync: messages on their way are dropped, and sent again if needed.

        The caller sets the desired resources again, then calls ``answer``. Returns the keys that the node held, or that
        were being sent, until now.
        """
        state = self._states[node]
        before = self.keys(node)
        for key in before:
            self._holders.get(key, set()).discard(node)
        reported = {(key, version.uid): version.generation for key, version in state.reported.items()}
        state.reported, rekeyed = {}, []
        for h in holds:
            key = Key(h.plural, h.namespace, h.name)
            # a node that lost its store knows no generation, but its retained report has one
            state.reported[key] = SentVersion(h.uid, h.generation or reported.get((key, h.uid), 0))
            if self._is_rekeyed(h):
                rekeyed.append(key)
        state.rekeyed = tuple(rekeyed)
        for key in list(state.inserts):
            self._settle(node, state, key)
        state.deletes.clear()
        for key in state.reported:
            self._holders[key].add(node)
        return before

    def answer(self, node: str, unknown: int) -> None:
        """Finish the answer to a sync: ``synced`` is sent after all messages that are due now."""
        state = self._states[node]
        for key in state.rekeyed:
            if key in state.desired and key not in state.inserts:
                self._insert(node, state, key)
        state.rekeyed = ()
        state.sync, state.silent_until = SyncReply(unknown), 0.0
        self.queue.add(node)

    def is_answering(self, node: str) -> bool:
        """Whether the answer to a sync of the node is not complete."""
        return self._states[node].sync is not None

    def connection_changed(self, node: str) -> None:
        """Process that the node came online or went offline; after it came online, it will sync."""
        state = self._states[node]
        state.silent_until = _now() + SYNC_PATIENCE
        for key in state.inserts:  # nobody waits for an offline node; an online one lists in its sync what it holds
            self._stop_awaiting(node, key)
        self.queue.add(node)

    def wake(self) -> None:
        """Send all waiting messages now: the broker is reachable again."""
        for node, state in self._states.items():
            if state.inserts or state.deletes or state.sync:
                self.queue.add(node)

    # --- what is waited for -----------------------------------------------------------------------------------

    def _insert(self, node: str, state: NodeState, key: Key) -> None:
        state.inserts[key] = Attempt(_now())
        if self._is_online(node):
            self._awaited.setdefault(key, set()).add(node)
        self.queue.add(node)

    def _settle(self, node: str, state: NodeState, key: Key) -> bool:
        state.inserts.pop(key, None)
        return self._stop_awaiting(node, key)

    def _stop_awaiting(self, node: str, key: Key) -> bool:
        """Stop waiting for the node; return whether it was the last one."""
        awaited = self._awaited.get(key)
        if awaited is None or node not in awaited:
            return False
        awaited.remove(node)
        if not awaited:
            del self._awaited[key]
        return not awaited

    # --- sending ----------------------------------------------------------------------------------------------

    async def _serve(self, node: str) -> None:
        """Send what is due to one node. Raises BusError without a broker: then the queue calls again."""
        state = self._states[node]
        if not self._is_online(node) or not self._bus.connected:
            return  # its sync, or ``wake``, adds the node to the queue again
        if not has_come(state.silent_until):
            self.queue.add(node, at=state.silent_until)
            return
        for (key, uid), (generation, attempt) in list(state.deletes.items()):
            if has_come(attempt.due) and (key, uid) in state.deletes:
                names = {"node": node, "ns": key.namespace, "plural": key.plural, "name": key.name}
                await self.sender.send(state, attempt, DELETE.at(**names), Delete(uid=uid, generation=generation))
        for key, attempt in list(state.inserts.items()):
            resource = state.desired.get(key)
            # a message that arrived during the sends may have made it unnecessary
            if has_come(attempt.due) and state.inserts.get(key) is attempt and resource is not None:
                self._holders[key].add(node)
                names = {"node": node, "ns": key.namespace, "plural": key.plural, "name": key.name}
                crowd = len(self._awaited.get(key, ()))
                patience, properties = crowd / ACKNOWLEDGED_PER_SECOND, self._properties(key, resource)
                await self.sender.send(
                    state, attempt, INSERT.at(**names), resource.body, patience, properties=properties
                )
        waiting = [a.due for a in state.inserts.values()] + [a.due for _, a in state.deletes.values()]
        first = min(waiting, default=float("inf"))
        # another sync may have arrived meanwhile: its answer is complete only when nothing is due
        if (answer := state.sync) and not has_come(first):
            await self.sender.send_synced(node, answer)
            if state.sync is answer:
                state.sync = None
        if waiting:
            self.queue.add(node, at=first)

    def _is_rekeyed(self, holding: Held) -> bool:
        """Whether a node must be sent the session key of a service that it holds."""
        return holding.session is not None and holding.session != session_mark(self._session_key(holding.uid))

    def _properties(self, key: Key, resource: Resource[Any]) -> Mapping[str, str]:
        """Return the session key of a service: not a part of the resource, which its users read."""
        session_key = self._session_key(resource.metadata.uid) if key.plural in WITH_SESSIONS else ""
        return {SESSION_KEY_PROPERTY: session_key} if session_key else NO_PROPERTIES

    def _identity(self, resource: Resource[Any]) -> tuple[Resource[Any], Key, SentVersion]:
        cached = self._cached.get(id(resource))
        if cached is None or cached[0] is not resource:
            if len(self._cached) >= MOST_CACHED:
                self._cached.clear()
            cached = self._cached[id(resource)] = resource, resource.key, SentVersion.of(resource)
        return cached


class DownstreamSender:
    """Sends messages to nodes, each once. ``epoch`` is the present one for each message.

    If the broker refuses a message, its next attempt is scheduled, and other messages are not delayed.
    """

    def __init__(self, bus: Bus, epoch: int) -> None:
        self.epoch = epoch
        self._bus = bus
        self._number = 0
        #: messages sent, and the repeated ones among them
        self.sent = self.resent = 0

    async def send(
        self,
        state: NodeState,
        attempt: Attempt,
        address: Address[M],
        body: M,
        patience: float = 0.0,
        *,
        properties: Mapping[str, str] = NO_PROPERTIES,
    ) -> None:
        """Send once, without waiting for the broker; only the answer to a sync waits, because its order matters.

        ``patience``: more seconds for the node's answer because many nodes must answer. ``properties``: in addition to
        epoch and number. Raises BusError when the broker is not reachable.
        """
        stamp = {**self._stamp(), **properties}
        try:
            answer = None if state.sync else self._bus.publish_now(address, body, properties=stamp)
            if answer is None:
                await self._bus.publish(address, body, properties=stamp)
        except (RefusedError, TooLargeError) as error:
            self._retry_refused(attempt, address.text, error, patience)
            return
        repeated = attempt.count > 0
        attempt.schedule_next(_now(), patience)
        if answer is None:
            self._count_sent(repeated=repeated)
            if state.sync:
                state.sync.count += 1
        else:
            answer.add_done_callback(partial(self._answer_came, attempt, address.text, patience, repeated=repeated))
            await asyncio.sleep(0)  # the loop sends at the end of each iteration: nodes receive their work sooner

    async def send_synced(self, node: str, reply: SyncReply) -> None:
        """Send ``synced``, the end of a sync's answer. Raises BusError without a broker."""
        body = Synced(epoch=self.epoch, count=reply.count, unknown=reply.unknown)
        await self._bus.publish(SYNCED.at(node=node), body, properties=self._stamp())

    def _answer_came(
        self, attempt: Attempt, topic: str, patience: float, answer: asyncio.Future[int], *, repeated: bool
    ) -> None:
        try:
            judge(topic, answer.result())
        except RefusedError as error:
            self._retry_refused(attempt, topic, error, patience)
        except BusError:
            attempt.due = _now()  # ``Downstream.wake`` tries it again
        else:
            self._count_sent(repeated=repeated)

    def _count_sent(self, *, repeated: bool) -> None:
        self.sent += 1
        self.resent += repeated

    def _retry_refused(self, attempt: Attempt, topic: str, error: HalimedeError, patience: float) -> None:
        """Schedule the next attempt of a message that the broker refused: other messages must not wait for it."""
        log.warning("message not sent", topic=topic, error=str(error))
        attempt.count = REFUSED
        attempt.schedule_next(_now(), patience)

    def _stamp(self) -> dict[str, str]:
        self._number += 1
        return SequenceNumber(self.epoch, self._number).properties


def _now() -> float:
    return asyncio.get_running_loop().time()
