"""A client of the standalone API: commands, the demo and tests use it for requests to GM over the bus."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Self

from halimede import topics
from halimede.bus.port import Bus
from halimede.bus.rpc import RpcClient, new_ticket
from halimede.cli.broker_address import START_IT, BrokerAddress
from halimede.errors import (
    BrokerNameError,
    DisconnectedError,
    HalimedeError,
    NoSubscriberError,
    NotAllowedError,
    RefusedError,
)
from halimede.messages import ApiReply, ApiRequest, Event, LogsReply, LogsRequest, NodeInfo, ResourceBody

#: seconds to connect to the broker, to wait for one reply, and to wait for a GM that is restarting
CONNECT_S = 5.0
ANSWER_S = 10.0
PATIENCE_S = 5.0
POLL_S = 0.2
#: the most items of one reply
MAX_ITEMS = 1000


Bodies = list[ResourceBody]
Events = list[Event]
Nodes = list[NodeInfo]


class ApiRefusedError(HalimedeError):
    """GM refused a request. ``reason`` is that of the ApiError; ``field`` names the invalid field, if there is one."""

    def __init__(self, reason: str, message: str, field: str = "") -> None:
        self.reason = reason
        self.field = field
        super().__init__(message)


class UnreachableError(HalimedeError):
    """The broker, GM or a node is not reachable."""


class NoBrokerError(UnreachableError):
    """The broker is not reachable."""


class NotLetInError(UnreachableError):
    """The broker refuses this client or its action, or this client does not trust the broker."""


class Client:
    """A connection to GM: ``async with Client(bus) as client``. It owns the bus."""

    def __init__(self, bus: Bus, broker: BrokerAddress | None = None, *, patience_s: float = PATIENCE_S) -> None:
        self.bus = bus
        self.where = str(broker or "the bus")
        self._broker = broker
        self._patience = patience_s
        self._name = bus.client_id
        self._api: RpcClient[ApiReply] = RpcClient(bus, topics.API_REPLY.at(client=self._name))
        self._logs: RpcClient[LogsReply] = RpcClient(bus, topics.LOGS_REPLY.at(client=self._name))

    @classmethod
    def to(cls, broker: BrokerAddress, *, patience_s: float = PATIENCE_S) -> Client:
        """Return a client of the MQTT broker at this address."""
        from halimede.bus.mqtt import MqttBus  # here, because help texts need no MQTT client

        bus = MqttBus(f"cli-{secrets.token_hex(8)}", broker.settings.for_control())
        return cls(bus, broker, patience_s=patience_s)

    async def __aenter__(self) -> Self:
        if self._broker:
            await check_reachable(self._broker)
        await self.bus.__aenter__()
        try:
            await self.bus.wait_connected(CONNECT_S)
            await self._api.start()
            await self._logs.start()
        except BaseException as error:
            await self.bus.__aexit__(None, None, None)
            if isinstance(error, DisconnectedError):
                raise no_broker(self.where, error) from error
            raise
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.bus.__aexit__(*error)

    async def apply(self, body: ResourceBody) -> tuple[str, ResourceBody]:
        """Store a resource; return the outcome (created, configured, unchanged) and the stored object."""
        reply = await self._ask(ApiRequest(op="apply", object=body))
        return reply.outcome, reply.object or {}

    async def try_apply(self, body: ResourceBody) -> str:
        """Return what ``apply`` would do with a resource, and change nothing."""
        return (await self._ask(ApiRequest(op="apply-dry-run", object=body))).outcome

    async def get(self, plural: str, name: str, namespace: str = "default") -> ResourceBody:
        """Return one resource with its status; raise ApiRefusedError (``NotFound``)."""
        reply = await self._ask(ApiRequest(op="get", plural=plural, namespace=namespace, name=name))
        return reply.object or {}

    async def list(self, plural: str, namespace: str = "") -> tuple[Bodies, bool]:
        """Return the resources of a kind (of all namespaces when none is given), and whether the list was cut."""
        reply = await self._ask(ApiRequest(op="list", plural=plural, namespace=namespace, limit=MAX_ITEMS))
        return reply.items, reply.truncated

    async def services_by_kind(self, namespace: str = "") -> tuple[dict[str, Bodies], bool]:
        """Return the services with workers by the short name of their kind (as tasks and commands use it).

        The second value is whether a list was cut.
        """
        from halimede.api import kind_of  # here, because help texts need no resources
        from halimede.api.placement import SERVICES

        services, is_cut = {}, False
        for plural in SERVICES:
            services[kind_of(plural).short_names[0]], kind_is_cut = await self.list(plural, namespace)
            is_cut = is_cut or kind_is_cut
        return services, is_cut

    async def services(self, namespace: str = "") -> Bodies:
        """Return the services with workers, of all kinds."""
        services, _ = await self.services_by_kind(namespace)
        return [body for bodies in services.values() for body in bodies]

    async def delete(self, plural: str, name: str, namespace: str = "default") -> None:
        """Request the deletion of a resource. It is deleted when its workers have stopped: see ``wait_until``."""
        await self._ask(ApiRequest(op="delete", plural=plural, namespace=namespace, name=name))

    async def events(self, *, after: int = 0, before: int = 0, about: str = "", limit: int = 500) -> Events:
        """Return events with a sequence above ``after`` and, unless that is 0, below ``before``.

        They are the newest ``limit`` of them, oldest first.
        """
        request = ApiRequest(op="events", after=after, before=before, about=about, limit=limit)
        return (await self._ask(request)).events

    async def nodes(self, name: str = "") -> Nodes:
        """Return the nodes that GM knows, or only the one of that name."""
        return (await self._ask(ApiRequest(op="nodes", name=name, limit=MAX_ITEMS))).nodes

    async def delete_node(self, name: str) -> None:
        """Remove a node that will not return."""
        await self._ask(ApiRequest(op="delete-node", name=name))

    async def drain(self, name: str) -> Any:
        """Keep a node empty from now on; return ``{"online": ..., "stranded": [{"service", "role"}, ...]}``."""
        return (await self._ask(ApiRequest(op="drain", name=name))).value

    async def uncordon(self, name: str) -> None:
        """Uncordon a drained node."""
        await self._ask(ApiRequest(op="uncordon", name=name))

    async def version(self) -> Any:
        """Return GM's version, with its epoch, its time and the state of its store."""
        return (await self._ask(ApiRequest(op="version"))).value

    async def logs(self, node: str, request: LogsRequest) -> LogsReply:
        """Return a part of a worker's log; raise UnreachableError when the node does not answer."""
        to = topics.LOGS_REQUEST.at(node=node, client=self._name)
        try:
            return (await self._logs.ask(to, request, timeout_s=ANSWER_S)).body
        except (NoSubscriberError, TimeoutError) as error:
            raise UnreachableError(f"node {node} does not answer: see `halimede nodes`") from error

    async def wait_until(
        self,
        done: Callable[[ResourceBody | None], bool],
        plural: str,
        name: str,
        namespace: str = "default",
        *,
        timeout_s: float,
    ) -> ResourceBody | None:
        """Wait until ``done`` holds for a resource (None: it was deleted) and return it; raise TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    body = await self.get(plural, name, namespace)
                except ApiRefusedError as error:
                    if error.reason != "NotFound":
                        raise
                    body = None
                if done(body):
                    return body
                await asyncio.sleep(POLL_S)

    async def _ask(self, request: ApiRequest) -> ApiReply:
        """Send a request to GM; while GM is not subscribed (it is restarting), retry for a short time."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._patience
        address, ticket = topics.API_REQUEST.at(client=self._name), new_ticket()
        while True:
            try:
                reply = (await self._api.ask(address, request, timeout_s=ANSWER_S, ticket=ticket)).body
                break
            except NoSubscriberError as error:
                reason = UnreachableError(
                    f"no global manager is connected to the broker at {self.where}. What to do: {START_IT}"
                )
                reason.__cause__ = error
            except DisconnectedError as error:
                reason = UnreachableError(f"the connection to the broker at {self.where} was lost ({error})")
                reason.__cause__ = error
            except RefusedError as error:
                raise NotLetInError(f"{error} at {self.where}: use the credentials of an operator") from error
            except TimeoutError as error:
                raise UnreachableError(
                    f"the global manager did not answer within {ANSWER_S:g} s: see its log, then try again"
                ) from error
            if loop.time() >= give_up:
                raise reason
            await asyncio.sleep(POLL_S)
        if reply.error:
            raise ApiRefusedError(reply.error.reason, reply.error.message, reply.error.field)
        return reply


