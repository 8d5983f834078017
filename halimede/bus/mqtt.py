"""The bus over a real MQTT v5 broker: ``MqttBus``, with one of two MQTT clients."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from halimede.bus.addresses import SocketAddress, connect_to_any
from halimede.bus.connection import ReconnectingBus
from halimede.bus.message import Announce, Packet
from halimede.bus.settings import MqttSettings
from halimede.bus.transport import Deliver, Transport

__all__ = ["MqttBus", "MqttSettings"]

#: opens a connection to one address: with settings, client id, will (None: without), and the receiver of messages
Connect = Callable[[SocketAddress, MqttSettings, str, Packet | None, Deliver], Awaitable[Transport]]


class MqttBus(ReconnectingBus):
    """A client of an MQTT v5 broker, a ``Bus``. The settings choose between paho-mqtt and halimede's own client.

    Unless the settings set ``session_s``, sessions are clean (expiry 0): the broker does not send unacknowledged
    messages of a broken connection again. Messages that had arrived are still handled. The requester owns deadline and
    retry.
    """

    def __init__(self, client_id: str, settings: MqttSettings | str, announce: Announce | None = None) -> None:
        """Prepare a client. ``settings`` may be an address in the form of ``MqttSettings.from_url``.

        Raises InvalidFieldError for an invalid address or client id.
        """
        settings = MqttSettings.from_url(settings) if isinstance(settings, str) else settings
        super().__init__(
            client_id,
            announce,
            where=settings.where,
            chance=random.SystemRandom(),
            prefix=settings.prefix,
            durable=bool(settings.session_s),
            receive_maximum=settings.receive_maximum,
        )
        self._settings = settings

    @property
    def certificate_end(self) -> float | None:
        """The Unix time at which this client's or the broker's certificate ends, whichever is first; None: unknown."""
        return self._settings.certificate_end(self.stats.certificate_end)

    async def check_reachable(self) -> None:
        """Connect once and disconnect: a command uses it to check that it can reach the broker.

        Raises OSError, TimeoutError, DisconnectedError, or NotAllowedError if the broker refuses this client.
        """
        link = await self._open(None, lambda *_: None)
        await link.close()
        link.abort("closed")

    async def _open(self, will: Packet | None, deliver: Deliver) -> Transport:
        """Connect to the first address of the settings that accepts."""
        # import only the client in use, to save memory
        connect: Connect
        if self._settings.client == "lean":
            from halimede.bus.mqtt5.connect import connect  # noqa: PLC0415
        else:
            from halimede.bus.paho.connect import connect  # noqa: PLC0415

        async def connect_to(address: SocketAddress) -> Transport:
            link = await connect(address, self._settings, self.session_id, will, deliver)
            link.where = str(address.endpoint)
            return link

        return await connect_to_any(self._settings, connect_to)
