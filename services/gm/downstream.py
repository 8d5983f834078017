"""Brings each node to its desired resources (``Downstream``): repeats messages until it acknowledges, answers syncs.

An insert is the message with a resource that a node shall hold; a delete tells the node to drop one. A resource's life
has a uid, and each version of its spec a generation. A sync is a node's message with the list of all that it holds; GM
answers with the missing inserts and deletes, and then with ``synced``.

The reconciler decides, and calls ``set_desired``, ``keep`` and ``forget``: they set what a node should hold. The node's
reports and syncs say what the node holds. ``queue``, which the caller runs, sends the difference to each online node,
in the order in which it was set, and again until the node acknowledges. An offline node receives nothing: its next sync
shows what it lacks. A report of the same uid and at least that generation acknowledges an insert. A cleared report, a
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
from halimede.api.worker_environment import SESSION_KEY_PROPERTY, WITH_SESSIONS, session_digest
from halimede.bus import Bus
from halimede.bus.message import check_reason
from halimede.bus.ordering import SequenceNumber
from halimede.errors import BusError, HalimedeError, RefusedError, TooLargeError
from halimede.messages import Delete, Held, Synced
from halimede.names import Key
from halimede.system.backoff import exponential
from halimede.topic import Address
from halimede.topics import DELETE, INSERT, SYNCED
from services.gm.workqueue import WorkQueue, has_come

#: seconds after a node came online in which nothing is sent: its sync comes, and the answer has all that it lacks
SYNC_PATIENCE = 2.0
#: nodes that are sent messages at a time: sending does not wait for the broker's answers one by one
AT_ONCE = 64
#: the lowest rate at which GM processes acknowledgements: if many nodes must answer, their answers take longer
ACKNOWLEDGED_PER_SECOND = 500.0
#: resources whose key and version are cached: one reconciliation uses the same few for each node
MOST_CACHED = 256
#: most deletes that wait for one node, as many as it may hold resources. The oldest is dropped for a further one: the
#: next sync shows what the node still holds
MAX_DELETES = 10_000
log = structlog.get_logger()
M = TypeVar("M")
#: seconds between two attempts for a message that is not acknowledged: the first pause, and the longest
FIRST_RESEND, LAST_RESEND = 1.0, 30.0
#: MQTT user properties of a message that has none of its own
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SentVersion:
    """A version of a resource: the uid of its life, and the generation of its spec."""

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
    """A message that is sent until it is acknowledged: when the next attempt is ``due``, and the ``count`` so far.

    Times are those of the event loop.
    """

    due: float
    count: int = 0

    def schedule_next(self, now: float, patience: float = 0.0) -> None:
        """Count an attempt, and schedule the next one after a growing pause.

        ``patience``: seconds to add to the first pause, because many nodes must answer.
        """
        self.count += 1
        self.due = now + exponential(self.count, FIRST_RESEND + patience, LAST_RESEND)


@dataclass(slots=True, eq=False)
class SyncReply:
    """The answer to one sync, as far as it is sent.

    Attributes:
        unknown: number of resources in the sync that GM does not know, because its store was lost.
        count: number of inserts and deletes that were sent.

    """

    unknown: int
    count: int = 0


@dataclass(slots=True)
class NodeState:
    """The state of one node.

    Attributes:
        desired: what the node should hold; None: it keeps the version that it has.
        reported: what it holds, by its reports and its last sync.
        inserts: the inserts that it has not acknowledged.
        deletes: the deletes that it has not acknowledged, by key and uid, each with its generation.
        rekeyed: services of the last sync for which the node has another session key than GM, or none.
        sync: the answer that is being sent; None: no sync waits for an answer.
        silent_until: the event loop's time before which nothing is sent, unless a sync arrives.

    """

    desired: dict[Key, Resource[Any] | None] = field(default_factory=dict)
    reported: dict[Key, SentVersion] = field(default_factory=dict)
    inserts: dict[Key, Attempt] = field(default_factory=dict)
    deletes: dict[tuple[Key, str], tuple[int, Attempt]] = field(default_factory=dict)
    rekeyed: tuple[Key, ...] = ()
    sync: SyncReply | None = None
    silent_until: float = 0.0


class Downstream:
    """The desired and the reported resources of all nodes, and the messages that close their difference.

    Run its ``queue``. ``epoch``: the number of GM's life, in each message. ``is_online``: whether a node, by its name,
    is online. ``session_key``: returns the secret of a service's MQTT sessions by its uid; empty: its workers need
    none.
    """

    def __init__(
        self, bus: Bus, epoch: int, is_online: Callable[[str], bool], session_key: Callable[[str], str] = lambda _: ""
    ) -> None:
        self.sender = DownstreamSender(bus, epoch)
        self._bus = bus
        self._is_online = is_online
        self._session_key = session_key
        #: number of inserts and deletes that nodes have acknowledged
        self.acknowledgements = 0
        self._states: defaultdict[str, NodeState] = defaultdict(NodeState)
        #: resources with their key and version, by ``id``
        self._cached: dict[int, tuple[Resource[Any], Key, SentVersion]] = {}
        #: the nodes that may hold a resource: it was sent to them, or they reported it
        self._holders: defaultdict[Key, set[str]] = defaultdict(set)
        #: the nodes in whose ``desired`` a resource is, or was, whether it was sent to them or not
        self._desiring: defaultdict[Key, set[str]] = defaultdict(set)
        #: by a resource: the online nodes that have not acknowledged its insert yet
        self._awaited: dict[Key, set[str]] = {}
        self.queue: WorkQueue[str] = WorkQueue("downstream", self._serve, workers=AT_ONCE)

    # --- what nodes should hold -------------------------------------------------------------------------------

    def set_desired(self, node: str, resource: Resource[Any]) -> None:
        """Set that a node shall hold this generation of a resource; an insert is sent unless the node has it."""
        state = self._states[node]
        _, key, version = self._identity(resource)
        previous, reported = state.desired.get(key), state.reported.get(key)
        if previous is resource and (key in state.inserts or (reported and reported.is_at_least(version))):
            return  # each reconciliation sets it again, for each node: a repeated insert stays
        state.desired[key] = resource
        self._desiring[key].add(node)
        state.deletes.pop((key, version.uid), None)
        if reported and reported.is_at_least(version):
            self._stop_inserting(node, state, key)
        elif key not in state.inserts or previous is None or SentVersion.of(previous) != version:
            self._insert(node, state, key)

    def keep(self, node: str, key: Key, uid: str) -> None:
        """Set that a node shall keep the generation that it holds of this uid: nothing is sent, nothing deleted."""
        state = self._states[node]
        state.desired[key] = None
        self._desiring[key].add(node)
        self._stop_inserting(node, state, key)
        state.deletes.pop((key, uid), None)

    def repeat(self, key: Key) -> None:
        """Send a resource again to the nodes that hold it, so that they check now whether its files have changed."""
        for node in self.reported_versions(key):
            state = self._states[node]
            if state.desired.get(key) is not None and key not in state.inserts:
                self._insert(node, state, key)

    def forget(self, node: str, key: Key, uid: str, generation: int) -> None:
        """Set that a node shall not hold this uid: a delete is sent, unless the node has reported another uid.

        ``generation``: the node refuses inserts of this uid up to this generation from then on.
        """
        state = self._states[node]
        desired = state.desired.get(key)
        if desired is None or desired.metadata.uid == uid:
            state.desired.pop(key, None)
            self._stop_inserting(node, state, key)
        reported = state.reported.get(key)
        if reported and reported.uid != uid:
            return  # a resource with another uid has replaced it
        pending = state.deletes.get((key, uid))
        if pending is None and len(state.deletes) >= MAX_DELETES:
            del state.deletes[next(iter(state.deletes))]
        state.deletes[key, uid] = generation, pending[1] if pending else Attempt(_now())
        self.queue.add(node)

    def holders(self, key: Key) -> frozenset[str]:
        """Return the nodes that may hold a resource: it was sent to them, or they reported it."""
        return frozenset(self._holders.get(key, ()))

    def may_hold(self, key: Key, node: str) -> bool:
        """Whether a node may hold a resource: it was sent to the node, or the node reported it."""
        return node in self._holders.get(key, ())

    def reported_versions(self, key: Key) -> dict[str, SentVersion]:
        """Return the version of a resource that each node has reported, by the node's name."""
        states = ((node, self._states[node]) for node in self.holders(key))
        return {node: state.reported[key] for node, state in states if key in state.reported}

    def surplus_versions(self, node: str) -> dict[Key, SentVersion]:
        """Return what a node holds by its reports, should not hold, and is not told to delete."""
        state = self._states[node]
        deleted = {key for key, _ in state.deletes}
        return {key: v for key, v in state.reported.items() if key not in state.desired and key not in deleted}

    def keys(self, node: str) -> set[Key]:
        """Return the resources that a node holds, should hold, or is told to delete."""
        state = self._states[node]
        return {*state.desired, *state.reported, *(key for key, _ in state.deletes)}

    def withdraw(self, key: Key) -> None:
        """Set that no node should hold a resource any more; nothing is sent for that."""
        for node in self._desiring.pop(key, set()):
            state = self._states[node]
            state.desired.pop(key, None)
            self._stop_inserting(node, state, key)

    def drop(self, key: Key, uid: str) -> None:
        """Delete GM's record of a resource that left the cluster; nothing is sent.

        A node that still holds it receives a delete in the answer to its next sync.
        """
        self.withdraw(key)
        for node in self._holders.pop(key, set()):
            state = self._states[node]
            state.reported.pop(key, None)
            state.deletes.pop((key, uid), None)

    def remove(self, node: str) -> set[Key]:
        """Delete GM's record of a node that a user removed; return the resources that ``keys`` had for it."""
        keys = self.keys(node)
        for key in keys:
            self._holders.get(key, set()).discard(node)
            self._desiring.get(key, set()).discard(node)
            self._stop_awaiting(node, key)
        del self._states[node]
        return keys

    # --- what nodes hold --------------------------------------------------------------------------------------

    def acknowledge(self, node: str, key: Key, uid: str, generation: int) -> bool:
        """Record that a node holds a version, which acknowledges an insert of it and deletes of other uids.

        Return True if this was the last acknowledgement of the insert that an online node owed.
        """
        state, version = self._states[node], SentVersion(uid, generation)
        state.reported[key] = version
        self._holders[key].add(node)
        desired, is_last = state.desired.get(key), False
        if key in state.inserts and desired and version.is_at_least(SentVersion.of(desired)):
            del state.inserts[key]
            is_last = self._stop_awaiting(node, key)
            self.acknowledgements += 1
        for delete in [d for d in state.deletes if d[0] == key and d[1] != uid]:
            del state.deletes[delete]
            self.acknowledgements += 1
        return is_last

    def clear_reported(self, node: str, key: Key) -> None:
        """Record that a node holds no resource of a key, which acknowledges deletes; a desired one is sent again."""
        state = self._states[node]
        state.reported.pop(key, None)
        for delete in [d for d in state.deletes if d[0] == key]:
            del state.deletes[delete]
            self.acknowledgements += 1
        self._holders.get(key, set()).discard(node)
        if state.desired.get(key) is not None and key not in state.inserts:
            self._insert(node, state, key)

    def replace_reported(self, node: str, holds: Iterable[Held]) -> set[Key]:
        """Replace what a node holds by the list of its sync, and drop all messages that are being sent to it.

        The caller then sets the desired resources again, and calls ``answer``. Return the keys that the node held or
        should hold until now.
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
            self._stop_inserting(node, state, key)
        state.deletes.clear()
        for key in state.reported:
            self._holders[key].add(node)
        return before

    def answer(self, node: str, unknown: int) -> None:
        """Finish the answer to a sync: ``synced`` is sent after all messages that are due now.

        ``unknown``: number of resources in the sync that GM does not know because its store was lost. Services with
        another session key are sent again.
        """
        state = self._states[node]
        for key in state.rekeyed:
            if key in state.desired and key not in state.inserts:
                self._insert(node, state, key)
        state.rekeyed = ()
        state.sync, state.silent_until = SyncReply(unknown), 0.0
        self.queue.add(node)

    def is_answering(self, node: str) -> bool:
        """Whether a sync of a node has not been answered completely yet."""
        return self._states[node].sync is not None

    def connection_changed(self, node: str) -> None:
        """Process that a node came online or went offline. Nothing is sent for 2 s: a node that came online syncs."""
        state = self._states[node]
        state.silent_until = _now() + SYNC_PATIENCE
        for key in state.inserts:  # nobody waits for an offline node; an online one lists in its sync what it holds
            self._stop_awaiting(node, key)
        self.queue.add(node)

    def wake(self) -> None:
        """Queue the nodes with unacknowledged messages or an unanswered sync: the broker is reachable again.

        What became due while the broker was away is sent now, or after ``silent_until``.
        """
        for node, state in self._states.items():
            if state.inserts or state.deletes or state.sync:
                self.queue.add(node)

    # --- what is waited for -----------------------------------------------------------------------------------

    def _insert(self, node: str, state: NodeState, key: Key) -> None:
        """Send the desired resource of a key to a node, from now on until it acknowledges."""
        state.inserts[key] = Attempt(_now())
        if self._is_online(node):
            self._awaited.setdefault(key, set()).add(node)
        self.queue.add(node)

    def _stop_inserting(self, node: str, state: NodeState, key: Key) -> None:
        """Stop sending a resource to a node."""
        state.inserts.pop(key, None)
        self._stop_awaiting(node, key)

    def _stop_awaiting(self, node: str, key: Key) -> bool:
        """Stop waiting for a node's acknowledgement; return whether the node was the last one to acknowledge."""
        awaited = self._awaited.get(key)
        if awaited is None or node not in awaited:
            return False
        awaited.remove(node)
        if not awaited:
            del self._awaited[key]
        return not awaited

    # --- sending ----------------------------------------------------------------------------------------------

    async def _serve(self, node: str) -> None:
        """Send what is due to a node, and schedule the next call. Raises BusError if the connection ends meanwhile."""
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
            # a message that arrived during the sends may have made this one unnecessary
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
        """Whether a node has another session key for a service in its sync than GM."""
        return holding.session is not None and holding.session != session_digest(self._session_key(holding.uid))

    def _properties(self, key: Key, resource: Resource[Any]) -> Mapping[str, str]:
        """Return the properties of an insert: a service's session key, which is no part of the resource for users."""
        session_key = self._session_key(resource.metadata.uid) if key.plural in WITH_SESSIONS else ""
        return {SESSION_KEY_PROPERTY: session_key} if session_key else NO_PROPERTIES

    def _identity(self, resource: Resource[Any]) -> tuple[Resource[Any], Key, SentVersion]:
        """Return a resource with its key and version, from the cache if it is there."""
        cached = self._cached.get(id(resource))
        if cached is None or cached[0] is not resource:
            if len(self._cached) >= MOST_CACHED:
                self._cached.clear()
            cached = self._cached[id(resource)] = resource, resource.key, SentVersion.of(resource)
        return cached


