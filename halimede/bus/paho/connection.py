"""One MQTT v5 connection: paho's protocol code, driven by the asyncio loop instead of a separate thread.

Each connection has a new paho ``Client``. A reused one re-sends messages in flight by itself, and repeats a packet that
the broker refuses without limit. ``connect.py`` makes the clients.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage, error_string
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from halimede.bus.message import BARRED, DISCONNECT_WITH_WILL, SESSION_TAKEN_OVER, SUCCESS, Grants, Packet
from halimede.bus.mqtt5 import encoder
from halimede.bus.mqtt5.decoder import NO_PROPERTIES, properties, varint
from halimede.bus.mqtt5.keepalive import SILENCE_SHARE, TICK, TICK_SHARE
from halimede.bus.settings import MqttSettings
from halimede.bus.topic_filter import SHARE
from halimede.bus.transport import CLOSE_TIMEOUT, NO_PACKET_LIMIT, Deliver, Ended, PendingAck, Slots, Transport

log = structlog.get_logger()
#: no packet has this identifier
NOT_SENT = 0
#: properties of the broker's CONNACK, by their fields in ``Grants``
GRANTS = {
    "receive_maximum": "ReceiveMaximum",
    "max_packet": "MaximumPacketSize",
    "max_qos": "MaximumQoS",
    "retain": "RetainAvailable",
    "wildcards": "WildcardSubscriptionAvailable",
    "shared": "SharedSubscriptionAvailable",
}
#: the fields of ``Grants`` that are true or false
SWITCHES = frozenset({"retain", "wildcards", "shared"})


class PahoTransport(Transport):
    """A ``Transport`` over paho with an open socket. ``deliver``: gets the received messages.

    Attributes:
        accepted: set when the broker has accepted the client with its CONNACK.

    """

    def __init__(self, client: ReadingClient, settings: MqttSettings, deliver: Deliver) -> None:
        super().__init__(NO_PACKET_LIMIT, settings.window)
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._window = settings.window
        self._durable = bool(settings.session_s)
        #: seconds between two checks of the keepalive
        self._every = min(TICK, settings.keepalive_s * TICK_SHARE)
        self._deliver = deliver
        #: why the connection has to end; None: it continues
        self._why: Ended | None = None
        #: whether the event loop drives the client's socket
        self._attached = False
        self._tls: ssl.SSLSocket | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._attach()

    # --- methods of Transport ---------------------------------------------------------------------------------

    def publish(self, packet: Packet) -> PendingAck:
        """Queue a packet for the socket. At QoS 0 the answer is set when it is written."""
        payload = b"".join((packet.payload, packet.tail)) if len(packet.tail) else bytes(packet.payload)
        info = self._client.publish(packet.topic, payload, packet.qos, packet.retain, EncodedProperties(packet))
        return self._pending_ack(info.rc, info.mid)

    def subscribe(self, filter_: str, qos: int) -> PendingAck:
        """Subscribe; the broker sends retained messages every time, but none to a shared subscription."""
        # the standard requires this; Mosquitto 2.0.11 needs the option
        retained = SubscribeOptions.RETAIN_DO_NOT_SEND if filter_.startswith(SHARE) else 0
        options = SubscribeOptions(qos=qos, retainHandling=retained)
        return self._pending_ack(*self._client.subscribe(filter_, options=options))

    def unsubscribe(self, filter_: str) -> PendingAck:
        """Send an UNSUBSCRIBE; the future returns the broker's reason code."""
        return self._pending_ack(*self._client.unsubscribe(filter_))

    async def close(self, *, keep: bool = False) -> None:
        """Disconnect after queued packets, with reason 0x04, so that the broker publishes the will.

        Waits at most ``CLOSE_TIMEOUT`` seconds. ``keep``: do not end a session that outlives connections.
        """
        if not self.ended.done():
            properties = no_properties(PacketTypes.DISCONNECT)
            if self._durable and not keep:
                properties.SessionExpiryInterval = 0
            reason = ReasonCode(PacketTypes.DISCONNECT, identifier=DISCONNECT_WITH_WILL)
            self._client.disconnect(reason, properties)
            await asyncio.wait([self.ended], timeout=CLOSE_TIMEOUT)

    def pause_reading(self) -> None:
        """Leave what arrives in the socket, so that TCP slows the broker down."""
        if not self.paused and self._attached:
            super().pause_reading()
            self._client.paused = True
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        """Read on after a pause, first what TLS has decrypted before."""
        if self.paused and self._attached:
            super().resume_reading()
            self._client.paused = False
            self._loop.add_reader(self._fd, self._readable)
            self._loop.call_soon(self._read_decrypted)

    def abort(self, reason: str) -> None:
        """Close the socket at once, for a reason in words."""
        self.end(Ended(reason, explained=True))

    def end(self, ended: Ended) -> None:
        """Release the socket and fail all pending acknowledgements."""
        if self.ended.done():
            return
        client = self._client
        sock = client.socket()
        # paho would call these once more when it is garbage-collected
        client.on_socket_close = client.on_socket_register_write = client.on_socket_unregister_write = None
        client.on_disconnect = None
        self._detach()
        if sock:
            sock.close()
        super().end(ended)

    def _pending_ack(self, code: MQTTErrorCode, mid: int | None) -> PendingAck:
        """Return the pending answer to a packet, which fails at once if paho could not send it.

        ``code``: whether paho has sent or queued it. ``mid``: its packet identifier; None: it was not sent.
        """
        answer = self._expect(mid or NOT_SENT)
        if code != MQTTErrorCode.MQTT_ERR_SUCCESS:
            self._fail_answer(mid or NOT_SENT, f"not sent: {error_string(code)}")
        return answer

    # --- driving paho -----------------------------------------------------------------------------------------

    def _attach(self) -> None:
        """Let the event loop drive the client's socket."""
        client, sock = self._client, self._client.socket()
        if sock is None:
            self.end(Ended("the connection broke at once"))
            return
        self._fd, self._attached = sock.fileno(), True
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = client.on_unsubscribe = self._on_answers
        client.on_socket_close = lambda *_: self._detach()
        client.on_socket_register_write = lambda *_: self._loop.add_writer(self._fd, self._writable)
        client.on_socket_unregister_write = self._on_nothing_to_write
        self._loop.add_reader(self._fd, self._readable)
        if client.want_write():
            self._loop.add_writer(self._fd, self._writable)
        self._tick = self._loop.call_later(self._every, self._misc)

    def _detach(self) -> None:
        """Stop driving the client's socket."""
        if self._tick:
            self._tick.cancel()
        if self._attached:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._attached = False

    def _drive(self, step: Callable[[], MQTTErrorCode]) -> None:
        """Run one step of paho. An error at a malformed packet ends the connection, not the process."""
        try:
            code = step()
        except Exception as error:
            log.exception("MQTT client failed")
            self._why = self._why or Ended(f"{type(error).__name__} in the MQTT client")
        else:
            if code != MQTTErrorCode.MQTT_ERR_SUCCESS:
                self._why = self._why or Ended(error_string(code))
        if self._why:
            self.end(self._why)

    def _readable(self) -> None:
        """Let paho read one packet, and what TLS has decrypted."""
        self._drive(self._client.loop_read)
        self._read_decrypted()

    def _read_decrypted(self) -> None:
        """Read the bytes that TLS has already decrypted: they do not wake the selector."""
        while self._tls and not self.paused and not self.ended.done() and self._tls.pending():
            self._drive(self._client.loop_read)

    def _writable(self) -> None:
        """Let paho write on: the socket accepts bytes again."""
        self._drive(self._client.loop_write)

    def _misc(self) -> None:
        """Check paho's keepalive, again and again."""
        self._drive(self._client.loop_misc)
        if not self.ended.done():
            self._tick = self._loop.call_later(self._every, self._misc)

    # --- callbacks of paho (always within ``_drive``) ---------------------------------------------------------

    def _on_nothing_to_write(self, *_: Any) -> None:
        """Stop waiting until the socket accepts bytes."""
        self._loop.remove_writer(self._fd)

    def _on_connect(self, _: Client, __: Any, flags: ConnectFlags, reason: ReasonCode, properties: Any) -> None:
        """Take the broker's limits and set ``accepted``, or record why it refuses the client."""
        if reason.is_failure:
            refusal = f"the broker refused the connection: {reason}"
            self._why = Ended(refusal, barred=reason.value in BARRED, explained=True)
            return
        self.grants = grants(properties)
        self.max_packet = self.grants.max_packet or NO_PACKET_LIMIT
        self.resumed = flags.session_present
        self.slots = Slots(min(self._window, self.grants.receive_maximum))
        if not self.accepted.done():
            self.accepted.set_result(None)

    def _on_disconnect(self, _: Client, __: Any, flags: DisconnectFlags, reason: ReasonCode, ___: Any) -> None:
        """Record why the connection has ended."""
        by_broker = flags.is_disconnect_packet_from_server
        self._why = self._why or Ended(
            f"the broker said: {reason}" if by_broker else "the connection broke",
            taken_over=by_broker and reason.value == SESSION_TAKEN_OVER,
            explained=by_broker,
        )

    def _on_publish(self, _: Client, __: Any, mid: int, reason: ReasonCode, ___: Any) -> None:
        """Set the answer to the publish with the packet identifier ``mid``; at QoS 0 it was written."""
        self._answer(mid, reason.value)

    def _on_answers(self, _: Client, __: Any, mid: int, reasons: list[ReasonCode], ___: Any) -> None:
        """Set the answer to the SUBSCRIBE or UNSUBSCRIBE with the packet identifier ``mid``: each has one filter."""
        self._answer(mid, reasons[0].value if reasons else SUCCESS)

    def _on_message(self, _: Client, __: Any, message: MQTTMessage) -> None:
        """Deliver a received message."""
        response_topic, correlation, expiry_s, properties = self._client.message_properties
        packet = Packet(
            topic=message.topic,
            payload=bytes(message.payload) or self._client.payload,  # empty if ``ReadingClient`` has read it
            qos=message.qos,
            retain=message.retain,
            response_topic=response_topic,
            correlation=correlation,
            expiry_s=expiry_s,
            properties=properties,
            duplicate=message.dup,
        )
        acknowledge = partial(self._acknowledge, message.mid) if message.qos else None
        self._deliver(packet, acknowledge, message.mid)

    def _acknowledge(self, mid: int) -> bool:
        """Acknowledge a message to the broker; return whether the connection still exists."""
        if self.ended.done():
            return False
        self._client.ack(mid, 1)
        return True


