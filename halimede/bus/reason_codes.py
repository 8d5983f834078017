"""Reason codes of MQTT v5 (2.4): what they are called, and which of them refuse a publish or a subscription."""

from __future__ import annotations

from halimede.errors import RefusedError

SUCCESS, NO_SUBSCRIBER, FAILURE = 0x00, 0x10, 0x80
NO_SHARED, NO_WILDCARDS = 0x9E, 0xA2

#: what a broker refuses a publish or a subscription with, as users read it
REASONS = {
    0x80: "unspecified error",
    0x83: "implementation specific error",
    0x87: "not authorised",
    0x90: "topic name invalid",
    0x91: "packet identifier in use",
    0x97: "quota exceeded",
    0x99: "payload format invalid",
    NO_SHARED: "the broker does not offer shared subscriptions",
    NO_WILDCARDS: "the broker does not offer wildcard subscriptions",
}
#: what a broker refuses or ends a connection with, as the standard names it
NAMES = {
    0x00: "Normal disconnection",
    0x80: "Unspecified error",
    0x81: "Malformed packet",
    0x82: "Protocol error",
    0x83: "Implementation specific error",
    0x84: "Unsupported protocol version",
    0x85: "Client identifier not valid",
    0x86: "Bad user name or password",
    0x87: "Not authorized",
    0x88: "Server unavailable",
    0x89: "Server busy",
    0x8A: "Banned",
    0x8B: "Server shutting down",
    0x8C: "Bad authentication method",
    0x8D: "Keep alive timeout",
    0x8E: "Session taken over",
    0x8F: "Topic filter invalid",
    0x90: "Topic name invalid",
    0x93: "Receive maximum exceeded",
    0x94: "Topic alias invalid",
    0x95: "Packet too large",
    0x96: "Message rate too high",
    0x97: "Quota exceeded",
    0x98: "Administrative action",
    0x99: "Payload format invalid",
    0x9A: "Retain not supported",
    0x9B: "QoS not supported",
    0x9C: "Use another server",
    0x9D: "Server moved",
    0x9E: "Shared subscriptions not supported",
    0x9F: "Connection rate exceeded",
    0xA0: "Maximum connect time",
    0xA1: "Subscription identifiers not supported",
    0xA2: "Wildcard subscriptions not supported",
}


def judge(topic: str, reason: int) -> bool:
    """Return whether the broker knew a subscriber, by its reason code for a publish. Raises RefusedError."""
    if reason >= FAILURE:
        raise RefusedError(topic, reason, REASONS.get(reason, "refused"))
    return reason != NO_SUBSCRIBER


def name(code: int, said: str = "") -> str:
    """Return the name of a reason code, and the text that the broker sent with it."""
    known = NAMES.get(code, f"reason {code:#04x}")
    return f"{known} ({said})" if said else known
