"""Keeps a connection to the broker up, for all adapters: subscriptions, birth message and hooks.

Adapters implement ``_open``.

The birth is a message that is published after each connect; the will is one that the broker publishes when the
connection breaks. ``reconnect.py`` decides when to connect again, also if two clients have the same client id.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from abc import abstractmethod
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self

import structlog

from halimede.bus.message import (
    FAILURE,
    NO_SHARED,
    NO_WILDCARDS,
    REASONS,
    Announce,
    Announcement,
    Packet,
    Receive,
    ReceiveNow,
)
from halimede.bus.port import PUBLISH_TIMEOUT, Bus
from halimede.bus.reconnect import BrokerReadiness, ClientIdConflict, ReconnectBackoff
from halimede.bus.subscriptions import Dispatcher, Subscription, UnackedMessages
from halimede.bus.topic_filter import FEW, OVERHEAD, Prefix, check_size, packet_size, split_shared
from halimede.bus.transport import CLOSE_TIMEOUT, Deliver, Ended, PendingAck, Transport
from halimede.errors import BusError, DisconnectedError, RefusedError, cause_of
from halimede.names import check_name
from halimede.system.backoff import exponential
from halimede.topic import Filter

log = structlog.get_logger()

#: seconds to wait for the broker's answer to a subscribe or unsubscribe
SUBSCRIBE_TIMEOUT = 10.0
#: log text of a client id conflict
RIVAL = "another client uses the same client id"

#: why a client ends its own connection: an orderly step that is no outage, and a broker that is not ready
RENEWED = "birth and will have changed"
UNREADY = "the broker refuses subscriptions or birth: it may not be ready yet"
#: seconds that a new subscription waits for a usable connection: longer than all attempts at a broker that is not ready
SETTLE_S = 30.0
#: seconds after which a connection's birth is published once more, and the longest pause before a further attempt. Each
#: pause is multiplied by a random share: after an outage all clients connect at once, and their syncs are more urgent.
#: GM answers those of 3,000 nodes within 10 s
REPEAT_BIRTH_S, LONGEST_REPEAT_S, REPEAT_SHARES = 20.0, 60.0, (0.5, 1.5)
#: seconds between two looks at ``Bus.obstacle`` while it forbids an attempt
OBSTACLE_S = 0.05
#: seconds to wait for the acknowledgement of a repeated birth: it goes to all subscribers, which may be thousands
REPEAT_TIMEOUT_S = 20.0

#: most reasons that are logged between two accepted connections
MOST_REASONS = 8


#: log events of a connection: an LC reads them in the logs of its workers
BUS_DOWN, BUS_CONNECTED = "bus down", "bus connected"
CONNECTION_EVENTS = frozenset({BUS_DOWN, BUS_CONNECTED})


class ConnectionLog:
    """Logs changes of the connection and keeps the reason of the last failure. ``where``: the broker's address."""

    def __init__(self, where: str, client_id: str) -> None:
        self._where = where
        self._client_id = client_id
        #: why there is no connection
        self.cause = "no answer yet"
        self._logged: set[str] = set()

    def log_down(self, reason: str) -> None:
        """Record why there is no connection, and log each new reason once."""
        self.cause = reason
        if reason not in self._logged and len(self._logged) < MOST_REASONS:
            self._logged.add(reason)
            level = log.info if reason == RENEWED else log.warning
            level(BUS_DOWN, broker=self._where, client=self._client_id, reason=reason)

    def log_connected(self, where: str) -> None:
        """Log that the broker at ``where`` has accepted a connection."""
        self._logged.clear()
        log.info(BUS_CONNECTED, broker=where or self._where, client=self._client_id)

    def error(self, waited_s: float | None = None) -> DisconnectedError:
        """Return the error for a caller that needs a connection, after ``waited_s`` seconds; None: it did not wait."""
        text = f"no connection to the broker at {self._where}"
        if waited_s is None:
            return DisconnectedError(f"{text} ({self.cause})")
        return DisconnectedError(
            f"{text} within {waited_s:g} s ({self.cause}): start it, or set HALIMEDE_BROKER to its address"
        )


