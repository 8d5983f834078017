"""An edge worker of a multi-edge service at work: frames in, stages, findings to where they come together, results out.

What it is made of stands on its own: ``Peers`` (who is there), ``Joins`` (asks who decides), ``Sharing`` and ``Room``
(gives frames to peers, takes theirs), ``Together`` (decides itself), ``Takeover`` (goes on for the dead).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric

from halimede import topics
from halimede.bus import Bus
from halimede.frames.channel import hop
from halimede.frames.server import CloudServer
from halimede.messages import Load, Prediction
from halimede.multiedge import balancing
from halimede.multiedge.application import Application
from halimede.multiedge.asking import Joins
from halimede.multiedge.balancing import Room, Sharing
from halimede.multiedge.peers import Peers
from halimede.multiedge.settings import MemberSettings
from halimede.multiedge.takeover import Takeover
from halimede.multiedge.together import Together
from halimede.observe.metrics import counter, gauge
from halimede.pipeline.executor import ModelThread
from halimede.stats.ledger import Count
from halimede.worker.asking import Asking
from halimede.worker.edge import EdgeLoop
from halimede.worker.job import Parts, drain, source_of
from halimede.worker.outbox import Outbox
from halimede.worker.sources.base import Source
from halimede.worker.sources.handing import session_id
from halimede.worker.sources.suspects import Suspects

#: frames that the broker may have under way to a member: each waits there until it is answered
INTAKE_RECEIVE_MAXIMUM = 64
#: joint inference may take the same cameras under the same name, and gets all of their frames, too
GROUP = "multi-edge"
#: seconds that the broker keeps a member's frames when its connection is gone
SESSION_S = 60
#: seconds that a member that is back waits until whoever went on with its frames has finished those in hand
HAND_BACK_S = 2.0


class Member:
    """One edge worker. ``run`` until it is to stop; it drains then."""

    def __init__(self, settings: MemberSettings, application: Application, parts: Parts) -> None:
        worker, bus = settings.worker, parts.bus
        self._settings, self._application, self._parts = settings, application, parts
        self._worker = worker
        self._durable = settings.application.takeover
        self._group = f"{worker.service}.{GROUP}"
        self._intake = intake_id(settings)
        self._suspects = Suspects(worker.state)
        known = {"namespace": worker.namespace, "service": worker.service, "worker": worker.worker}
        followed = self._intake if self._durable and worker.source.cameras else ""
        self._peers = Peers(bus, **known, node=worker.node, intake=followed)
        names = (worker.namespace, worker.service, worker.worker)
        self._joins = Joins(bus, *names, self._peers) if application.joint else None
        self._together = (
            Together(settings, application, parts, self._peers) if self._joins and settings.members_join else None
        )
        self._sharing: Sharing | None = None
        self._server: CloudServer | None = None
        if application.share:
            self._sharing = Sharing(bus, *names, self._home)
            room = Room(self._home, self._peers.touch, lambda: len(self._peers.others))
            channel = hop(worker.namespace, worker.service, balancing.HOP, worker.worker)
            self._server = CloudServer(
                bus, parts.slot, channel, limits=balancing.LIMITS, book=parts.book, advertiser=room, busy=room.busy
            )
            self._peers.share = room.load
        if self._together:
            self._peers.join = self._together.load

    async def run(self, ready: Callable[[], None]) -> None:
        """Work; ``ready`` is called when it takes frames."""
        parts, worker, names = (
            self._parts,
            self._worker,
            {"ns": self._worker.namespace, "service": self._worker.service},
        )
        outbox = Outbox(parts.bus, topics.MULTI_RESULT.at(**names))
        async with ModelThread("decode") as decoder, asyncio.TaskGroup() as group:
            self._loop = loop = EdgeLoop(
                worker,
                slot=parts.slot,
                miner=self._application.joins if self._joins else _never,
                decoder=decoder,
                offload=self._joins,
                outbox=outbox,
                ledger=parts.ledger,
                book=parts.book,
                asking=Asking(by="joint", hard=False),
                share=self._sharing,
            )
            await self._meet(group)
            running = [
                group.create_task(outbox.run(), name="outbox"),
                group.create_task(loop.run(), name="edge loop"),
                group.create_task(self._peers.run(), name="peers"),
                group.create_task(parts.slot.watch(worker.model_timeout_s), name="model watch"),
            ]
            if self._server:
                running.append(group.create_task(self._server.run(), name="share"))
            await self._peers.handed_back(HAND_BACK_S)
            self._suspects.open()
            source = source_of(
                parts,
                self._take_in,
                group=self._group,
                durable=self._durable,
                camera=self._settings.part,
                suspects=self._suspects,
            )
            taking = group.create_task(source.run(loop, parts.stop), name="source")
            takeover = self._takeover(loop)
            if self._durable:
                group.create_task(takeover.run(parts.stop), name="takeover")
            self._show(loop, outbox, takeover)
            ready()
            await parts.stop.wait()
            await self._leave(source, taking)
            self._suspects.close()
            for task in (taking, *running):
                task.cancel()
            if self._together:
                self._together.cancel()

    async def _meet(self, group: asyncio.TaskGroup) -> None:
        """Listen to the others, and say that this one is there."""
        for part in (self._joins, self._sharing, self._together):
            if part:
                self._peers.on_change(part.changed)
        self._peers.on_change(lambda *_: self._loop.pass_on())
        for asks in (self._joins, self._sharing):
            if asks:
                await asks.start()
        if self._together:
            await self._together.start(group)
        await self._peers.start()

    async def _leave(self, source: Source, taking: asyncio.Task[None]) -> None:
        """Answer what is here, then what others still want of this one, within the grace period."""
        clock, grace_s = asyncio.get_running_loop(), self._worker.grace_s
        until = clock.time() + grace_s
        await drain(grace_s * 2 / 3, taking, self._loop.drain)
        await self._peers.withdraw(orderly=taking.done() and not source.unfinished)
        for answers in (self._together, self._server):
            if answers:
                await answers.drain(max(until - clock.time(), 0))

    def _home(self) -> Load:
        """Say what is before the next frame here: of its own and of peers'."""
        own = self._loop.load()
        return balancing.both(own, self._server.load()) if self._server else own

    def _take_in(self) -> Bus:
        session_s = SESSION_S if self._durable else 0
        return self._parts.connect(self._intake, receive_maximum=INTAKE_RECEIVE_MAXIMUM, session_s=session_s)

    def _takeover(self, loop: EdgeLoop) -> Takeover:
        return Takeover(
            self._peers,
            self._parts.connect,
            loop,
            group=self._group,
            cameras=self._settings.cameras,
            receive_maximum=INTAKE_RECEIVE_MAXIMUM,
            session_s=SESSION_S,
            suspects=self._suspects,
        )

    # --- figures ----------------------------------------------------------------------------------------------------

    def _show(self, loop: EdgeLoop, outbox: Outbox, takeover: Takeover) -> None:
        """Count what happens on the hops, and show it."""
        parts, server = self._parts, self._server
        clients = [part.client for part in (self._joins, self._sharing) if part]
        parts.ledger.follow(Count.LATE, lambda: sum(client.late for client in clients))
        parts.ledger.follow(Count.UNASKED, lambda: sum(client.unknown for client in clients))
        if server:
            parts.ledger.follow(Count.SERVED, lambda: server.stats.served)
            parts.ledger.follow(Count.BATCHES, lambda: server.stats.batches)
        parts.figures.edge = (loop, clients[0] if clients else None, outbox)
        parts.figures.more.append(lambda: self._figures(takeover))

    def _figures(self, takeover: Takeover) -> Iterator[Metric]:
        yield gauge("worker_peer_workers", "Other workers of the service that are there.", len(self._peers.others))
        yield counter("worker_overtaken_frames", "Frames taken from workers that had died.", takeover.taken_over)
        if self._sharing:
            done = {"answered": self._sharing.shared, "returned": self._sharing.returned}
            samples = [({"outcome": outcome}, count) for outcome, count in done.items()]
            text = "Frames given to a peer: answered there, or done at home after all."
            yield counter("worker_shared_frames", text, samples)


def intake_id(settings: MemberSettings) -> str:
    """Return the client id of a member's connection for frames.

    It is another one for other cameras: what an earlier session was subscribed to is not this one's.
    """
    worker = settings.worker
    return session_id(worker.client_id("intake"), worker.source.cameras, worker.uid)


def _never(prediction: Prediction) -> bool:  # noqa: ARG001
    """Ask nobody."""
    return False