def grants(properties: Any) -> Grants:
    """Return the limits in the properties of a CONNACK; missing ones have the protocol's default."""
    limits = {field: getattr(properties, name) for field, name in GRANTS.items() if hasattr(properties, name)}
    return Grants(**{field: bool(value) if field in SWITCHES else value for field, value in limits.items()})


def no_properties(kind: int) -> Properties:
    """Return an empty set of properties for a kind of packet (``PacketTypes``)."""
    return Properties(kind)  # type: ignore[no-untyped-call]


class EncodedProperties(Properties):
    """The properties of a packet for paho, encoded by our encoder: paho's own takes 0.2 ms for a single one."""

    _encoded: bytes

    def __init__(self, packet: Packet) -> None:
        object.__setattr__(self, "_encoded", encoder.packet_properties(packet))  # paho's attributes are not used

    def pack(self) -> bytes:
        """Return the length of the properties and the properties (MQTT v5, 2.2.2)."""
        return encoder.varint(len(self._encoded)) + self._encoded


class ReadingClient(Client):
    """paho's client with its own reader of the ``message_properties`` and the ``payload`` of a message.

    Any publisher chooses the properties, and paho's reader takes quadratic time over them (half a minute of a core for
    10^5 user properties, which fit into one small packet). It also ends the connection at U+FEFF, which brokers allow:
    a retained message could disconnect a client again and again.

    It also sends large packets without copying the rest at each step, and pings early and again: a slow connection has
    ``patience_s`` to bring an answer, and the broker gets packets of this client all the time.

    Three private methods are overridden, since paho 2 has no public way: it neither sends a ping on request nor changes
    the keepalive of an open connection, passes no view to the socket, and gives no message before it is decoded.
    """

    #: properties and payload of the message that is being received
    message_properties = NO_PROPERTIES
    payload = b""
    #: seconds for the answer to a ping
    patience_s: float
    #: whether nothing is read at present
    paused = False
    #: time of the first ping since the last received bytes; 0: none
    _first_ping = 0.0

    def _packet_queue(self, command: int, packet: Any, mid: int, qos: int, info: Any = None) -> MQTTErrorCode:
        # paho sends ``packet[done:]`` after each partial write: slicing a view does not copy
        return super()._packet_queue(command, memoryview(packet), mid, qos, info)  # type: ignore[arg-type]  # it only slices

    def _check_keepalive(self) -> None:
        # paho pings after a whole keepalive of silence only, and once: a slow line would seem dead to the broker. It
        # gives up a keepalive after ``_ping_t``, which is set here only when nothing has come for ``patience_s``
        now, self._ping_t = time.monotonic(), 0
        if self.paused:  # the answer to a ping waits in the socket, but the broker must hear of this client
            self._last_bytes_received = now
        if self._last_bytes_received > self._first_ping:
            self._first_ping = 0.0
        if self._first_ping and now - self._first_ping >= self.patience_s:
            self._ping_t = self._first_ping - self._keepalive
            return
        silent_since = self._last_msg_out if self._first_ping else min(self._last_msg_out, self._last_bytes_received)
        if now - silent_since >= self._keepalive * SILENCE_SHARE:
            self._send_pingreq()
            self._ping_t, self._first_ping = 0, self._first_ping or now

    def _handle_publish(self) -> MQTTErrorCode:
        # if paho stops calling this method, its own reader works as before
        packet: Any = self._in_packet["packet"]
        start = _start(packet, qos=self._in_packet["command"] >> 1 & 3)
        length, first = varint(packet, start)
        body = first + length
        self.message_properties = properties(bytes(packet[first:body])) if length else NO_PROPERTIES
        with memoryview(packet) as view:
            self.payload = bytes(view[body:])
        packet[start:] = b"\0"  # leave no data for paho, which would copy it three times
        return super()._handle_publish()


def _start(packet: Any, *, qos: int) -> int:
    """Return the position of the length of the properties: after topic and packet identifier."""
    return 2 + int.from_bytes(packet[:2]) + (2 if qos else 0)
