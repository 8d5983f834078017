"""The bridge as a whole: two connections, what is received from the one, and what is published to the other.

The system's broker fills ``SystemView``, and each change marks a device. The loop of ``HomeAssistantBridge`` computes
the marked devices and gives them to ``DiscoveryPublisher``. No handler waits for Home Assistant's broker, so a slow one
delays nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from halimede.bridges.homeassistant.claim import NameClaim
from halimede.bridges.homeassistant.devices import SYSTEM, DeviceKey, all_devices, camera_key, device_of
from halimede.bridges.homeassistant.discovery import DiscoveryTopics
from halimede.bridges.homeassistant.occupancy import OccupancyKey, event_id, event_payload
from halimede.bridges.homeassistant.operator_side import OperatorSide
from halimede.bridges.homeassistant.published_record import read_record
from halimede.bridges.homeassistant.publisher import DiscoveryPublisher
from halimede.bridges.homeassistant.system_listener import SystemListener
from halimede.bridges.homeassistant.system_view import SystemView
from halimede.bus import Bus
from halimede.cli.client import Client
from halimede.errors import first_error
from halimede.messages import OccupancyEvent

log = structlog.get_logger()

#: least seconds between two computations of devices
RENDER_S = 0.02
#: seconds between two comparisons of counts and connections
CHECK_S = 1.0
#: seconds without a connection to the system after which its entities have no state
AWAY_S = 5.0
#: the name in the counts of what did not arrive: messages of the system, and commands, that the bridge had no space for
NOT_READ = "not_read"


class HomeAssistantBridge:
    """Connects a halimede system with Home Assistant: ``run`` until cancelled.

    Args:
        system_bus, target_bus: connections to both brokers; the caller enters them. The will of ``target_bus`` is
            that of ``publisher.availability_will``.
        topics: the topics at Home Assistant's broker.
        client: a connection with an operator's rights, entered by the caller; None: the bridge only reads.

    """

    def __init__(self, system_bus: Bus, target_bus: Bus, topics: DiscoveryTopics, client: Client | None = None) -> None:
        self._system_bus = system_bus
        self._target_bus = target_bus
        self._topics = topics
        self._client = client
        #: what the system has sent
        self.view = SystemView()
        #: None before ``run`` has read the record
        self.publisher: DiscoveryPublisher | None = None
        self._dirty: dict[DeviceKey, None] = {SYSTEM: None}
        self._changed = asyncio.Event()
        #: counts at the last comparison
        self._counts: Mapping[str, int] = {}
        #: version of the occupancy sensors in the record
        self._sensors_version = 0

    async def run(self) -> None:
        """Run until cancelled. Raises HalimedeError if a broker refuses it, or there is another bridge of its name."""
        claim = NameClaim(self._target_bus, self._topics)
        await claim.ask()
        record = await read_record(self._target_bus, self._topics)
        self.view.occupancy.restore(record.sensors)
        self.publisher = publisher = DiscoveryPublisher(self._target_bus, self._topics, record)
        await publisher.start()
        listener = SystemListener(
            self._system_bus, self.view, touch=self.touch, settled=self._settle, on_event=self._post_event
        )
        with first_error():
            async with asyncio.TaskGroup() as group:
                if self._client:
                    operator = OperatorSide(
                        self._target_bus, self._client, self._topics, self.view, touch=self.touch, failed=self._report
                    )
                    await operator.start()
                    group.create_task(operator.run(), name="operator side")
                await listener.start()
                group.create_task(listener.run(), name="system listener")
                group.create_task(publisher.run(), name="discovery publisher")
                group.create_task(claim.watch(), name="name claim")
                group.create_task(self._watch(publisher), name="counts")
                await self._render(publisher)

    def touch(self, key: DeviceKey) -> None:
        """Mark a device as changed."""
        self._dirty[key] = None
        self._changed.set()

    async def _render(self, publisher: DiscoveryPublisher) -> None:
        """Compute the devices that have changed, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            keys, self._dirty = self._dirty, {}
            for key in keys:
                self._update(publisher, key)
            if self._sensors_version != self.view.occupancy.version:
                self._sensors_version = self.view.occupancy.version
                publisher.set_sensors(self.view.occupancy.sensors)
            await asyncio.sleep(RENDER_S)

    def _update(self, publisher: DiscoveryPublisher, key: DeviceKey) -> None:
        """Compute a device, and set what Home Assistant should have of it."""
        device = device_of(self.view, key, self._counts)
        if device:
            publisher.set_device(device)
        else:
            publisher.remove_device(key.id)

    def _settle(self) -> None:
        """Remove what the last bridge has published and no longer exists, and compute all devices again.

        It is called when all of the system has arrived.
        """
        if self.publisher is None:
            return
        keys = list(all_devices(self.view))
        self.publisher.remove_absent({key.id for key in keys})
        for key in keys:
            self.touch(key)

    def _post_event(self, key: OccupancyKey, event: OccupancyEvent) -> None:
        """Publish an occupancy event as an event of its camera's device."""
        if self.publisher is None:
            return
        device = camera_key(key.namespace, key.camera)
        topic = self._topics.state(device.id, event_id(key.service))
        if not self.publisher.has_events(topic):
            self._update(self.publisher, device)  # its document goes before the event
        self.publisher.post_event(device.id, topic, event_payload(key, event))

    def _report(self, problem: str) -> None:
        """Show a problem in the device of the system."""
        self.view.problem = problem
        self.touch(SYSTEM)

    async def _watch(self, publisher: DiscoveryPublisher) -> None:
        """Show changed counts, refused messages, and whether there is a connection to the system, until cancelled."""
        loop, connected_at = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        while True:
            if self._system_bus.connected:
                connected_at = loop.time()
            publisher.set_available(available=loop.time() - connected_at < AWAY_S)
            stats, commands = self._system_bus.stats, self._target_bus.stats
            not_read = stats.dropped + stats.rejected + commands.dropped + self.view.ignored
            counts = {**publisher.undelivered, NOT_READ: not_read}
            if publisher.refusal:
                self._report(publisher.refusal)
                publisher.refusal = ""
            if counts != self._counts:
                self._counts = counts
                self.touch(SYSTEM)
            await asyncio.sleep(CHECK_S)
