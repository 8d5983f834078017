"""What each user of a site may publish and subscribe: read off the contract, and nothing else.

Pure: a principal in, rights out. The files for the brokers are other ways of writing the same rights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from halimede.access.site import Principal
from halimede.topic import Role, Topic
from halimede.topics import CONTRACT

#: the name in a template that has to be the principal's own
OWN_NAME = {Role.LC: "node", Role.EDGE: "node", Role.CLOUD: "node", Role.CAMERA: "camera"}
#: who goes by the name that the broker knows. An operator's commands choose one each time
NAMED = frozenset({Role.GM, Role.LC})


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
