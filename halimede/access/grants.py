"""Permissions of a site's users to publish and subscribe, and routes of bridges: derived only from the contract.

Pure: maps a principal (one user of the broker) to its grants; the contract is the list of all topics. The brokers'
files are other forms of the same grants. A pool is the principal of all edge or all cloud workers that are not bound to
a node, such as pods: it has no name.

The LCs, edge workers, cameras and consumers of a place are behind its bridge; GM, cloud workers, operators and
consumers are beyond. A topic is routed up if a client behind may publish it and a client beyond may read it, and down
in the opposite case. A retained topic that both sides publish is routed both ways, so that clearing it on one side
clears it on the other. Frames are not routed: a place has its own broker so that they stay there. Cloud workers behind
a bridge are not supported.

A consumer with the name of another system, such as ``homeassistant``, is for that system and the program that connects
it (``halimede bridge homeassistant``): it also has rights on that system's own topics, which are not in the contract.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from halimede import topics
from halimede.access.site import NODE_ROLES, Bridge, Principal, Site
from halimede.topic import Role, Topic
from halimede.topics import CONTRACT

#: the name in a topic (``<node>``, ``<camera>``) that must be the principal's own, by its role
OWN_NAME = {Role.LC: "node", Role.EDGE: "node", Role.CLOUD: "node", Role.CAMERA: "camera"}
#: roles that are named by their user name on the broker. An operator's commands choose a name each time
USERNAME_ROLES = frozenset({Role.GM, Role.LC})
#: roles of workers
WORKER_ROLES = frozenset({Role.EDGE, Role.CLOUD})
#: roles of clients behind a bridge, at the place, and beyond it, at the site's broker
PLACE_ROLES = frozenset({Role.LC, Role.EDGE, Role.CAMERA, Role.CONSUMER})
SITE_ROLES = frozenset({Role.GM, Role.CLOUD, Role.OPERATOR, Role.CONSUMER})
#: on a node's own topics, all parties of the node are behind the bridge
NODE_PLACE_ROLES, NODE_SITE_ROLES = frozenset({Role.LC, Role.EDGE, Role.CLOUD}), frozenset({Role.GM, Role.OPERATOR})
#: topics that are not routed: frames stay at their place; a status that is cleared while the connection is down would
#: stay at the place forever, so consumers read statuses at the site's broker
NOT_ROUTED = frozenset({topics.CAMERA_FRAME.id, topics.STATUS.id})
#: topics whose messages are useless when late: they are not kept while the connection is down
LIVE_TOPICS = frozenset(
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
    """The action that a grant allows; the values are those of EMQX."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


@dataclass(frozen=True, slots=True)
class Grant:
    """One permission: an action on the topics that a filter matches, without the site's prefix."""

    action: Action
    filter: str


#: what a consumer may do on the topics of the system that it is for, by its name. Home Assistant subscribes to the
#: documents of all its platforms. A grant on ``homeassistant/#`` would include the topics of a namespace of that name
FOREIGN_GRANTS = {
    "homeassistant": (
        *(Grant(a, f"homeassistant/{levels}") for levels in ("device/#", "halimede/#", "status") for a in Action),
        *(Grant(Action.SUBSCRIBE, f"homeassistant/{levels}/config") for levels in ("+/+", "+/+/+")),
    )
}


def grants(principal: Principal) -> tuple[Grant, ...]:
    """Return the grants of a principal on its broker, in the contract's order, then those on another system's topics.

    A bridge has none here: use ``rights``.
    """
    allowed = []
    for topic in CONTRACT:
        if principal.role in topic.publishers:
            allowed.append(Grant(Action.PUBLISH, topic.filter(**_own_names(principal, topic, topic.speaker)).text))
        if principal.role in topic.subscribers:
            own_names = {} if can_read_all_nodes(principal, topic) else _own_names(principal, topic, topic.listener)
            allowed.append(Grant(Action.SUBSCRIBE, topic.filter(**own_names).text))
    if principal.role is Role.CONSUMER:
        allowed += FOREIGN_GRANTS.get(principal.name, ())
    return tuple(allowed)


