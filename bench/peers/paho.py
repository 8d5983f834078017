"""paho-mqtt as fast as it goes: TCP_NODELAY, one thread that reads, writes and calls back. MQTT v5, QoS 1, an echo."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from bench.peers import peer

REQUEST, REPLY = "bench/paho/request", "bench/paho/reply"
#: seconds
KEEPALIVE, TURN = 600, 0.1
#: messages of QoS 1 under way
INFLIGHT = 100


def connected(url: str, topic: str) -> Client:
    """Return a client that is connected and subscribed; its caller loops."""
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
    client.max_inflight_messages_set(INFLIGHT)
    subscribed: list[bool] = []

    def opened(_client: Client, _user: Any, connection: Any) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    client.on_socket_open = opened
    client.on_subscribe = lambda *_: subscribed.append(True)
    broker = urlsplit(url)
    client.connect(str(broker.hostname), broker.port or 0, KEEPALIVE)
    while not client.is_connected():
        client.loop(TURN)
    client.subscribe(topic, 1)
    while not subscribed:
        client.loop(TURN)
    return client


def server(broker: str) -> None:
    """Echo."""

    def heard(client: Client, _user: Any, message: MQTTMessage) -> None:
        client.publish(REPLY, peer.answer(message.payload), 1)

    echoing = connected(broker, REQUEST)
    echoing.on_message = heard
    peer.end_with_input()
    peer.listening()
    while True:
        echoing.loop(TURN)


def client(broker: str) -> None:
    """Send and check."""
    asking = connected(broker, REPLY)
    pump = peer.Pump(lambda data: asking.publish(REQUEST, data, 1))
    asking.on_message = lambda _client, _user, message: pump.answered(bytes(message.payload))
    peer.pumped(pump, lambda: asking.loop(TURN))
