"""What a broker says to a publish or a subscription: reason codes (MQTT v5, 2.4), and which of them are refusals."""

from __future__ import annotations

from halimede.errors import RefusedError

SUCCESS, NO_SUBSCRIBER, FAILURE = 0x00, 0x10, 0x80

REASONS = {
    0x80: "unspecified error",
    0x83: "implementation specific error",
    0x87: "not authorised",
    0x90: "topic name invalid",
    0x91: "packet identifier in use",
    0x97: "quota exceeded",
    0x99: "payload format invalid",
    0x9E: "the broker does not offer shared subscriptions",
    0xA2: "the broker does not offer wildcard subscriptions",
}


def judge(topic: str, reason: int) -> bool:
    """Return whether the broker knew a subscriber, by its reason code for a publish. Raises RefusedError."""
    if reason >= FAILURE:
        raise RefusedError(topic, reason, REASONS.get(reason, "refused"))
    return reason != NO_SUBSCRIBER
