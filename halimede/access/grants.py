"""Permissions of a site's users to publish and subscribe, and routes of bridges: derived only from the contract.

Pure: maps a principal to its grants. The brokers' files are other forms of the same grants.

The LCs, edge workers, cameras and consumers of a place are behind its bridge; GM, cloud workers, operators and
consumers are beyond. A topic is routed up if a client behind may publish it and a client beyond may read it, and down
in the opposite case. A retained topic that both sides publish is routed both ways, so that clearing it on one side
clears it on the other. Frames are not routed: a place has its own broker so that they stay there. Cloud workers behind
a bridge are not supported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from halimede import topics
from halimede.access.site import NODE_ROLES, Bridge, Principal, Site
from halimede.topic import Role, Topic
from halimede.topics import CONTRACT

#: the name in a topic that must be the principal's own
OWN_NAME = {Role.LC: "node", Role.EDGE: "node", Role.CLOUD: "node", Role.CAMERA: "camera"}
#: roles that are named by their user name on the broker. An operator's commands choose a name each time
NAMED = frozenset({Role.GM, Role.LC})
WORKERS = frozenset({Role.EDGE, Role.CLOUD})
HERE = frozenset({Role.LC, Role.EDGE, Role.CAMERA, Role.CONSUMER})
BEYOND = frozenset({Role.GM, Role.CLOUD, Role.OPERATOR, Role.CONSUMER})
#: on a node's own topics, all parties of the node are behind the bridge
OF_NODE, OF_NODE_BEYOND = frozenset({Role.LC, Role.EDGE, Role.CLOUD}), frozenset({Role.GM, Role.OPERATOR})
#: topics that are not routed: if a message is cleared while the connection is down, the clearing is lost and its copy
#: would stay forever, so consumers read statuses at the site's broker
STAYS = frozenset({topics.CAMERA_FRAME.id, topics.STATUS.id})
#: topics whose messages are useless when late: they are not kept while the connection is down
LIVE = frozenset(
    topic.id
    for topic in (
        topics.REQUEST, topics.REQUEST_TO, topics.REPLY, topics.LOAD, topics.LOGS_REQUEST, topics.LOGS_REPLY,
        topics.TRACE_REQUEST, topics.TRACE_REPLY, topics.BLOB_REQUEST, topics.BLOB_CHUNK, topics.BLOB_QUERY,
        topics.BLOB_ORDER, topics.BLOB_ANSWER, topics.EDGE_PEER, topics.PEER, topics.HOP_REQUEST, topics.HOP_REPLY,
        topics.GALLERY, topics.IDENTITY_QUERY, topics.IDENTITY_ANSWER, topics.KEPT_REQUEST, topics.KEPT_REPLY,
        topics.TRAINING_REQUEST, topics.TRAINING_CHUNK,
    )
)  # fmt: skip


class Action(StrEnum):
    """The action that a grant allows."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


@dataclass(frozen=True, slots=True)
class Grant:
    """One permission: an action on the topics that a filter matches."""

    action: Action
    filter: str


def grants(principal: Principal, contract: Sequence[Topic[Any]] = CONTRACT) -> tuple[Grant, ...]:
    """Return the grants of a principal, in the contract's order."""
    allowed = []
    for topic in contract:
        if principal.role in topic.publishers:
            allowed.append(Grant(Action.PUBLISH, topic.filter(**_own_names(principal, topic, topic.speaker)).text))
        if principal.role in topic.subscribers:
            own = {} if can_read_all_nodes(principal, topic) else _own_names(principal, topic, topic.listener)
            allowed.append(Grant(Action.SUBSCRIBE, topic.filter(**own).text))
    return tuple(allowed)


def can_read_all_nodes(principal: Principal, topic: Topic[Any]) -> bool:
    """Whether a worker reads what workers of other nodes publish: an aggregator reads the trainers' states."""
    return principal.role in WORKERS and not topic.listener and bool(WORKERS & set(topic.publishers))


def _own_names(principal: Principal, topic: Topic[Any], party: str) -> dict[str, str]:
    """Return the names in a topic that must be the principal's own."""
    if party:
        return {party: principal.username} if principal.role in NAMED else {}
    own = OWN_NAME.get(principal.role) if principal.name else None  # pools: any node
    return {own: principal.name} if own and own in topic.fields else {}


@dataclass(frozen=True, slots=True)
class Route:
    """A filter whose messages a bridge passes on: ``up`` to the site's broker, ``down`` from it, or both."""

    filter: str
    qos: int
    up: bool
    down: bool
    live: bool


def routes(bridge: Bridge) -> tuple[Route, ...]:
    """Return the routes of a bridge, in the contract's order."""
    return tuple(route for topic in CONTRACT for route in _of(topic, bridge))


def rights(site: Site, principal: Principal) -> tuple[Grant, ...]:
    """Return a user's grants on the site's broker. A bridge has only those that its routes need."""
    if principal.role is not Role.BRIDGE:
        return grants(principal)
    (bridge,) = (candidate for candidate in site.bridges if candidate.name == principal.name)
    allowed = []
    for route in routes(bridge):
        allowed += [Grant(Action.PUBLISH, route.filter)] if route.up else []
        allowed += [Grant(Action.SUBSCRIBE, route.filter)] if route.down else []
    return tuple(allowed)


def behind(site: Site, bridge: Bridge) -> Iterator[Principal]:
    """Yield the users of a place's broker: those named in it, pools, and operators."""
    names = {Role.CAMERA: bridge.cameras, Role.CONSUMER: bridge.consumers, Role.OPERATOR: site.operators}
    names |= {role: ["", *bridge.nodes] for role in NODE_ROLES}
    return (user for user in site.principals() if user.name in names.get(user.role, ()))


def _of(topic: Topic[Any], bridge: Bridge) -> Iterator[Route]:
    if topic.speaker or topic.listener:
        yield from _between(topic, bridge)
        return
    of_node = "node" in topic.fields
    here, beyond = (OF_NODE, OF_NODE_BEYOND) if of_node else (HERE, BEYOND)
    publishers, subscribers = set(topic.publishers), set(topic.subscribers)
    up = bool(publishers & here and subscribers & beyond)
    down = bool(publishers & beyond and subscribers & here) or (up and topic.retain and bool(publishers & beyond))
    if topic.id in STAYS or not (up or down):
        return
    if of_node:
        names = [{"node": node} for node in bridge.nodes]
    else:
        names = [{"ns": namespace} for namespace in bridge.namespaces] if "ns" in topic.fields else []
    for own in names or [{}]:
        yield Route(topic.filter(**own).text, topic.qos, up, down, topic.id in LIVE)


def _between(topic: Topic[Any], bridge: Bridge) -> Iterator[Route]:
    """Yield routes for messages between LCs of the place and other parties, which may be on either side."""
    live = topic.id in LIVE
    parties = [Principal(Role.LC, node).username for node in bridge.nodes]
    if Role.LC in topic.publishers:
        for party in parties:
            yield Route(topic.filter(**{topic.speaker: party}).text, topic.qos, up=True, down=False, live=live)
    if Role.LC in topic.subscribers:
        for names in [{topic.listener: party} for party in parties] if topic.listener else [{}]:
            yield Route(topic.filter(**names).text, topic.qos, up=False, down=True, live=live)
