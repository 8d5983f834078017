"""What users of a site may publish and subscribe, and what bridges pass on: read off the contract, and nothing else.

Pure: a principal in, rights out. The files for the brokers are other ways of writing the same rights.

Behind a bridge are a place's LCs, edge workers, cameras and consumers; GM, cloud workers, operators and consumers are
beyond. A topic goes up where somebody here may publish it and somebody beyond may read it, and down the other way
round. What is retained and published on both sides goes both ways, so that clearing it there clears it here. Frames
stay here: a place has its own broker so that they need not travel. Cloud workers behind a bridge are not provided for.
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

#: the name in a template that has to be the principal's own
OWN_NAME = {Role.LC: "node", Role.EDGE: "node", Role.CLOUD: "node", Role.CAMERA: "camera"}
#: who goes by the name that the broker knows. An operator's commands choose one each time
NAMED = frozenset({Role.GM, Role.LC})
HERE = frozenset({Role.LC, Role.EDGE, Role.CAMERA, Role.CONSUMER})
BEYOND = frozenset({Role.GM, Role.CLOUD, Role.OPERATOR, Role.CONSUMER})
#: on a node's own topics all that run there are here
OF_NODE, OF_NODE_BEYOND = frozenset({Role.LC, Role.EDGE, Role.CLOUD}), frozenset({Role.GM, Role.OPERATOR})
#: what is cleared while the way is cut is not cleared here: a service's status would stand here for ever, so consumers
#: read it at the site's broker
STAYS = frozenset({topics.CAMERA_FRAME.id, topics.STATUS.id})
#: of no use when they come late: while the way is cut they are not kept
LIVE = frozenset(
    topic.id
    for topic in (
        topics.REQUEST, topics.REQUEST_TO, topics.REPLY, topics.LOAD, topics.LOGS_REQUEST, topics.LOGS_REPLY,
        topics.TRACE_REQUEST, topics.TRACE_REPLY, topics.BLOB_REQUEST, topics.BLOB_CHUNK, topics.BLOB_QUERY,
        topics.BLOB_ORDER, topics.BLOB_ANSWER, topics.EDGE_PEER, topics.PEER, topics.HOP_REQUEST, topics.HOP_REPLY,
        topics.GALLERY, topics.IDENTITY_QUERY, topics.IDENTITY_ANSWER, topics.KEPT_REQUEST, topics.KEPT_REPLY,
    )
)  # fmt: skip


class Action(StrEnum):
    """What a right allows."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


@dataclass(frozen=True, slots=True)
class Grant:
    """One right: an action on the topics that a filter matches."""

    action: Action
    filter: str


def grants(principal: Principal, contract: Sequence[Topic[Any]] = CONTRACT) -> tuple[Grant, ...]:
    """Return the rights of a principal, in the contract's order."""
    found = []
    for topic in contract:
        if principal.role in topic.publishers:
            found.append(Grant(Action.PUBLISH, topic.filter(**_own(principal, topic, topic.speaker)).text))
        if principal.role in topic.subscribers:
            found.append(Grant(Action.SUBSCRIBE, topic.filter(**_own(principal, topic, topic.listener)).text))
    return tuple(found)


def _own(principal: Principal, topic: Topic[Any], party: str) -> dict[str, str]:
    """Return the names in a topic that have to be the principal's own."""
    if party:
        return {party: principal.username} if principal.role in NAMED else {}
    own = OWN_NAME.get(principal.role) if principal.name else None  # pools: any node
    return {own: principal.name} if own and own in topic.fields else {}


@dataclass(frozen=True, slots=True)
class Route:
    """A filter whose messages are passed on: ``up`` to the site's broker, ``down`` from it, or both."""

    filter: str
    qos: int
    up: bool
    down: bool
    live: bool


def routes(bridge: Bridge) -> tuple[Route, ...]:
    """Return what a bridge passes on, in the contract's order."""
    return tuple(route for topic in CONTRACT for route in _of(topic, bridge))


def rights(site: Site, principal: Principal) -> tuple[Grant, ...]:
    """Return what a user may do on the site's broker. A bridge may pass on what it has to, and nothing else."""
    if principal.role is not Role.BRIDGE:
        return grants(principal)
    (bridge,) = (each for each in site.bridges if each.name == principal.name)
    found = []
    for route in routes(bridge):
        found += [Grant(Action.PUBLISH, route.filter)] if route.up else []
        found += [Grant(Action.SUBSCRIBE, route.filter)] if route.down else []
    return tuple(found)


def behind(site: Site, bridge: Bridge) -> Iterator[Principal]:
    """Yield who connects to a place's broker: those named there, pools, and operators who look after it."""
    names = {Role.CAMERA: bridge.cameras, Role.CONSUMER: bridge.consumers, Role.OPERATOR: site.operators}
    names |= {role: ["", *bridge.nodes] for role in NODE_ROLES}
    return (found for found in site.principals() if found.name in names.get(found.role, ()))


def _of(topic: Topic[Any], bridge: Bridge) -> Iterator[Route]:
    if topic.speaker or topic.listener:
        yield from _between(topic, bridge)
        return
    of_node = "node" in topic.fields
    here, beyond = (OF_NODE, OF_NODE_BEYOND) if of_node else (HERE, BEYOND)
    said, heard = set(topic.publishers), set(topic.subscribers)
    up = bool(said & here and heard & beyond)
    down = bool(said & beyond and heard & here) or (up and topic.retain and bool(said & beyond))
    if topic.id in STAYS or not (up or down):
        return
    if of_node:
        names = [{"node": node} for node in bridge.nodes]
    else:
        names = [{"ns": each} for each in bridge.namespaces] if "ns" in topic.fields else []
    for each in names or [{}]:
        yield Route(topic.filter(**each).text, topic.qos, up, down, topic.id in LIVE)


def _between(topic: Topic[Any], bridge: Bridge) -> Iterator[Route]:
    """Pass on what LCs of the place say, and what others say to them; others are everywhere."""
    live = topic.id in LIVE
    parties = [Principal(Role.LC, node).username for node in bridge.nodes]
    if Role.LC in topic.publishers:
        for party in parties:
            yield Route(topic.filter(**{topic.speaker: party}).text, topic.qos, up=True, down=False, live=live)
    if Role.LC in topic.subscribers:
        for names in [{topic.listener: party} for party in parties] if topic.listener else [{}]:
            yield Route(topic.filter(**names).text, topic.qos, up=False, down=True, live=live)
