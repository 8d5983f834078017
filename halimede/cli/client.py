"""``Client``: requests to GM over the bus, for commands, the demo and tests.

GM is the global manager, which keeps the resources. Each request waits for its reply; errors are HalimedeErrors.
"""

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

#: seconds to connect to the broker
CONNECT_S = 5.0
#: seconds to wait for one reply
ANSWER_S = 10.0
#: seconds to wait for a GM that is restarting
PATIENCE_S = 5.0
#: seconds between two attempts
POLL_S = 0.2
#: most items of one reply
MAX_ITEMS = 1000


# ``list`` is a method of the client
Bodies = list[ResourceBody]
Events = list[Event]
Nodes = list[NodeInfo]


class ApiRefusedError(HalimedeError):
    """GM refused a request. ``reason`` is that of the ``ApiError``, such as ``NotFound``.

    ``field`` names the invalid field; empty: the reason is no field.
    """

    def __init__(self, reason: str, message: str, field: str = "") -> None:
        self.reason = reason
        self.field = field
        super().__init__(message)


class UnreachableError(HalimedeError):
    """The broker, GM or a node does not answer."""


class NoBrokerError(UnreachableError):
    """The broker does not answer."""


class NotLetInError(UnreachableError):
    """The broker refuses this client or its action, or this client does not trust the broker."""