class DownstreamSender:
    """Makes single attempts to send messages to nodes. Each message has GM's epoch and a growing number.

    If the broker refuses a message, its next attempt is scheduled, and other messages are not delayed.
    """

    def __init__(self, bus: Bus, epoch: int) -> None:
        #: the number of GM's life; ``ControlPlane`` raises it
        self.epoch = epoch
        self._bus = bus
        self._number = 0
        #: number of messages that were sent, and number of repeated ones among them
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
        """Send ``body`` to ``address`` once, and schedule the next attempt.

        ``state``: of the node. Waits for the broker in the answer to a sync, whose order matters, and if the connection
        cannot take the message at once. ``patience``: seconds to add until the next attempt, because many nodes must
        answer. ``properties``: besides epoch and number. A message that the broker refuses, or that is too large, is
        logged. Raises BusError when the broker is not reachable.
        """
        stamp = {**self._stamp(), **properties}
        try:
            answer = None if state.sync else self._bus.publish_now(address, body, properties=stamp)
            if answer is None:
                await self._bus.publish(address, body, properties=stamp)
        except (RefusedError, TooLargeError) as error:
            self._retry_refused(attempt, address.text, error)
            return
        repeated = attempt.count > 0
        attempt.schedule_next(_now(), patience)
        if answer is None:
            self.sent += 1
            self.resent += repeated
            if state.sync:
                state.sync.count += 1
        else:
            answer.add_done_callback(partial(self._answer_came, attempt, address.text, repeated=repeated))
            await asyncio.sleep(0)  # the loop sends at the end of each iteration: nodes receive their work sooner

    async def send_synced(self, node: str, reply: SyncReply) -> None:
        """Send ``synced``, the end of the answer to a sync, and wait for the broker. Raises BusError without one."""
        body = Synced(epoch=self.epoch, count=reply.count, unknown=reply.unknown)
        await self._bus.publish(SYNCED.at(node=node), body, properties=self._stamp())

    def _answer_came(self, attempt: Attempt, topic: str, answer: asyncio.Future[int], *, repeated: bool) -> None:
        """Process the broker's answer to a message: ``answer`` has the reason code."""
        try:
            check_reason(topic, answer.result())
        except RefusedError as error:
            self._retry_refused(attempt, topic, error)
        except BusError:
            attempt.due = _now()  # ``Downstream.wake`` tries it again
        else:
            self.sent += 1
            self.resent += repeated

    def _retry_refused(self, attempt: Attempt, topic: str, error: HalimedeError) -> None:
        """Schedule the next attempt of a message that the broker refused, after the longest pause."""
        log.warning("message not sent", topic=topic, error=str(error))
        attempt.due = _now() + LAST_RESEND  # a repetition hardly helps, but the broker's rules may be corrected

    def _stamp(self) -> dict[str, str]:
        """Return the properties that order GM's messages: its epoch, and the next number."""
        self._number += 1
        return SequenceNumber(self.epoch, self._number).properties


def _now() -> float:
    """Return the event loop's time."""
    return asyncio.get_running_loop().time()
