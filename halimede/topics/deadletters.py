"""What receivers could not read."""

from __future__ import annotations

from halimede import messages as m
from halimede.topic import BodyEncoding, Role, Topic

DEAD_LETTER = Topic(
    "dead-letter",
    "sedna/deadletter/{client}",
    m.DeadLetter,
    BodyEncoding.JSON,
    qos=0,
    retain=False,
    publishers=(Role.GM, Role.LC, Role.EDGE, Role.CLOUD),
    subscribers=(Role.GM, Role.OPERATOR),
    doc="A message that its receiver could not read: at most ten a second from each client.",
)