def can_read_all_nodes(principal: Principal, topic: Topic[Any]) -> bool:
    """Whether a worker reads what workers of other nodes publish: an aggregator reads the trainers' states."""
    return principal.role in WORKER_ROLES and not topic.listener and bool(WORKER_ROLES & set(topic.publishers))


def _own_names(principal: Principal, topic: Topic[Any], party: str) -> dict[str, str]:
    """Return the names in a topic that must be the principal's own.

    ``party``: the name in the topic of the client that speaks or listens there; empty if the topic names none.
    """
    if party:
        return {party: principal.username} if principal.role in USERNAME_ROLES else {}
    field = OWN_NAME.get(principal.role) if principal.name else None  # pools: any node
    return {field: principal.name} if field and field in topic.fields else {}


@dataclass(frozen=True, slots=True)
class Route:
    """A filter whose messages a bridge passes on: ``up`` to the site's broker, ``down`` from it, or both.

    ``qos``: that of the topic. ``live``: the messages are useless when late, so they are not kept.
    """

    filter: str
    qos: int
    up: bool
    down: bool
    live: bool


def routes(bridge: Bridge) -> tuple[Route, ...]:
    """Return the routes of a bridge, in the contract's order."""
    return tuple(route for topic in CONTRACT for route in _routes_of_topic(topic, bridge))


def rights(site: Site, principal: Principal) -> tuple[Grant, ...]:
    """Return a user's grants on the site's broker; of a bridge, which must be in the site, those of its routes."""
    if principal.role is not Role.BRIDGE:
        return grants(principal)
    (bridge,) = (candidate for candidate in site.bridges if candidate.name == principal.name)
    allowed = []
    for route in routes(bridge):
        allowed += [Grant(Action.PUBLISH, route.filter)] if route.up else []
        allowed += [Grant(Action.SUBSCRIBE, route.filter)] if route.down else []
    return tuple(allowed)


def users_behind(site: Site, bridge: Bridge) -> Iterator[Principal]:
    """Yield the users of a place's broker: the nodes, cameras and consumers of ``bridge``, all operators and pools."""
    names = {Role.CAMERA: bridge.cameras, Role.CONSUMER: bridge.consumers, Role.OPERATOR: site.operators}
    names |= {role: ["", *bridge.nodes] for role in NODE_ROLES}
    return (user for user in site.principals() if user.name in names.get(user.role, ()))


def _routes_of_topic(topic: Topic[Any], bridge: Bridge) -> Iterator[Route]:
    """Yield the routes of one topic, with names of the place's nodes or namespaces; none if it is not routed."""
    if topic.speaker or topic.listener:
        yield from _routes_between_parties(topic, bridge)
        return
    of_node = "node" in topic.fields
    inside, outside = (NODE_PLACE_ROLES, NODE_SITE_ROLES) if of_node else (PLACE_ROLES, SITE_ROLES)
    publishers, subscribers = set(topic.publishers), set(topic.subscribers)
    up = bool(publishers & inside and subscribers & outside)
    # the second case: a retained topic that both sides publish
    down = bool(publishers & outside and subscribers & inside) or (up and topic.retain and bool(publishers & outside))
    if topic.id in NOT_ROUTED or not (up or down):
        return
    if of_node:
        names = [{"node": node} for node in bridge.nodes]
    else:
        names = [{"ns": namespace} for namespace in bridge.namespaces] if "ns" in topic.fields else []
    for topic_names in names or [{}]:
        yield Route(topic.filter(**topic_names).text, topic.qos, up, down, topic.id in LIVE_TOPICS)


def _routes_between_parties(topic: Topic[Any], bridge: Bridge) -> Iterator[Route]:
    """Yield routes for messages between LCs of the place and other parties, which may be on either side."""
    live = topic.id in LIVE_TOPICS
    parties = [Principal(Role.LC, node).username for node in bridge.nodes]
    if Role.LC in topic.publishers:
        for party in parties:
            yield Route(topic.filter(**{topic.speaker: party}).text, topic.qos, up=True, down=False, live=live)
    if Role.LC in topic.subscribers:
        for names in [{topic.listener: party} for party in parties] if topic.listener else [{}]:
            yield Route(topic.filter(**names).text, topic.qos, up=False, down=True, live=live)
