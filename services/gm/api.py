"""GM's API over the bus (``ApiServer``): answers the requests of the command line and of other tools.

Every request may be repeated: applying the same object again changes nothing, and deleting twice deletes once. A
user's mistake is returned as an ApiError that names the field. GM sends a reply only to the topic of the requesting
client. A list is cut to what fits into one message. On Kubernetes there is no editor: apply, delete, drain, uncordon
and events are refused there, because users have kubectl.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import structlog

from halimede.api import admit
from halimede.bus import Bus, Delivery
from halimede.bus.rpc import RpcServer
from halimede.codec import MAX_JSON
from halimede.errors import BusError, HalimedeError, InvalidFieldError, TooLargeError
from halimede.messages import ApiError, ApiReply, ApiRequest, ResourceBody
from halimede.names import Key, check_label, check_name
from halimede.topics import API_REPLY, API_REQUEST, NODE_STATUS, PRESENCE
from halimede.tracing.latency import Distribution
from services.gm.cluster.port import Cluster, ConflictError, Editor, UnknownResourceError, body_of
from services.gm.cluster.sqlite_file import StoreError
from services.gm.cluster.store import SERVER_SET
from services.gm.control_plane import ControlPlane
from services.gm.controllers import CONTROLLERS
from services.gm.rate_limit import RateLimit
from services.gm.reference_index import ReferenceEntry

log = structlog.get_logger()
#: bytes reserved for the other fields of a reply, and for what GM adds to a user's resource
MARGIN = 64 * 1024
#: operations that change something: the reply is kept, and answers a repeated delivery of the request
EDITS = frozenset({"apply", "delete", "delete-node", "drain", "uncordon"})
#: kept replies: their number, and the bytes of their requests
MAX_CACHED, MAX_CACHED_BYTES = 256, 32 * 1024 * 1024
#: most requests that wait to be answered
QUEUE = 1000
#: limit of one client: requests per second, and burst. A client that waits for its replies stays far below
REQUESTS = (50.0, 200.0)
#: the event's message about a client that sends too many requests
STORM = "its requests exceed the limit of one client: GM does not answer the excess"
#: the error of an operation that needs an editor, on Kubernetes
NO_EDITOR = ApiError(reason="NotAllowed", message="this global manager works on Kubernetes: use kubectl")
#: reason and message of the event when a node is drained (True: it gets no workers any more) or uncordoned (False)
MAINTENANCE_EVENTS = {
    True: ("NodeDrained", "a user drained the node"),
    False: ("NodeUncordoned", "a user uncordoned the node"),
}


class UnknownNodeError(HalimedeError):
    """GM knows no node of the name ``node``."""

    def __init__(self, node: str) -> None:
        super().__init__(f"there is no node {node}: see `halimede nodes`")


class ApiServer(RpcServer[ApiRequest, ApiReply]):
    """An ``RpcServer`` that answers users' requests; the caller calls ``start``.

    ``bus``: the connection for the requests. ``editor``: edits resources; None on Kubernetes.
    """

    def __init__(self, bus: Bus, cluster: Cluster, plane: ControlPlane, editor: Editor | None) -> None:
        super().__init__(bus, API_REQUEST.filter(), API_REPLY, self._receive, too_large=_too_large, queue=QUEUE)
        self.bus = bus
        self._cluster = cluster
        self._plane = plane
        self._editor = editor
        #: replies to edits with the bytes of their requests, by client and correlation data (the id of a request)
        self._cached: dict[tuple[str, bytes], tuple[ApiReply, int]] = {}
        self._cached_bytes = 0
        self._budgets: RateLimit[str] = RateLimit(*REQUESTS)
        #: number of requests that were not answered, because their clients have sent too many
        self.refused = 0
        #: durations of requests (ms), by operation and outcome: OK, or the reason of the error
        self.answered: dict[tuple[str, str], Distribution] = {}

    async def _receive(self, delivery: Delivery[ApiRequest]) -> ApiReply | None:
        """Return the reply to a request; None if its client sends too many: an event is recorded, and no reply sent.

        A repeated delivery of an edit gets the first reply: it must not redo a change that was reverted in between.
        """
        request, client = delivery.body, delivery.names["client"]
        if not self._budgets.spend(client):
            self.refused += 1
            await self._cluster.record("Warning", "TooManyRequests", f"client/{client}", STORM)
            return None
        request_id = client, delivery.packet.correlation
        if request.op not in EDITS or not request_id[1]:
            return await self.answer(request)
        if request_id not in self._cached:
            size = len(delivery.packet.payload)
            self._cached[request_id] = await self.answer(request), size
            self._cached_bytes += size
            while len(self._cached) > MAX_CACHED or (self._cached_bytes > MAX_CACHED_BYTES and len(self._cached) > 1):
                self._cached_bytes -= self._cached.pop(next(iter(self._cached)))[1]
        return self._cached[request_id][0]

    async def answer(self, request: ApiRequest) -> ApiReply:
        """Carry out a request and record its duration. The reply to a failed request has the reason in ``error``."""
        began = asyncio.get_running_loop().time()
        try:
            reply = await self._dispatch(request)
        except InvalidFieldError as error:
            reply = _error_reply("Invalid", error, error.field)
        except (UnknownResourceError, UnknownNodeError) as error:
            reply = _error_reply("NotFound", error)
        except ConflictError as error:
            reply = _error_reply("Conflict", error)
        except (StoreError, BusError) as error:
            reply = _error_reply("Internal", error)
        outcome = reply.error.reason if reply.error else "OK"
        took = self.answered.setdefault((request.op, outcome), Distribution())
        took.record((asyncio.get_running_loop().time() - began) * 1000)
        return reply

    async def _dispatch(self, request: ApiRequest) -> ApiReply:
        """Return the reply to a request, by its operation. Raises HalimedeError."""
        match request.op:
            case "apply" | "apply-dry-run":
                return await self._apply(request)
            case "delete":
                return await self._delete(_key(request))
            case "get":
                key = _key(request)
                stored = self._cluster.get(key)
                if stored is None:
                    raise UnknownResourceError(key)
                return ApiReply(object=body_of(stored))
            case "list":
                return self._list(request)
            case "events":
                if self._editor is None:
                    return ApiReply(error=NO_EDITOR)
                return ApiReply(events=self._editor.events(request.after, request.about, request.limit, request.before))
            case "nodes":
                return self._nodes(request)
            case "delete-node":
                await self._remove_node(check_name("name", request.name))
                return ApiReply(outcome="deleted")
            case "drain" | "uncordon":
                return await self._drain(request)
            case "version":
                # users compare this time with their own clock
                return ApiReply(value=msgspec.to_builtins(self._plane.observer.manager_facts()))

    async def _apply(self, request: ApiRequest) -> ApiReply:
        """Create or edit the object of a request, or return what that would do (``apply-dry-run``).

        An unchanged resource is sent to its nodes again, so that they check its files now.
        """
        if self._editor is None:
            return ApiReply(error=NO_EDITOR)
        resource = admit(_without_server_set(request.object))
        # nodes receive the translated form: it must be valid as well
        self._check_size(CONTROLLERS[resource.key.plural].entry(resource))
        lost = self._plane.lost_version(resource.key)
        if request.op == "apply-dry-run":
            return ApiReply(outcome=self._editor.try_apply(resource, lost))
        applied = await self._editor.apply(resource, lost)
        if applied.outcome != "unchanged":
            text = f"generation {applied.stored.resource.metadata.generation}"
            if lost:
                text += ": it continues the version that nodes hold"
            await self._cluster.record("Normal", applied.outcome.capitalize(), str(resource.key), text)
        else:
            self._plane.downstream.repeat(resource.key)
        return ApiReply(outcome=applied.outcome, object=body_of(applied.stored))

    def _check_size(self, entry: ReferenceEntry) -> None:
        """Raise InvalidFieldError for a resource that does not fit into a message: nodes would never receive it."""
        size = len(msgspec.json.encode(entry.resource.body))
        if size > self._item_bytes:
            most = f"keep it below {self._item_bytes} bytes"
            fix = f"{most}, the limit of one message to a node: put data into files on the nodes"
            raise InvalidFieldError("resource", f"{size} bytes", fix)

    async def _delete(self, key: Key) -> ApiReply:
        """Request the deletion of a resource; if only nodes hold the resource, delete it there."""
        if self._editor is None:
            return ApiReply(error=NO_EDITOR)
        if self._cluster.get(key) is None and await self._plane.forget_orphan(key):
            return ApiReply(outcome="deleted")
        return ApiReply(outcome="deleted", object=body_of(await self._editor.delete(key)))

    async def _drain(self, request: ApiRequest) -> ApiReply:
        """Drain or uncordon the node of a request."""
        if self._editor is None:
            return ApiReply(error=NO_EDITOR)
        node, drained = check_name("name", request.name), request.op == "drain"
        value = await self._set_drained(node, self._editor, drained=drained)
        return ApiReply(outcome="drained" if drained else "uncordoned", value=value)

    async def _set_drained(self, node: str, editor: Editor, *, drained: bool) -> dict[str, Any]:
        """Drain or uncordon a node. Raises UnknownNodeError, StoreError.

        A drained node is excluded from every placement until a user uncordons it: the mark persists across restarts of
        GM and of the node. Its workers finish what they accepted, as on any node from which a service is removed.
        A worker without another node stays unplaced, and the status of its service reports that.

        Return ``{"online": ..., "stranded": [{"service": "default/helmet", "role": "edge"}, ...]}``: whether the node
        is online, and the workers that have no node now because it is drained (none after ``uncordon``).
        """
        plane = self._plane
        if node not in plane.nodes and not plane.nodes.is_drained(node):
            raise UnknownNodeError(node)
        if plane.nodes.is_drained(node) is not drained:
            # the store first: a change that was confirmed to the user must persist
            await editor.mark_drained(node, drained=drained)
            await plane.node_changed(node, plane.nodes.set_drained(node, drained=drained))
            reason, message = MAINTENANCE_EVENTS[drained]
            await self._cluster.record("Normal", reason, f"node/{node}", message)
        stranded = [
            {"service": f"{key.namespace}/{key.name}", "role": role}
            for key, role in plane.index.stranded_roles(node)
            if drained
        ]
        return {"online": plane.nodes.is_online(node), "stranded": stranded}

    async def _remove_node(self, node: str) -> None:
        """Forget a node, and clear its retained messages on the broker.

        Raises UnknownNodeError, ConflictError while the node is online, BusError without a broker, StoreError.

        GM never removes a node by itself: an offline node keeps its resources, and users must see that it is offline.
        Only a user can decide that a node will not return.
        """
        plane = self._plane
        if node not in plane.nodes:
            raise UnknownNodeError(node)
        self._refuse_online(node)
        # The broker first: its retained messages would restore the node. If GM is killed in between, the user repeats.
        for key in plane.downstream.keys(node) | plane.reports.keys(node):
            await self.bus.clear(NODE_STATUS.at(node=node, ns=key.namespace, plural=key.plural, name=key.name))
        await self.bus.clear(PRESENCE.at(node=node))
        self._refuse_online(node)
        concerned = plane.downstream.remove(node) | plane.reports.drop_node(node)
        plane.nodes.remove(node)
        concerned |= plane.index.node_changed(node)
        await self._cluster.forget_node(node)
        await self._cluster.record("Normal", "NodeDeleted", f"node/{node}", "a user deleted the node")
        for key in concerned:
            plane.queue.add(key)

    def _refuse_online(self, node: str) -> None:
        """Raise ConflictError if a node is online."""
        if self._plane.nodes.is_online(node):
            raise ConflictError(f"node {node} is online: stop its local controller first")

    def _list(self, request: ApiRequest) -> ApiReply:
        """Return the resources of a kind, as many as fit into a reply."""
        plural = _plural(request)
        if request.namespace:
            check_label("namespace", request.namespace)
        resources = sorted(self._cluster.resources(plural, request.namespace), key=lambda stored: stored.key)
        items, cut = _cut((body_of(stored) for stored in resources), request.limit, self._item_bytes)
        return ApiReply(items=items, truncated=cut)

    def _nodes(self, request: ApiRequest) -> ApiReply:
        """Return the nodes, or the named one, as many as fit into a reply."""
        nodes, cut = _cut(self._plane.infos.describe(request.name), request.limit, self._item_bytes)
        return ApiReply(nodes=nodes, truncated=cut)

    @property
    def _item_bytes(self) -> int:
        """The most bytes of the items in one reply, and of a resource in a message to a node."""
        return min(MAX_JSON, self.bus.max_packet or MAX_JSON) - MARGIN


def _cut(items: Iterable[Any], limit: int, free_bytes: int) -> tuple[list[Any], bool]:
    """Return the first items, at most ``limit`` and ``free_bytes`` as JSON, and whether there are more."""
    fitting: list[Any] = []
    for item in items:
        free_bytes -= len(msgspec.json.encode(item)) + 1
        if len(fitting) == limit or free_bytes < 0:
            return fitting, True
        fitting.append(item)
    return fitting, False


def _error_reply(reason: Any, error: Exception, field: str = "") -> ApiReply:
    """Return the reply to a request that failed; its texts are cut to the limits of ApiError.

    ``reason``: one of ApiError. ``field``: the wrong field of a user's mistake; empty: none.
    """
    return ApiReply(error=ApiError(reason=reason, message=str(error)[:4096], field=field[:4096]))


def _without_server_set(body: ResourceBody | None) -> object:
    """Return an object without the fields that only the server sets, which an object from ``get`` has.

    ``metadata.resourceVersion`` stays: by it, an edit of an outdated version is refused.
    """
    if not isinstance(body, dict):
        return body
    metadata = body.get("metadata")
    if isinstance(metadata, dict):
        metadata = {k: v for k, v in metadata.items() if k == "resourceVersion" or k not in SERVER_SET}
    return {**{k: v for k, v in body.items() if k != "status"}, "metadata": metadata}


def _plural(request: ApiRequest) -> str:
    """Return the plural of a request. Raises InvalidFieldError if it is not known."""
    if request.plural not in CONTROLLERS:
        raise InvalidFieldError("plural", request.plural, "use one of " + ", ".join(sorted(CONTROLLERS)))
    return request.plural


def _key(request: ApiRequest) -> Key:
    """Return the key of the resource that a request names. Raises InvalidFieldError."""
    namespace = check_label("namespace", request.namespace or "default")
    return Key(_plural(request), namespace, check_name("name", request.name))


def _too_large(error: TooLargeError) -> ApiReply:
    """Return the reply in place of one that does not fit into a message."""
    return ApiReply(error=ApiError(reason="Internal", message=f"the answer does not fit into a message: {error}"))