class Client:
    """A connection to GM: ``async with Client(bus) as client``, which also opens and closes the bus.

    Opening raises NoBrokerError and NotLetInError. ``broker``: where ``bus`` connects to; None: unknown, so it is not
    checked before. ``patience_s``: seconds for which a request waits for a GM that is restarting. ``where`` names the
    broker for people. All requests to GM raise UnreachableError if GM does not answer, NotLetInError if the broker
    refuses them, and ApiRefusedError if GM refuses them.
    """

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
        """Return a client, not yet connected, of the MQTT broker at this address."""
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
        """Store a resource; return the outcome (created, configured or unchanged) and the stored resource."""
        reply = await self._ask(ApiRequest(op="apply", object=body))
        return reply.outcome, reply.object or {}

    async def try_apply(self, body: ResourceBody) -> str:
        """Return the outcome that ``apply`` would have for a resource, and change nothing."""
        return (await self._ask(ApiRequest(op="apply-dry-run", object=body))).outcome

    async def get(self, plural: str, name: str, namespace: str = "default") -> ResourceBody:
        """Return one resource with its status. Raises ApiRefusedError (``NotFound``) if there is none."""
        return (await self._ask(ApiRequest(op="get", plural=plural, namespace=namespace, name=name))).object or {}

    async def list(self, plural: str, namespace: str = "") -> tuple[Bodies, bool]:
        """Return the resources of a kind, and whether the list was cut at ``MAX_ITEMS`` or the size of a reply.

        An empty namespace means all of them.
        """
        reply = await self._ask(ApiRequest(op="list", plural=plural, namespace=namespace, limit=MAX_ITEMS))
        return reply.items, reply.truncated

    async def services_by_kind(self, namespace: str = "") -> tuple[dict[str, Bodies], bool]:
        """Return the services with workers, by the short name of their kind such as ``ji``, and whether a list was cut.

        A list is cut as in ``list``. An empty namespace means all of them.
        """
        from halimede.api import kind_of  # here, because help texts need no resources
        from halimede.api.placement import SERVICES

        services, is_cut = {}, False
        for plural in SERVICES:
            services[kind_of(plural).short_names[0]], kind_is_cut = await self.list(plural, namespace)
            is_cut = is_cut or kind_is_cut
        return services, is_cut

    async def services(self, namespace: str = "") -> Bodies:
        """Return the services with workers of all kinds, cut as in ``list``. An empty namespace means all of them."""
        services, _ = await self.services_by_kind(namespace)
        return [body for bodies in services.values() for body in bodies]

    async def delete(self, plural: str, name: str, namespace: str = "default") -> None:
        """Request the deletion of a resource. GM deletes it when its workers have stopped, which is later."""
        await self._ask(ApiRequest(op="delete", plural=plural, namespace=namespace, name=name))

    async def events(self, *, after: int = 0, before: int = 0, about: str = "", limit: int = 500) -> Events:
        """Return the newest ``limit`` events between two sequence numbers, the oldest of them first.

        Both numbers are exclusive; ``before`` 0: no end. ``about``: only events of this resource or node; empty: all.
        """
        request = ApiRequest(op="events", after=after, before=before, about=about, limit=limit)
        return (await self._ask(request)).events

    async def nodes(self, name: str = "") -> Nodes:
        """Return the nodes that GM knows, or only the node ``name`` (none if GM does not know it); empty: all.

        At most ``MAX_ITEMS``, and as many as fit into a reply.
        """
        return (await self._ask(ApiRequest(op="nodes", name=name, limit=MAX_ITEMS))).nodes

    async def delete_node(self, name: str) -> None:
        """Let GM forget a node that will not return. Raises ApiRefusedError for a node that is online or unknown."""
        await self._ask(ApiRequest(op="delete-node", name=name))

    async def drain(self, name: str) -> Any:
        """Keep a node empty from now on; return ``{"online": ..., "stranded": [{"service", "role"}, ...]}``.

        ``online``: whether the node is; ``stranded``: its workers that can run on no other node.
        """
        return (await self._ask(ApiRequest(op="drain", name=name))).value

    async def uncordon(self, name: str) -> None:
        """Let GM use a drained node again."""
        await self._ask(ApiRequest(op="uncordon", name=name))

    async def version(self) -> Any:
        """Return what GM reports of itself, as plain data: the fields of ``ManagerFacts``."""
        return (await self._ask(ApiRequest(op="version"))).value

    async def logs(self, node: str, request: LogsRequest) -> LogsReply:
        """Return a part of a worker's log, from its node.

        Raises UnreachableError if the node does not answer, and BusError if the broker refuses the request or is away.
        """
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
        """Wait until ``done`` is true of a resource (None: it does not exist), and return the resource.

        Raises TimeoutError after ``timeout_s``.
        """
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
        """Return GM's reply to a request; retry for ``patience_s`` while GM restarts or the connection is down."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._patience
        address, ticket = topics.API_REQUEST.at(client=self._name), new_ticket()
        while True:
            try:
                reply = (await self._api.ask(address, request, timeout_s=ANSWER_S, ticket=ticket)).body
                break
            except NoSubscriberError as error:
                if loop.time() >= give_up:
                    text = f"no global manager is connected to the broker at {self.where}. What to do: {START_IT}"
                    raise UnreachableError(text) from error
            except DisconnectedError as error:
                if loop.time() >= give_up:
                    text = f"the connection to the broker at {self.where} was lost ({error})"
                    raise UnreachableError(text) from error
            except RefusedError as error:
                raise NotLetInError(f"{error} at {self.where}: use the credentials of an operator") from error
            except TimeoutError as error:
                raise UnreachableError(
                    f"the global manager did not answer within {ANSWER_S:g} s: see its log, then try again"
                ) from error
            await asyncio.sleep(POLL_S)
        if reply.error:
            raise ApiRefusedError(reply.error.reason, reply.error.message, reply.error.field)
        return reply


def no_broker(where: str, cause: Exception) -> NoBrokerError:
    """Return the error of a broker that cannot be reached; ``where`` names the broker."""
    return NoBrokerError(f"no MQTT broker answers at {where}: {cause}. What to do: {START_IT}")


async def check_reachable(broker: BrokerAddress) -> None:
    """Raise NoBrokerError or NotLetInError if the broker does not answer or refuses this client.

    It takes at most ``CONNECT_S``; the bus itself would retry without limit.
    """
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
    """Return the error of a broker that refuses this client, or that this client does not trust."""
    if isinstance(cause, BrokerNameError):
        return NotLetInError(f"cannot connect to the broker at {broker}: {cause}")
    shown = broker.settings.credentials
    if shown:
        fix = f"check that {shown.folder} is the current folder of a user of this broker's site"
    else:
        fix = "give a user's folder with --credentials DIR or HALIMEDE_CREDENTIALS, such as site/operators/admin"
    return NotLetInError(f"cannot connect to the broker at {broker}: {cause}. What to do: {fix}")
