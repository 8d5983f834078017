"""Brings each node to hold what it should: sends, sends again until the node acknowledges, answers syncs.

It decides nothing. ``want``, ``keep`` and ``forget`` say what a node should hold; a report or a sync says what it
does; the difference is sent, in the order in which it was wanted, while the node is there. A node that is away gets
nothing: its sync will ask. An acknowledgement is a report with the same uid and at least that generation; a delete is
acknowledged by a cleared report, a report of another uid, or a sync without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import structlog

from halimede.api import Resource
from halimede.bus import Bus
from halimede.bus.message import judge
from halimede.bus.ordering import SequenceNumber
from halimede.errors import BusError, HalimedeError, RefusedError, TooLargeError
from halimede.messages import Delete, Held, Synced
from halimede.names import Key
from halimede.system.backoff import exponential
from halimede.topic import Address
from halimede.topics import DELETE, INSERT, SYNCED
from services.gm.workqueue import WorkQueue, reached

#: seconds that a node which has just come gets to send its sync: then it is told all that it lacks, in order
SYNC_PATIENCE = 2.0
#: nodes that are sent something at a time: the broker's answers are not waited for one by one
AT_ONCE = 64
#: acknowledgements that GM takes a second at the least: where many nodes are asked, their answers take their time
TAKEN_PER_SECOND = 500.0
#: resources of which key and version are remembered: a look says the same few of each node
REMEMBERED = 256
#: deletes that wait for one node, as many as it may hold; what it holds beyond, its next sync says
MAX_DELETES = 10_000
log = structlog.get_logger()
M = TypeVar("M")
#: how often a broker's refusal counts: repeating hardly helps, but its rules may be mended
REFUSED = 16
#: seconds between two sends of what is not acknowledged
FIRST_RESEND, LAST_RESEND = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class SentVersion:
    """A uid in a generation."""

    uid: str
    generation: int

    @classmethod
    def of(cls, resource: Resource[Any]) -> SentVersion:
        """Return that of a resource."""
        return cls(resource.metadata.uid, resource.metadata.generation)

    def covers(self, other: SentVersion) -> bool:
        """Whether whoever holds this needs no ``other``."""
        return self.uid == other.uid and self.generation >= other.generation


@dataclass(slots=True)
class Attempt:
    """Something that is to be sent, for the first time or again."""

    due: float
    count: int = 0

    def sent(self, now: float, patience: float = 0.0) -> None:
        """Wait longer each time; ``patience``: seconds that its answer may take because of others."""
        self.count += 1
        self.due = now + exponential(self.count, FIRST_RESEND + patience, LAST_RESEND)


@dataclass(slots=True, eq=False)
class SyncReply:
    """The answer to one sync, and how many messages it has taken so far."""

    count: int = 0


@dataclass(slots=True)
class NodeState:
    """What GM knows of one node: what it should hold, what it holds, and the difference that is being sent."""

    wanted: dict[Key, Resource[Any] | None] = field(default_factory=dict)
    held: dict[Key, SentVersion] = field(default_factory=dict)
    inserts: dict[Key, Attempt] = field(default_factory=dict)
    deletes: dict[tuple[Key, str], tuple[int, Attempt]] = field(default_factory=dict)
    #: the sync that waits for its answer
    sync: SyncReply | None = None
    #: nothing is sent before, unless a sync comes
    silent_until: float = 0.0


class Downstream:
    """All nodes' lines. ``online`` says whether a node is there; GM's ``epoch`` goes with what is sent."""

    def __init__(self, bus: Bus, epoch: int, online: Callable[[str], bool]) -> None:
        self.sender = DownstreamSender(bus, epoch)
        self._bus = bus
        self._online = online
        #: orders (hold this, let go of that) that a node has said it carried out
        self.acknowledgements = 0
        self._lines: dict[str, NodeState] = {}
        self._known: dict[int, tuple[Resource[Any], Key, SentVersion]] = {}
        self._holders: dict[Key, set[str]] = {}
        #: the nodes in whose lines it is wanted: none of them may have it yet
        self._wanting: dict[Key, set[str]] = {}
        #: nodes that are there and have not acknowledged an insert yet
        self._awaited: dict[Key, set[str]] = {}
        self.queue: WorkQueue[str] = WorkQueue("downstream", self._serve, workers=AT_ONCE)

    # --- what nodes should hold -------------------------------------------------------------------------------

    def set_desired(self, node: str, resource: Resource[Any]) -> None:
        """The node shall hold this generation."""
        line = self._line(node)
        _, key, version = self._identity(resource)
        before, held = line.wanted.get(key), line.held.get(key)
        if before is resource and (key in line.inserts or (held and held.covers(version))):
            return  # each look at a resource says it again, for every node
        line.wanted[key] = resource
        self._wanting.setdefault(key, set()).add(node)
        line.deletes.pop((key, version.uid), None)
        if held and held.covers(version):
            self._settle(node, line, key)
        elif key not in line.inserts or before is None or SentVersion.of(before) != version:
            self._insert(node, line, key)

    def keep(self, node: str, key: Key, uid: str) -> None:
        """The node shall keep what it has of this uid: nothing is sent, nothing taken away."""
        line = self._line(node)
        line.wanted[key] = None
        self._wanting.setdefault(key, set()).add(node)
        self._settle(node, line, key)
        line.deletes.pop((key, uid), None)

    def forget(self, node: str, key: Key, uid: str, generation: int) -> None:
        """The node shall not hold this uid. ``generation`` is the last that it shall never take again."""
        line = self._line(node)
        wanted = line.wanted.get(key)
        if wanted is None or wanted.metadata.uid == uid:
            line.wanted.pop(key, None)
            self._settle(node, line, key)
        held = line.held.get(key)
        if held and held.uid != uid:
            return  # another one took its place
        _, attempt = line.deletes.get((key, uid), (0, Attempt(self._now())))
        if len(line.deletes) >= MAX_DELETES and (key, uid) not in line.deletes:
            del line.deletes[next(iter(line.deletes))]
        line.deletes[key, uid] = (generation, attempt)
        self.queue.add(node)

    def holders(self, key: Key) -> frozenset[str]:
        """Return the nodes that may hold a resource: it was sent to them, or they said so."""
        return frozenset(self._holders.get(key, ()))

    def holds(self, key: Key, node: str) -> bool:
        """Whether one node may hold a resource."""
        return node in self._holders.get(key, ())

    def held(self, key: Key) -> dict[str, SentVersion]:
        """Return what nodes said to hold of a resource."""
        lines = ((node, self._line(node)) for node in self.holders(key))
        return {node: line.held[key] for node, line in lines if key in line.held}

    def unwanted(self, node: str) -> dict[Key, SentVersion]:
        """Return what a node said to hold, that it should not, and that it is not told to let go of."""
        line = self._line(node)
        deleted = {key for key, _ in line.deletes}
        return {key: held for key, held in line.held.items() if key not in line.wanted and key not in deleted}

    def keys(self, node: str) -> set[Key]:
        """Return all that a node holds or should hold."""
        line = self._line(node)
        return {*line.wanted, *line.held, *(key for key, _ in line.deletes)}

    def withdraw(self, key: Key) -> None:
        """No node shall get the resource any more, also none that it was never sent to."""
        for node in self._wanting.pop(key, set()):
            line = self._line(node)
            line.wanted.pop(key, None)
            self._settle(node, line, key)

    def drop(self, key: Key, uid: str) -> None:
        """The resource is gone: nodes that are away learn it when they sync."""
        self.withdraw(key)
        for node in self._holders.pop(key, set()):
            line = self._line(node)
            line.held.pop(key, None)
            line.deletes.pop((key, uid), None)

    def remove(self, node: str) -> set[Key]:
        """The node is gone for good; return what it held or should hold."""
        keys = self.keys(node)
        for key in keys:
            self._holders.get(key, set()).discard(node)
            self._wanting.get(key, set()).discard(node)
            self._answered(node, key)
        del self._lines[node]
        return keys

    # --- what nodes hold --------------------------------------------------------------------------------------

    def acknowledged(self, node: str, key: Key, uid: str, generation: int) -> bool:
        """The node said that it holds this. Return whether no node that is there is waited for any more."""
        line, version = self._line(node), SentVersion(uid, generation)
        line.held[key] = version
        self._holders.setdefault(key, set()).add(node)
        wanted, done = line.wanted.get(key), False
        if key in line.inserts and wanted and version.covers(SentVersion.of(wanted)):
            done = self._settle(node, line, key)
            self.acknowledgements += 1
        for other in [d for d in line.deletes if d[0] == key and d[1] != uid]:
            del line.deletes[other]
            self.acknowledgements += 1
        return done

    def cleared(self, node: str, key: Key) -> None:
        """The node said that it holds nothing of that name."""
        line = self._line(node)
        line.held.pop(key, None)
        for delete in [d for d in line.deletes if d[0] == key]:
            del line.deletes[delete]
            self.acknowledgements += 1
        self._holders.get(key, set()).discard(node)
        wanted = line.wanted.get(key)
        if wanted is not None and key not in line.inserts:
            self._insert(node, line, key)

    def synced(self, node: str, holds: Iterable[Held]) -> set[Key]:
        """The node said all that it holds: whatever was under way before is forgotten, and sent anew if needed.

        ``answer`` must follow, once what the node should hold has been said again. Returns what it was taken to hold,
        or was being sent, up to now.
        """
        line = self._line(node)
        before = self.keys(node)
        for key in before:
            self._holders.get(key, set()).discard(node)
        line.held = {Key(h.plural, h.namespace, h.name): SentVersion(h.uid, h.generation) for h in holds}
        for key in list(line.inserts):
            self._settle(node, line, key)
        line.deletes.clear()
        for key in line.held:
            self._holders.setdefault(key, set()).add(node)
        return before

    def answer(self, node: str) -> None:
        """Finish the answer to a sync: ``synced`` goes out after all that is to be sent now."""
        line = self._line(node)
        line.sync, line.silent_until = SyncReply(), 0.0
        self.queue.add(node)

    def answering(self, node: str) -> bool:
        """Whether a sync of the node waits for the rest of its answer."""
        return self._line(node).sync is not None

    def returned(self, node: str) -> None:
        """The node came or went; one that came is about to sync."""
        line = self._line(node)
        line.silent_until = self._now() + SYNC_PATIENCE
        for key in line.inserts:  # nobody waits for one that is away; one that came says by its sync what it lacks
            self._answered(node, key)
        self.queue.add(node)

    def wake(self) -> None:
        """The broker is back: try all that waits, now."""
        for node, line in self._lines.items():
            if line.inserts or line.deletes or line.sync:
                self.queue.add(node)

    # --- what is waited for -----------------------------------------------------------------------------------

    def _insert(self, node: str, line: NodeState, key: Key) -> None:
        line.inserts[key] = Attempt(self._now())
        if self._online(node):
            self._awaited.setdefault(key, set()).add(node)
        self.queue.add(node)

    def _settle(self, node: str, line: NodeState, key: Key) -> bool:
        line.inserts.pop(key, None)
        return self._answered(node, key)

    def _answered(self, node: str, key: Key) -> bool:
        """Wait for the node no more; return whether it was the last one."""
        awaited = self._awaited.get(key)
        if awaited is None or node not in awaited:
            return False
        awaited.remove(node)
        if not awaited:
            del self._awaited[key]
        return not awaited

    # --- sending ----------------------------------------------------------------------------------------------

    async def _serve(self, node: str) -> None:
        """Send what is due to one node. Raises BusError when the broker is away: the queue comes again."""
        line = self._line(node)
        if not self._online(node) or not self._bus.connected:
            return  # its sync, or ``wake``, will bring us here again
        if not reached(line.silent_until):
            self.queue.add(node, at=line.silent_until)
            return
        for (key, uid), (generation, attempt) in list(line.deletes.items()):
            if reached(attempt.due) and (key, uid) in line.deletes:
                names = {"node": node, "ns": key.namespace, "plural": key.plural, "name": key.name}
                await self.sender.send(line, attempt, DELETE.at(**names), Delete(uid=uid, generation=generation))
        for key, attempt in list(line.inserts.items()):
            resource = line.wanted.get(key)
            # what came in meanwhile may have made it needless
            if reached(attempt.due) and line.inserts.get(key) is attempt and resource is not None:
                self._holders.setdefault(key, set()).add(node)
                names = {"node": node, "ns": key.namespace, "plural": key.plural, "name": key.name}
                crowd = len(self._awaited.get(key, ()))
                await self.sender.send(line, attempt, INSERT.at(**names), resource.body, crowd / TAKEN_PER_SECOND)
        waiting = [a.due for a in line.inserts.values()] + [a.due for _, a in line.deletes.values()]
        first = min(waiting, default=float("inf"))
        # another sync may have come in meanwhile: its answer is complete only when nothing is due any more
        if (answer := line.sync) and not reached(first):
            await self.sender.synced(node, answer.count)
            if line.sync is answer:
                line.sync = None
        if waiting:
            self.queue.add(node, at=first)

    def _identity(self, resource: Resource[Any]) -> tuple[Resource[Any], Key, SentVersion]:
        known = self._known.get(id(resource))
        if known is None or known[0] is not resource:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            known = self._known[id(resource)] = resource, resource.key, SentVersion.of(resource)
        return known

    def _line(self, node: str) -> NodeState:
        return self._lines.setdefault(node, NodeState())

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


class DownstreamSender:
    """Sends to a node what is in its queue, once. ``epoch`` is the one at the time of each message.

    What the broker did not take is noted for the next attempt and delays nothing else.
    """

    def __init__(self, bus: Bus, epoch: int) -> None:
        self.epoch = epoch
        self._bus = bus
        self._number = 0
        #: messages sent, and those among them that were sent again
        self.sent = self.resent = 0

    async def send(
        self, line: NodeState, attempt: Attempt, address: Address[M], body: M, patience: float = 0.0
    ) -> None:
        """Send once. Nobody waits for the broker's word, but for the answer to a sync, which has to come behind.

        ``patience``: seconds that the node's answer may take because of others. Raises BusError when the broker is
        away.
        """
        stamp = self._stamp()
        try:
            answer = None if line.sync else self._bus.publish_now(address, body, properties=stamp)
            if answer is None:
                await self._bus.publish(address, body, properties=stamp)
        except (RefusedError, TooLargeError) as error:
            self._refused(attempt, address.text, error, patience)
            return
        again = attempt.count > 0
        attempt.sent(_now(), patience)
        if answer is None:
            self._taken(again=again)
            if line.sync:
                line.sync.count += 1
        else:
            answer.add_done_callback(partial(self._answer_came, attempt, address.text, patience, again=again))
            await asyncio.sleep(0)  # what one turn of the loop sends leaves at its end: nodes have work the sooner

    async def synced(self, node: str, count: int) -> None:
        """End the answer to a sync, which took so many messages. Raises BusError when the broker is away."""
        body = Synced(epoch=self.epoch, count=count)
        await self._bus.publish(SYNCED.at(node=node), body, properties=self._stamp())

    def _answer_came(
        self, attempt: Attempt, topic: str, patience: float, answer: asyncio.Future[int], *, again: bool
    ) -> None:
        try:
            judge(topic, answer.result())
        except RefusedError as error:
            self._refused(attempt, topic, error, patience)
        except BusError:
            attempt.due = _now()  # ``wake`` of the lines tries it again
        else:
            self._taken(again=again)

    def _taken(self, *, again: bool) -> None:
        self.sent += 1
        self.resent += again

    def _refused(self, attempt: Attempt, topic: str, error: HalimedeError, patience: float) -> None:
        """Take note of what the broker does not take: the rest must not wait for it."""
        log.warning("message not sent", topic=topic, error=str(error))
        attempt.count = REFUSED
        attempt.sent(_now(), patience)

    def _stamp(self) -> dict[str, str]:
        self._number += 1
        return SequenceNumber(self.epoch, self._number).properties


def _now() -> float:
    return asyncio.get_running_loop().time()