class ReconnectingBus(Bus):
    """A ``Bus`` that connects again whenever its connection ends. ``Bus`` describes the methods."""

    def __init__(
        self,
        client_id: str,
        announce: Announce | None,
        *,
        where: str,
        chance: random.Random,
        durable: bool,
        receive_maximum: int,
        prefix: str = "",
    ) -> None:
        """Prepare a bus. The client id becomes part of a topic (dead letters), so it must be a valid name.

        ``announce``: makes birth and will of each connection. ``where``: the broker's address for people. ``chance``:
        for random pauses. ``prefix``: levels before every topic. ``durable``: the session outlives its connections.
        ``receive_maximum``: above this number of messages that wait for a later acknowledgement, the connection is not
        read (``UnackedMessages``). Raises InvalidFieldError for the client id.
        """
        super().__init__(check_name("client id", client_id), announce)
        self._where = where
        self._chance = chance
        self._prefix = Prefix(f"{prefix.strip('/')}/" if prefix else "")
        self._id_conflict = ClientIdConflict(share=durable)
        self._readiness = BrokerReadiness()
        self._back_off = ReconnectBackoff(chance)
        self._connection_log = ConnectionLog(where, self.client_id)
        unacked = UnackedMessages(durable=durable, receive_maximum=receive_maximum, on_full=self._pause_reading)
        self._incoming = Dispatcher(self.stats, self._prefix, unacked)
        #: the connection that a broker has accepted; None: there is none
        self._link: Transport | None = None
        #: the same connection, once the broker has answered its subscriptions and its birth: only then callers publish
        self._usable: Transport | None = None
        self._ready = asyncio.Event()
        self._max_packet = 0
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def _open(self, will: Packet | None, deliver: Deliver) -> Transport:
        """Connect once: adapters make a transport that passes received messages to ``deliver``. ``will``: None: none.

        Raises BusError, OSError or TimeoutError, after closing what it opened.
        """

    async def __aenter__(self) -> Self:
        """Start connecting."""
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._start(self._keep_connected(), "keep connected")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop handlers, disconnect so that the broker publishes the will, leave no task behind.

        Takes a few seconds at most.
        """
        assert self._tasks is not None, "entered"  # noqa: S101 - for the type checker
        link, self._link, self._usable = self._link, None, None
        self._ready.clear()
        try:
            for task in self._running:
                task.cancel()
            if self._running:
                await asyncio.wait(self._running, timeout=CLOSE_TIMEOUT)
            if link:
                # keep a session with content: the next client of this id continues with it
                await link.close(keep=self._incoming.unfinished)
        finally:
            if link:
                link.abort("closed")
            self._connection_log.cause = "closed"
            # re-raise an error of the block unchanged: the task group would wrap it in another one
            cancelled = isinstance(error, asyncio.CancelledError)
            await self._tasks.__aexit__(*((kind, error, trace) if cancelled else (None, None, None)))
            self._tasks = None

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted this client, and answered its subscriptions and birth."""
        return self._usable is not None and not self._usable.ended.done()

    @property
    def cause(self) -> str:
        """Why there is no connection, or why the last one ended."""
        return self._connection_log.cause

    @property
    def owed(self) -> int:
        """The number of bytes of publishes that the broker has not acknowledged yet."""
        return self._link.owed if self._link else 0

    @property
    def unacknowledged(self) -> int:
        """The number of received messages that are acknowledged later, and are not yet."""
        return self._incoming.unacked.count

    @property
    def oldest_s(self) -> float:
        """Seconds since the oldest unacknowledged message arrived; 0 without one."""
        now = asyncio.get_running_loop().time()
        return now - min(self._incoming.unacked.arrival_times(), default=now)

    @property
    def max_packet(self) -> int:
        """Most bytes in one packet to the broker: those of the last connection, 0 before the first."""
        return self._max_packet

    async def wait_connected(self, timeout_s: float) -> None:
        """Wait until the broker has answered subscriptions and birth.

        Raises DisconnectedError with the last reason after ``timeout_s`` seconds.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_ready()
        except TimeoutError as error:
            raise self._connection_log.error(timeout_s) from error

    async def _wait_ready(self) -> None:
        """Wait until a connection is usable."""
        await self._ready.wait()
        while not self.connected:  # it has just ended, and the task that keeps it up has not run yet
            await asyncio.sleep(0)
            await self._ready.wait()

    async def send(self, packet: Packet, timeout_s: float = PUBLISH_TIMEOUT) -> int:
        """Send one packet and return the broker's reason code (0 for QoS 0), as ``Bus.send`` describes.

        A publish that is given up at its deadline keeps its slot in the window until the broker answers it: the broker
        counts it too, and ends connections that exceed its receive maximum.
        """
        link = self._usable
        if link is None or link.ended.done():  # it may have ended in this iteration of the event loop
            raise self._connection_log.error()
        packet = self._prefix.add_to(packet)
        size = check_size(packet, link.max_packet)
        try:
            async with asyncio.timeout(timeout_s):
                await link.slots.acquire()
                return await asyncio.shield(link.publish_in_slot(packet, size))
        except TimeoutError as error:
            raise DisconnectedError(f"{packet.topic}: no acknowledgement within {timeout_s:g} s") from error

    def post(self, packet: Packet) -> asyncio.Future[int] | None:
        """Send one packet now if that needs no wait, as ``Bus.post`` describes."""
        link = self._usable
        if link is None or link.ended.done():
            return None
        if self._prefix.text:
            packet = self._prefix.add_to(packet)
        size = len(packet.payload) + len(packet.tail)
        if size + OVERHEAD > link.max_packet or len(packet.properties) > FEW:
            size = check_size(packet, link.max_packet)
        slots = link.slots
        if not slots.free:
            return None
        slots.free -= 1
        return link.publish_in_slot(packet, size)

    async def listen(
        self,
        filter_: str,
        qos: int,
        receive: Receive | ReceiveNow,
        queue: int,
        *,
        later: bool = False,
        drop_oldest: bool = False,
        inherit: bool = False,
    ) -> None:
        """Subscribe, now and on every reconnect; ``Bus.listen`` describes the parameters.

        Raises RefusedError if the broker does not grant it, ValueError if another filter gets the same messages,
        RuntimeError outside the ``async with`` block. A broker that may not be ready yet gets up to ``SETTLE_S``
        seconds (``BrokerReadiness``). Without a connection this returns at once, and the next connection subscribes.
        """
        if self._tasks is None:
            raise RuntimeError("subscribe inside the bus's `async with` block")
        if other := self._incoming.conflict(filter_, requested=not inherit):
            raise ValueError(f"{filter_} overlaps the subscription of {other}: use another connection for one of them")
        subscription = Subscription(
            filter_, qos, receive, queue, self.stats, later=later, drop_oldest=drop_oldest, requested=not inherit
        )
        self._incoming.add(subscription)
        if queue:
            self._start(subscription.pump(), filter_)
        link = None if inherit else self._link
        reason = await self._subscribe(link, filter_, qos) if link else None
        if link and reason is not None:
            reason = await self._settle(link, filter_, reason)
        if reason is not None and reason >= FAILURE:
            self._remove(filter_)
            raise RefusedError(filter_, reason, REASONS.get(reason, "subscription refused"))

    async def recall(self, filter_: Filter[Any]) -> None:
        """Make the broker send the retained messages of a subscription again; wait at most SUBSCRIBE_TIMEOUT."""
        link, subscription = self._link, self._incoming.get(filter_.text)
        if link and subscription:
            try:
                async with asyncio.timeout(SUBSCRIBE_TIMEOUT):
                    await asyncio.shield(self._subscription(link, filter_.text, subscription.qos))
            except (DisconnectedError, TimeoutError) as error:  # on a working connection a missing answer does no harm
                log.debug("recall not answered", filter=filter_.text, error=str(error))

    def resolve_id_conflict(self) -> None:
        """Handle a proven client id conflict: the later client disconnects and pauses, the other one reports it."""
        if self._link:
            log.warning(RIVAL, client=self.client_id, broker=self._where, known="from its messages")
            self._start(self._link.close() if self._id_conflict.must_disconnect() else self._accuse(), "rival")

    def renew(self) -> None:
        """Connect again, because birth and will have changed."""
        if self._link:
            self._link.abort(RENEWED)

    async def unlisten(self, filter_: str) -> None:
        """End a subscription. With a session that outlives connections, wait until its messages are acknowledged."""
        subscription = self._incoming.get(filter_)
        if subscription and self._incoming.durable:
            await self._exhaust(subscription)
            self._remove(filter_)
        elif self._remove(filter_) and self._link:
            await self._unsubscribe(self._link, filter_)

    def _remove(self, filter_: str) -> Subscription | None:
        """Close and remove a subscription, and forget the broker's answer to it; return it if there was one."""
        self.refused.pop(filter_, None)
        self._readiness.answers.pop(filter_, None)
        return self._incoming.remove(filter_)

    def _subscription(self, link: Transport, filter_: str, qos: int) -> PendingAck:
        """Send a subscription at once; the future returns the reason code, or raises DisconnectedError.

        A feature that the broker does not offer is refused here: some brokers end the connection at such a request,
        again after each reconnect, and others grant it and deliver nothing.
        """
        group, plain = split_shared(filter_)
        if group and not link.grants.shared:
            refused = NO_SHARED
        elif not link.grants.wildcards and not {"+", "#"}.isdisjoint(plain.split("/")):
            refused = NO_WILDCARDS
        else:
            return link.subscribe(self._prefix.filter(filter_), qos)
        answer = PendingAck()
        answer.set_result(refused)
        return answer

    def _pause_reading(self, full: bool) -> None:  # noqa: FBT001  # a hook of ``UnackedMessages``
        """Read no further messages if there are too many without an acknowledgement (``full``), else read on."""
        if self._link and full:
            self._link.pause_reading()
        elif self._link:
            self._link.resume_reading()

    async def _subscribe(self, link: Transport, filter_: str, qos: int) -> int | None:
        """Subscribe; return the broker's reason code, None if it is not known: the next connection subscribes.

        A connection without an answer is ended, unless its reading was paused.
        """
        try:
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT):
                return await asyncio.shield(self._subscription(link, filter_, qos))
        except DisconnectedError:
            return None
        except TimeoutError:
            if not link.was_paused:
                link.abort("no answer to a subscription")
            return None

    async def _settle(self, link: Transport, filter_: str, reason: int) -> int | None:
        """Record the answer ``reason`` to a subscription of an existing connection; return the broker's final answer.

        If the connection ends because the broker is not ready, the next ones send the subscription again; without a
        next one (``once``), the first answer counts. None if the broker accepts no connection for too long: then the
        next one subscribes, whenever it is made.
        """
        try:
            async with asyncio.timeout(SETTLE_S):
                if link is not self._usable:
                    await self._wait_ready_or_over()
                if link is self._usable and self._readiness.must_end({**self._readiness.answers, filter_: reason}):
                    link.abort(UNREADY)
                    await self._wait_ready_or_over()
        except TimeoutError:
            return None
        return self._readiness.answers.get(filter_, reason)

    async def _wait_ready_or_over(self) -> None:
        """Wait until a connection is usable, or until there will be none."""
        tasks = [asyncio.ensure_future(event) for event in (self._wait_ready(), self.over.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _unsubscribe(self, link: Transport, filter_: str) -> bool:
        """Unsubscribe; return whether the broker has answered."""
        try:
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT):
                await asyncio.shield(link.unsubscribe(self._prefix.filter(filter_)))
        except (DisconnectedError, TimeoutError) as error:
            log.debug("unsubscribe not answered", filter=filter_, error=str(error))
            return False
        return True

    async def _exhaust(self, subscription: Subscription) -> None:
        """Unsubscribe, and wait until every message of the session is acknowledged.

        The broker answers after all messages that the acknowledgements allowed: if none is in progress then, it had no
        more.
        """
        subscription.requested = False
        unacked = self._incoming.unacked
        while True:
            await self._ready.wait()
            if self._link and await self._unsubscribe(self._link, subscription.filter) and not unacked.busy:
                return
            await unacked.wait_idle()
            await asyncio.sleep(0)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start and return a task, which the end of the ``async with`` block cancels."""
        assert self._tasks is not None, "entered"  # noqa: S101 - for the type checker
        task = self._tasks.create_task(work, name=f"{self.client_id}: {name}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    # --- one connection after the other -----------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        """Connect again and again, with pauses, until cancelled; with ``once``, one time."""
        loop = asyncio.get_running_loop()
        while True:
            while obstacle := self.obstacle():
                self._connection_log.log_down(obstacle)
                await asyncio.sleep(OBSTACLE_S)
            announcement = self.announce()
            will = self._prefix.add_to(announcement.will) if announcement.will else None
            pause = 0.0
            try:
                link = await self._open(will, self._incoming.dispatch)
            except (BusError, OSError, TimeoutError) as error:
                self._connection_log.log_down(str(error) or cause_of(error))
                self._id_conflict.record_failure()
                self._back_off.record_failure()
            else:
                began = loop.time()
                end = await self._serve(link, announcement)
                self._connection_log.log_down(end.reason)
                age = loop.time() - began
                if self._readiness.unready:
                    self._back_off.record_unready(self._readiness.unready)
                else:
                    self._back_off.record_end(age)
                pause = self._id_conflict.pause_after(
                    age, takeover=end.taken_over, explained=end.explained, chance=self._chance
                )
            if self.once:
                self.over.set()
                return
            if pause:
                log.warning(RIVAL, client=self.client_id, broker=self._where, pause_s=round(pause))
            await asyncio.sleep(pause or self._back_off.pause())

    async def _serve(self, link: Transport, announcement: Announcement) -> Ended:
        """Restore subscriptions, publish the birth, run the hooks; return why the connection has ended."""
        # All of this is sent before any other publish, so that later messages find this client subscribed. No await
        # separates it from ``self._link``, so a concurrent subscription is either included here or sends itself.
        answers = {key: self._subscription(link, key, qos) for key, qos in self._incoming.requested_filters().items()}
        if announcement.birth:
            birth = self._prefix.add_to(announcement.birth)
            link.slots.take()  # nothing else has a slot yet
            answers[announcement.birth.topic] = link.publish_in_slot(birth, packet_size(birth))
        # before anything can be published on it
        self.stats.connects += 1
        self.stats.certificate_end = link.certificate_end
        self._link, self._max_packet, self.grants, self.resumed = link, link.max_packet, link.grants, link.resumed
        self._pause_reading(self._incoming.unacked.full)
        tasks: list[asyncio.Task[None]] = []
        try:
            reasons = await self._wait_for_reason_codes(link, answers)
            if reasons is not None and self._readiness.must_end(reasons):
                link.abort(UNREADY)
            elif reasons is not None:
                self.refused = {name: REASONS.get(code, hex(code)) for name, code in reasons.items() if code >= FAILURE}
                self._incoming.unacked.forget_unrepeated()
                self._usable = link
                self._ready.set()
                self._connection_log.log_connected(link.where)
                tasks = [
                    self._start(self._greet(), "hooks"),
                    self._start(self._repeat_birth(announcement), "birth again"),
                ]
            return await asyncio.shield(link.ended)
        finally:
            for task in tasks:
                task.cancel()
            if link.ended.done():
                self._link = self._usable = None
                self._ready.clear()
                self._incoming.disconnected()

    async def _wait_for_reason_codes(
        self, link: Transport, answers: Mapping[str, asyncio.Future[int]]
    ) -> dict[str, int] | None:
        """Return the reason codes for a new connection's subscriptions and birth, after SUBSCRIBE_TIMEOUT at most.

        If an answer is missing, it may be lost although the connection works. Only a new connection brings all answers,
        so this one is ended, and None is returned. If reading was paused, missing answers wait behind messages of a
        session whose subscriptions the broker has: then the answers so far are returned.
        """
        pending = set(answers.values())
        if pending:
            _, pending = await asyncio.wait(pending, timeout=SUBSCRIBE_TIMEOUT)
        done = {name: answer for name, answer in answers.items() if answer.done()}
        if any(answer.exception() for answer in done.values()) or (pending and not link.was_paused):
            link.abort("no answer to subscriptions or birth")
            return None
        return {name: answer.result() for name, answer in done.items()}

    async def _greet(self) -> None:
        """Report refused subscriptions and client id conflicts as dead letters, and run the hooks."""
        for topic, reason in list(self.refused.items()):  # a subscription may end meanwhile
            await self.dead_letter(Packet(topic, b""), f"the broker refused this subscription or birth: {reason}")
        if self._id_conflict.suspected:
            self._id_conflict.suspected = False
            await self._accuse()
        await self._run_connect_hooks()

    async def _repeat_birth(self, announcement: Announcement) -> None:
        """Publish the birth once more, until the broker has granted it: it may have lost the first one."""
        if announcement.repeat is None:
            return
        for attempt in itertools.count(1):
            share = self._chance.uniform(*REPEAT_SHARES)
            await asyncio.sleep(share * exponential(attempt, REPEAT_BIRTH_S, LONGEST_REPEAT_S))
            birth = announcement.repeat()
            try:
                reason = await self.send(birth, REPEAT_TIMEOUT_S)
            except BusError as error:
                log.info("birth not repeated", client=self.client_id, error=str(error))
                continue
            if reason < FAILURE:
                self.refused.pop(birth.topic, None)
                return
            self.refused[birth.topic] = REASONS.get(reason, hex(reason))

    async def _accuse(self) -> None:
        """Report the conflict where operators see it."""
        about = Packet(f"client/{self.client_id}", b"")
        await self.dead_letter(about, f"{RIVAL}: stop one of the two, or give it another name")
