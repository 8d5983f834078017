"""libmosquitto in C, called through ctypes: what goes through this broker at best. MQTT v5, QoS 1, an echo."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_int, c_void_p
from urllib.parse import urlsplit

from bench.peers import peer

REQUEST, REPLY = b"bench/libmosquitto/request", b"bench/libmosquitto/reply"
#: options of mosquitto.h
PROTOCOL_VERSION, TCP_NODELAY = 1, 11
V5 = 5
#: seconds; milliseconds of one turn
KEEPALIVE, TURN_MS = 600, 100


class Message(ctypes.Structure):
    """``struct mosquitto_message``."""

    _fields_ = (
        ("mid", c_int),
        ("topic", c_char_p),
        ("payload", c_void_p),
        ("payloadlen", c_int),
        ("qos", c_int),
        ("retain", c_bool),
    )


ON_MESSAGE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, POINTER(Message))
ON_SUBSCRIBE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int, c_int, POINTER(c_int))


class Client:
    """One connection; ``heard`` gets each message's bytes from ``turn``, which reads and writes."""

    def __init__(
        self, url: str, topic: bytes, heard: Callable[[bytes], None], read: Callable[[Message], bytes]
    ) -> None:
        self._library = library = ctypes.CDLL("libmosquitto.so.1")
        library.mosquitto_new.restype = c_void_p
        library.mosquitto_lib_init()
        self._handle = c_void_p(library.mosquitto_new(None, c_bool(1), None))
        library.mosquitto_int_option(self._handle, PROTOCOL_VERSION, V5)
        library.mosquitto_int_option(self._handle, TCP_NODELAY, 1)
        self._publish = library.mosquitto_publish
        self._publish.argtypes = (c_void_p, c_void_p, c_char_p, c_int, c_char_p, c_int, c_bool)
        self._loop = library.mosquitto_loop
        self._loop.argtypes = (c_void_p, c_int, c_int)
        self._subscribed = False
        self._heard = heard
        # callbacks must outlive the connection
        self._taken: list[bytes] = []
        self._on_message = ON_MESSAGE(lambda _handle, _user, message: self._taken.append(read(message.contents)))
        self._granted = ON_SUBSCRIBE(lambda *_: setattr(self, "_subscribed", True))
        library.mosquitto_message_callback_set(self._handle, self._on_message)
        library.mosquitto_subscribe_callback_set(self._handle, self._granted)
        broker = urlsplit(url)
        _check(
            library.mosquitto_connect(self._handle, str(broker.hostname).encode(), c_int(broker.port or 0), KEEPALIVE)
        )
        _check(library.mosquitto_subscribe(self._handle, None, topic, 1))
        while not self._subscribed:
            self.turn()

    def publish(self, topic: bytes, data: bytes) -> None:
        """Hand a message to the library."""
        _check(self._publish(self._handle, None, topic, len(data), data, 1, False))  # noqa: FBT003  # C has no names

    def turn(self) -> None:
        """Wait for something to do, and do it. What is published outside of callbacks is written at once."""
        _check(self._loop(self._handle, TURN_MS, 1))
        taken, self._taken = self._taken, []
        for data in taken:
            self._heard(data)


def _check(code: int) -> None:
    if code:
        raise SystemExit(f"libmosquitto says {code}")


def server(broker: str) -> None:
    """Echo."""

    def read(message: Message) -> bytes:
        return peer.answer(memoryview((ctypes.c_char * message.payloadlen).from_address(message.payload)).cast("B"))

    echoing = Client(broker, REQUEST, lambda answer: echoing.publish(REPLY, answer), read)
    peer.end_with_input()
    peer.listening()
    while True:
        echoing.turn()


def client(broker: str) -> None:
    """Send and check."""
    connection = Client(
        broker,
        REPLY,
        lambda answer: pump.answered(answer),  # noqa: PLW0108  # it comes later
        lambda message: ctypes.string_at(message.payload, message.payloadlen),
    )
    pump = peer.Pump(lambda data: connection.publish(REQUEST, data))
    peer.pumped(pump, connection.turn)