def no_broker(where: str, cause: Exception) -> NoBrokerError:
    """Return the error for a broker that cannot be reached."""
    return NoBrokerError(f"no MQTT broker answers at {where}: {cause}. What to do: {START_IT}")


async def check_reachable(broker: BrokerAddress) -> None:
    """Raise at once if the broker is not reachable or refuses this client; the bus itself would retry forever."""
    from halimede.bus.mqtt import MqttBus  # as in ``to``

    try:
        async with asyncio.timeout(CONNECT_S):
            await MqttBus(f"cli-{secrets.token_hex(8)}", broker.settings.for_control()).check_reachable()
    except NotAllowedError as error:
        raise not_let_in(broker, error) from error
    except TimeoutError as error:
        raise no_broker(str(broker), TimeoutError(f"no answer within {CONNECT_S:g} s")) from error
    except (DisconnectedError, OSError) as error:
        cause = OSError("the connection is refused") if isinstance(error, ConnectionRefusedError) else error
        raise no_broker(str(broker), cause) from error


def not_let_in(broker: BrokerAddress, cause: Exception) -> NotLetInError:
    """Return the error for a broker that is reachable but refuses this client, or that this client does not trust."""
    if isinstance(cause, BrokerNameError):
        return NotLetInError(f"cannot connect to the broker at {broker}: {cause}")
    shown = broker.settings.credentials
    if shown:
        fix = f"check that {shown.folder} is the current folder of a user of this broker's site"
    else:
        fix = "give a user's folder with --credentials DIR or HALIMEDE_CREDENTIALS, such as site/operators/admin"
    return NotLetInError(f"cannot connect to the broker at {broker}: {cause}. What to do: {fix}")
