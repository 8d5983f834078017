"""One MQTT v5 connection: packets in and out of a socket on the event loop.

All writes of one iteration of the event loop are sent in one call. The payload of a large message is a view of the
receive buffer.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial
from time import monotonic

from halimede.bus.message import BARRED, DISCONNECT_WITH_WILL, FAILURE, SESSION_TAKEN_OVER, SUCCESS, Packet, name
from halimede.bus.mqtt5 import decoder, encoder
from halimede.bus.mqtt5.buffers import ReceiveBuffer, SendBuffer
from halimede.bus.mqtt5.decoder import PUBACK, PUBLISH, Acknowledged, ConnAck, Disconnect, MalformedError
from halimede.bus.mqtt5.keepalive import KeepAlive
from halimede.bus.settings import MqttSettings
from halimede.bus.topic_filter import SHARE
from halimede.bus.transport import CLOSE_TIMEOUT, NO_PACKET_LIMIT, Deliver, Ended, PendingAck, Slots, Transport
from halimede.errors import DisconnectedError, cause_of

#: the highest packet identifier
LAST_IDENTIFIER = 65_535
#: reads before other tasks on the loop run
READS = 16


class Mqtt5Transport(Transport):
    """A ``Transport`` over an open, non-blocking socket. ``deliver``: gets the received messages.

    Attributes:
        accepted: set when the broker has accepted the client with its CONNACK.

    """

    def __init__(self, sock: socket.socket, settings: MqttSettings, deliver: Deliver) -> None:
        super().__init__(NO_PACKET_LIMIT, settings.window)
        self._loop = asyncio.get_running_loop()
        self.accepted: asyncio.Future[None] = self._loop.create_future()
        self._sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._settings = settings
        self._deliver = deliver
        self._watch = KeepAlive(monotonic(), settings.keepalive_s)
        self._in = ReceiveBuffer(settings.max_packet)
        self._out = SendBuffer(sock, self._loop, self._watch, self._broke)
        #: the last packet identifier in use
        self._last = 0
        #: QoS 0 messages that were not written yet
        self._unsent: set[PendingAck] = set()
        self._tick: asyncio.TimerHandle | None = None

    def begin(self, hello: bytes) -> None:
        """Send an encoded CONNECT and start reading; called once."""
        self._loop.add_reader(self._sock.fileno(), self._readable)
        self._check_keepalive()
        self._out.put(hello)

    # --- methods of Transport -------------------------------------------------------------------------------------

    def publish(self, packet: Packet) -> PendingAck:
        """Write a packet. At QoS 0 the answer is set when it is written."""
        payload, tail = packet.payload, packet.tail
        identifier = self._identifier() if packet.qos else 0
        head = encoder.publish(packet, identifier, len(payload) + len(tail))
        answer = PendingAck(loop=self._loop)
        sent = None
        if self.ended.done():
            self._settle(answer, DisconnectedError(f"the connection was lost: {self.ended.result().reason}"))
            return answer
        if identifier:
            self._answers[identifier] = answer
        else:
            self._unsent.add(answer)
            sent = partial(self._set_written, answer)
        if len(payload) < encoder.JOINED:
            self._out.put(head + payload, tail, sent=sent)
        else:
            self._out.put(head, payload, tail, sent=sent)
        return answer

    def subscribe(self, filter_: str, qos: int) -> PendingAck:
        """Subscribe; the broker sends retained messages every time, but none to a shared subscription."""
        identifier = self._identifier()
        retained = not filter_.startswith(SHARE)
        return self._request(identifier, encoder.subscribe(identifier, filter_, qos, retained=retained))

    def unsubscribe(self, filter_: str) -> PendingAck:
        """Send an UNSUBSCRIBE; the future returns the broker's reason code."""
        identifier = self._identifier()
        return self._request(identifier, encoder.unsubscribe(identifier, filter_))

    async def close(self, *, keep: bool = False) -> None:
        """Disconnect after pending writes, with reason 0x04, so that the broker publishes the will.

        Waits at most ``CLOSE_TIMEOUT`` seconds. ``keep``: do not end a session that outlives connections.
        """
        if self.ended.done():
            return
        end_session = bool(self._settings.session_s) and not keep
        self._out.put(encoder.disconnect(DISCONNECT_WITH_WILL, end_session=end_session))
        await asyncio.wait([self.ended], timeout=CLOSE_TIMEOUT)

    def pause_reading(self) -> None:
        """Leave what arrives in the socket, so that TCP slows the broker down."""
        if not self.paused and not self.ended.done():
            super().pause_reading()
            self._loop.remove_reader(self._sock.fileno())

    def resume_reading(self) -> None:
        """Read on after a pause, first what TLS has decrypted before."""
        if self.paused and not self.ended.done():
            super().resume_reading()
            self._loop.add_reader(self._sock.fileno(), self._readable)
            # bytes that TLS has already decrypted do not wake the selector
            self._loop.call_soon(self._more)

    def abort(self, reason: str) -> None:
        """Close the socket at once, for a reason in words."""
        self.end(Ended(reason, explained=True))

    def end(self, ended: Ended) -> None:
        """Close the socket and fail all pending acknowledgements."""
        if self.ended.done():
            return
        if self._tick:
            self._tick.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._out.close()
        self._sock.close()
        super().end(ended)
        for answer in self._unsent:
            self._settle(answer, DisconnectedError(f"the connection was lost: {ended.reason}"))
        self._unsent.clear()

    def _request(self, identifier: int, packet: bytes) -> PendingAck:
        """Send a packet that the broker answers; return the pending answer."""
        answer = self._expect(identifier)
        self._out.put(packet)
        return answer

    def _identifier(self) -> int:
        """Return a free packet identifier; the time of its answer counts from now, if no earlier packet waits.

        Raises DisconnectedError if all identifiers are in use.
        """
        for _ in range(LAST_IDENTIFIER):
            self._last = self._last % LAST_IDENTIFIER + 1
            if self._last not in self._answers:
                if not self._answers:  # otherwise the time counts from an earlier packet
                    self._watch.waiting_since = monotonic()
                return self._last
        raise DisconnectedError(f"the broker has answered none of {LAST_IDENTIFIER} packets")

    def _set_written(self, answer: PendingAck) -> None:
        """Set the answer to a QoS 0 message that was written."""
        self._unsent.discard(answer)
        self._settle(answer, SUCCESS)

    # --- receiving ------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        """Receive bytes, and handle each complete packet; end the connection for an error."""
        sock, received = self._sock, self._in
        try:
            for _ in range(READS):
                free = received.free
                count = sock.recv_into(free)
                if not count:
                    self.end(Ended("the connection broke"))
                    return
                self._watch.alive = monotonic()
                packets, malformed = received.take_packets(count)
                for first, body in packets:
                    self._handle(first, body)
                    if self.ended.done():
                        return
                if malformed:
                    raise malformed
                # bytes that TLS has already decrypted do not wake the selector
                if self.paused or (count < len(free) and not self._tls):
                    return
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except MalformedError as error:
            self._out.put(encoder.disconnect(error.code))
            self._out.flush()
            self.end(Ended(f"the broker sent invalid MQTT v5: {error}"))
        except OSError as error:
            self._broke(cause_of(error))
        except BaseException as error:
            # later packets of the same read would wait here undelivered for as long as the connection lasts
            self.end(Ended(f"a message was not accepted: {type(error).__name__}"))
            raise
        else:
            if self._tls and self._sock.pending():  # type: ignore[attr-defined]  # it is an SSLSocket
                self._loop.call_soon(self._more)

    def _more(self) -> None:
        """Read bytes for which the selector does not wake."""
        if not self.paused and not self.ended.done():
            self._readable()

    def _handle(self, first: int, body: bytes | memoryview) -> None:
        """Handle one packet: its first byte, and all that follows its length. Raises MalformedError."""
        if first & 0xF0 == PUBLISH and self.accepted.done():
            packet, identifier = decoder.publish(first, body)
            acknowledge = partial(self._out.put, encoder.PUBACK + identifier.to_bytes(2)) if identifier else None
            self._deliver(packet, acknowledge, identifier)
        elif first == PUBACK and len(body) == 2:
            self._watch.answered = self._watch.alive
            self._settle(self._answers.pop(body[0] << 8 | body[1], None), SUCCESS)
        else:
            self._handle_other(first, body)

    def _handle_other(self, first: int, body: bytes | memoryview) -> None:
        """Handle a packet of a less frequent kind, or refuse one at the wrong time. Raises MalformedError."""
        if first & 0xF0 == PUBLISH:
            raise MalformedError("a Publish at the wrong time", decoder.PROTOCOL_ERROR)
        packet = decoder.read(first, body)
        if isinstance(packet, Acknowledged):
            self._watch.answered = self._watch.alive
            self._settle(self._answers.pop(packet.identifier, None), packet.reason)
        elif isinstance(packet, ConnAck) and not self.accepted.done():
            self._handle_connack(packet)
        elif isinstance(packet, decoder.Pong):
            self._watch.record_pong()
        elif isinstance(packet, Disconnect):
            text = name(packet.reason, packet.reason_string)
            taken_over = packet.reason == SESSION_TAKEN_OVER
            self.end(Ended(f"the broker said: {text}", taken_over=taken_over, explained=True))
        else:
            raise MalformedError(f"a {type(packet).__name__} at the wrong time", decoder.PROTOCOL_ERROR)

    def _handle_connack(self, connack: ConnAck) -> None:
        """Take the broker's limits and set ``accepted``, or end the connection that it refuses."""
        if connack.reason >= FAILURE:
            text = name(connack.reason, connack.reason_string)
            refusal = f"the broker refused the connection: {text}"
            self.end(Ended(refusal, barred=connack.reason in BARRED, explained=True))
            return
        self.grants, self.resumed = connack.grants, connack.resumed
        self.max_packet = connack.grants.max_packet or NO_PACKET_LIMIT
        if connack.keepalive_s:
            self._watch.shorten(connack.keepalive_s)
        self.slots = Slots(min(self._settings.window, connack.grants.receive_maximum))
        self.accepted.set_result(None)

    # --- keepalive ------------------------------------------------------------------------------------------------

    def _check_keepalive(self) -> None:
        """Ping a silent broker, and end the connection if it does not answer."""
        now = monotonic()
        if self.paused:
            self._watch.record_pause(now)
        if why := self._watch.why_dead(now, self._out, waiting=bool(self._answers), blocked=self._out.blocked):
            self.end(Ended(why))
            return
        if self.accepted.done() and self._watch.must_ping(now):
            self._out.put(encoder.PINGREQ)
            self._watch.record_ping(now, self._out.put_bytes)
        self._tick = self._loop.call_later(self._watch.pause, self._check_keepalive)

    def _broke(self, reason: str) -> None:
        """End the connection for a reason in words."""
        self.end(Ended(reason))
