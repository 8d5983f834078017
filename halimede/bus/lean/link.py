"""One accepted connection: packets in and out of a socket, on the event loop, with nothing in between.

All that is written in one turn of the loop leaves in one call. A message's payload is a view of the buffer that the
socket filled, where it is large.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial

from halimede.bus.lean import writing
from halimede.bus.lean.inflow import LARGE, Inflow
from halimede.bus.lean.outflow import Outflow
from halimede.bus.lean.reading import PROTOCOL_ERROR as OUT_OF_TURN
from halimede.bus.lean.reading import Acknowledged, ConnAck, Disconnect, Incoming, MalformedError, Pong, Publish, read
from halimede.bus.lean.reasons import name
from halimede.bus.lean.watch import Watch
from halimede.bus.link import CLOSE_TIMEOUT, Answer, Deliver, Ended, Link, Slots
from halimede.bus.message import Packet
from halimede.bus.packets import SHARE
from halimede.bus.reasons import FAILURE
from halimede.bus.settings import MqttSettings
from halimede.errors import DisconnectedError

#: bytes of a packet where the broker names no limit (MQTT v5, 2.1.4)
NO_LIMIT = 268_435_455
DISCONNECT_WITH_WILL, SESSION_TAKEN_OVER = 0x04, 0x8E
#: client id not valid, bad user name or password, not authorised, banned, bad authentication method
BARRED = frozenset({0x85, 0x86, 0x87, 0x8A, 0x8C})
LAST_IDENTIFIER = 65_535
#: reads before others on the loop have their turn
READS = 8


class LeanLink(Link):
    """A connection of which the socket is open. ``accepted`` is set by the broker's CONNACK."""

    def __init__(self, sock: socket.socket, settings: MqttSettings, deliver: Deliver) -> None:
        super().__init__(NO_LIMIT, settings.window)
        self._loop = asyncio.get_running_loop()
        self.accepted: asyncio.Future[None] = self._loop.create_future()
        self._sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._settings = settings
        self._deliver = deliver
        self._in = Inflow(settings.max_packet)
        self._out = Outflow(sock)
        self._last = 0
        self._flushing = self._blocked = False
        #: QoS 0: the byte after which each has left
        self._unsent: list[tuple[int, Answer]] = []
        self._watch = Watch(self._loop.time(), settings.keepalive_s)
        self._tick: asyncio.TimerHandle | None = None

    def begin(self, hello: bytes) -> None:
        """Send a CONNECT and read what comes."""
        self._loop.add_reader(self._sock.fileno(), self._readable)
        self._look()
        self._write(hello)

    # --- what the bus asks for ------------------------------------------------------------------------------------

    def publish(self, packet: Packet) -> Answer:
        """Write a packet. At QoS 0 the answer comes once it has left."""
        payload, tail = packet.payload, packet.tail
        identifier = self._identifier() if packet.qos else 0
        head = writing.publish(packet, identifier, len(payload) + len(tail))
        answer = self._expect(identifier)
        if answer.done():
            return answer
        out = self._out
        if len(payload) < writing.JOINED:
            out.put(head + payload)
        else:
            out.put(head)
            out.put(payload)
        if len(tail):
            out.put(tail)
        if not identifier:
            self._answers.pop(0, None)
            self._unsent.append((out.put_bytes, answer))
        if len(payload) + len(tail) < LARGE or self._blocked:
            self._soon()
        else:
            self._flush()  # nothing is gained by sending it along with others
        return answer

    def subscribe(self, filter_: str, qos: int) -> Answer:
        """Subscribe; the broker sends retained messages every time, but none to a shared subscription."""
        identifier = self._identifier()
        retained = not filter_.startswith(SHARE)
        return self._ask(identifier, writing.subscribe(identifier, filter_, qos, retained=retained))

    def unsubscribe(self, filter_: str) -> Answer:
        """Unsubscribe."""
        identifier = self._identifier()
        return self._ask(identifier, writing.unsubscribe(identifier, filter_))

    async def close(self, *, keep: bool = False) -> None:
        """Disconnect behind what waits, with reason 0x04, so that the broker publishes the will."""
        if self.ended.done():
            return
        end_session = self._settings.session_s > 0 and not keep
        self._write(writing.disconnect(DISCONNECT_WITH_WILL, end_session=end_session))
        await asyncio.wait([self.ended], timeout=CLOSE_TIMEOUT)

    def abort(self, reason: str) -> None:
        """Close the socket as it is."""
        self.end(Ended(reason, explained=True))

    def end(self, ended: Ended) -> None:
        """Let go of the socket and tell everybody who waits."""
        if self.ended.done():
            return
        if self._tick:
            self._tick.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        super().end(ended)
        for _, answer in self._unsent:
            self._settle(answer, DisconnectedError(f"the connection was lost: {ended.reason}"))
        self._unsent.clear()

    def _ask(self, identifier: int, packet: bytes) -> Answer:
        answer = self._expect(identifier)
        if not answer.done():
            self._write(packet)
        return answer

    def _identifier(self) -> int:
        """Return a packet identifier that is not in use. Raises DisconnectedError when all are."""
        for _ in range(LAST_IDENTIFIER):
            self._last = self._last % LAST_IDENTIFIER + 1
            if self._last not in self._answers:
                if not self._answers:  # else somebody waits for longer already
                    self._watch.asked = self._loop.time()
                return self._last
        raise DisconnectedError(f"the broker has answered none of {LAST_IDENTIFIER} packets")

    # --- out ------------------------------------------------------------------------------------------------------

    def _write(self, packet: bytes) -> None:
        self._out.put(packet)
        self._soon()

    def _soon(self) -> None:
        """Hand over at the end of this turn of the loop what was written in it."""
        if not self._flushing and not self._blocked:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self.ended.done():
            return
        self._watch.spoke = self._loop.time()
        try:
            whole = self._out.flush()
        except OSError as error:
            self._broke(error)
            return
        except Exception as error:  # a view that its owner has released: it would be in the way of all that follows
            self.end(Ended(f"a packet cannot be sent: {type(error).__name__}: {error}"))
            raise
        if self._unsent:
            self._tell_sent()
        if whole == self._blocked:
            self._blocked = not whole
            if whole:
                self._loop.remove_writer(self._sock.fileno())
            else:
                self._loop.add_writer(self._sock.fileno(), self._writable)

    def _writable(self) -> None:
        self._watch.alive = self._watch.asked = self._loop.time()  # the other side has taken something
        self._flush()

    def _tell_sent(self) -> None:
        sent = self._out.sent_bytes
        left = [(at, answer) for at, answer in self._unsent if at > sent]
        for at, answer in self._unsent:
            if at <= sent:
                self._settle(answer, 0)
        self._unsent = left

    # --- in -------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            for _ in range(READS):
                room = self._in.room
                count = self._sock.recv_into(room)
                if not count:
                    self.end(Ended("the connection broke"))
                    return
                self._watch.alive = self._loop.time()
                for first, body, own in self._in.filled(count):
                    self._take(read(first, body), own=own)
                    if self.ended.done():
                        return
                # bytes that TLS has decrypted already wake no selector
                if count < len(room) and not self._tls:
                    return
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except MalformedError as error:
            self._out.put(writing.disconnect(error.code))
            self._flush()
            self.end(Ended(f"the broker sent what is no MQTT v5: {error}"))
        except OSError as error:
            self._broke(error)
        except BaseException as error:
            # what came with it would wait here, handed over to nobody, for as long as the connection stands
            self.end(Ended(f"a message was not taken: {type(error).__name__}"))
            raise
        else:
            if self._tls and self._sock.pending():  # type: ignore[attr-defined]  # it is an SSLSocket
                self._loop.call_soon(self._more)

    def _more(self) -> None:
        if not self.ended.done():
            self._readable()

    def _take(self, packet: Incoming, *, own: bool) -> None:
        if isinstance(packet, Publish) and self.accepted.done():
            self._message(packet, own=own)
        elif isinstance(packet, Acknowledged):
            self._watch.answered = self._watch.alive
            self._answer(packet.identifier, packet.reason)
        elif isinstance(packet, ConnAck) and not self.accepted.done():
            self._welcome(packet)
        elif isinstance(packet, Pong):
            self._watch.pong()
        elif isinstance(packet, Disconnect):
            told = name(packet.reason, packet.said)
            taken_over = packet.reason == SESSION_TAKEN_OVER
            self.end(Ended(f"the broker said: {told}", taken_over=taken_over, explained=True))
        else:
            raise MalformedError(f"a {type(packet).__name__} out of turn", OUT_OF_TURN)

    def _message(self, message: Publish, *, own: bool) -> None:
        topic, qos, retain, duplicate, identifier, beside, payload = message
        packet = Packet(
            topic,
            payload if own else bytes(payload),
            qos,
            retain,
            beside.response_topic,
            beside.correlation,
            beside.expiry_s,
            beside.properties,
            duplicate,
        )
        self._deliver(packet, partial(self._acknowledge, identifier) if qos else None, identifier)

    def _acknowledge(self, identifier: int) -> bool:
        if self.ended.done():
            return False
        self._write(writing.puback(identifier))
        return True

    def _welcome(self, word: ConnAck) -> None:
        if word.reason >= FAILURE:
            told = name(word.reason, word.said)
            self.end(Ended(f"the broker refused the connection: {told}", barred=word.reason in BARRED))
            return
        self.grants, self.resumed = word.grants, word.resumed
        self.max_packet = word.grants.max_packet or NO_LIMIT
        if word.keepalive_s:
            self._watch.hurry(word.keepalive_s)
        self.slots = Slots(min(self._settings.window, word.grants.receive_maximum))
        self.accepted.set_result(None)

    # --- the clock ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ping a silent broker, and leave one that does not answer."""
        now = self._loop.time()
        if why := self._watch.dead(now, self._out, waiting=bool(self._answers), blocked=self._blocked):
            self.end(Ended(why))
            return
        if self.accepted.done() and self._watch.ping_due(now):
            self._write(writing.PINGREQ)
            self._watch.pinged(now, self._out.put_bytes)
        self._tick = self._loop.call_later(self._watch.pause, self._look)

    def _broke(self, error: OSError) -> None:
        self.end(Ended(error.strerror or str(error) or type(error).__name__))
