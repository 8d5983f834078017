"""An attacker without a library: writes MQTT packets as fast as the broker takes them, and beside them what it likes.

As a process (``python -m tests.attacks.flooding PORT KIND SECONDS LEAST UID``) it floods a broker, at QoS 0, where
nothing holds it back, for so long and until so many messages are sent, and prints how many these were.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import sys
import time
from collections.abc import Iterator

SERVICES = "jointinferenceservices"
#: node, uid and operator of whom the floods are
NODE, STORMY = "bad0", "stormy"
AT_ONCE = 20
Message = tuple[str, bytes, bytes, bool]


def varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out, value = out + bytes([value % 128 | 128]), value // 128
    return out + bytes([value])


def text(value: str) -> bytes:
    return struct.pack(">H", len(value.encode())) + value.encode()


def user(name: str, value: str) -> bytes:
    """Return one user property."""
    return b"\x26" + text(name) + text(value)


def publish(
    topic: str, payload: bytes, *, qos: int = 0, retain: bool = False, beside: bytes = b"", mid: int = 1
) -> bytes:
    """Return a PUBLISH; ``beside`` are its properties, as they go over the wire."""
    body = text(topic) + (struct.pack(">H", mid) if qos else b"") + varint(len(beside)) + beside + payload
    return bytes([0x30 | qos << 1 | retain]) + varint(len(body)) + body


def connect(port: int, client_id: str) -> socket.socket:
    """Return a connection that the broker has accepted."""
    link = socket.create_connection(("127.0.0.1", port), timeout=30)
    body = text("MQTT") + bytes([5, 2]) + struct.pack(">H", 0) + b"\0" + text(client_id)
    link.sendall(b"\x10" + varint(len(body)) + body)
    assert link.recv(1) == b"\x20"
    left = link.recv(1)[0]
    while left:
        left -= len(link.recv(left))
    return link


def report(name: str, number: int, uid: str) -> Message:
    """Return a node's report, each time with another phase, reason and count."""
    phase = ("Pending", "Running", "Failed")[number % 3]
    body = {
        "phase": phase, "uid": uid, "observedGeneration": 1, "reason": f"R{number % 7}", "message": f"m{number}",
        "workers": [{"name": "w", "role": "edge", "phase": "Running", "restarts": number}],
        "output": {"taskInfo": {"inferenceNumber": number}},
    }  # fmt: skip
    stamp = user("epoch", "1") + user("number", str(number))
    return f"node/{NODE}/default/sedna/upstream/{SERVICES}/{name}/status", json.dumps(body).encode(), stamp, True


def presence(node: str, number: int) -> Message:
    body = {"node": node, "epoch": number, "online": number % 2 == 1, "store": f"s{number % 3}", "labels": {}}
    return f"node/{node}/sedna/presence", json.dumps(body).encode(), b"", True


def request(number: int, **fields: object) -> Message:
    beside = b"\x08" + text(f"sedna/api/reply/{STORMY}") + b"\x09" + text(str(number))
    return f"sedna/api/request/{STORMY}", json.dumps(fields).encode(), beside, False


def model(number: int) -> dict[str, object]:
    spec = {"url": f"/m{number}.onnx", "format": "onnx"}
    return {
        "apiVersion": "sedna.io/v1alpha1", "kind": "Model", "metadata": {"name": f"m{number % 50}"}, "spec": spec,
    }  # fmt: skip


def sync(number: int, holds: bytes) -> Message:
    stamp = user("epoch", "1") + user("number", str(number))
    return f"node/{NODE}/sedna/upstream/sync", b'{"epoch": 1, "holds": ' + holds + b"}", stamp, False


def letter(number: int) -> Message:
    body = {"client": NODE, "topic": f"t{number}", "reason": f"r{number}", "size": number}
    return f"node/{NODE}/sedna/deadletter/{NODE}", json.dumps(body).encode(), b"", False


def info(number: int) -> Message:
    status = ("running", "failed", "pending")[number % 3]
    body = {
        "name": "helmet-edge-edge0", "namespace": "default", "ownerName": "helmet", "ownerKind": "x", "kind": "edge",
        "status": status, "reason": f"R{number}", "ownerInfo": {"inferenceNumber": number},
    }  # fmt: skip
    return "node/edge0/default/sedna/workers/helmet-edge-edge0/info", json.dumps(body).encode(), b"", False


def messages(kind: str, uid: str) -> Iterator[Message]:
    """Yield a flood."""
    held = [
        {"plural": SERVICES, "namespace": "default", "name": f"x{i}", "uid": f"u{i}", "generation": 1}
        for i in range(10_000 if kind == "sync" else 0)
    ]
    holds = json.dumps(held).encode()
    makers = {
        "counts": lambda n: report("helmet", n, uid),
        "uids": lambda n: report("helmet", n, f"u-{n}"),
        "unknown": lambda n: report(f"x{n % 10}", n, "u-x"),
        "names": lambda n: report(f"x{n % 10_000}", n, "u-x"),
        "presence": lambda n: presence(NODE, n),
        "nodes": lambda n: presence(f"n{n % 20_000}", n),
        "sync": lambda n: sync(n, holds),
        "lists": lambda n: request(n, op="list", plural=SERVICES),
        "applies": lambda n: request(n, op="apply", object=model(n)),
        "letters": letter,
        "infos": info,
    }
    return map(makers[kind], itertools.count(1))


def main(port: int, kind: str, seconds: float, least: int, uid: str) -> int:
    """Flood; return how many messages were sent."""
    link, sent, at_once = connect(port, f"flood-{kind}"), 0, 1 if kind == "sync" else AT_ONCE
    flood, until = messages(kind, uid), time.monotonic() + seconds
    while time.monotonic() < until or sent < least:
        batch = list(itertools.islice(flood, at_once))
        link.sendall(b"".join(publish(t, body, retain=kept, beside=beside) for t, body, beside, kept in batch))
        sent += len(batch)
    link.sendall(b"\xe0\0")  # a clean end: what was sent before it is read
    link.shutdown(socket.SHUT_WR)
    while link.recv(65536):
        pass
    return sent


if __name__ == "__main__":
    print(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
