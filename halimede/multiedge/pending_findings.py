"""Findings that wait for their answer: bounded in number, in bytes, and in time, whatever the joint does with them."""

from __future__ import annotations

from dataclasses import dataclass

from halimede.bus import Delivery
from halimede.messages import Frame, Prediction
from halimede.multiedge.stage import Finding
from halimede.pipeline.intake import LONGEST_S


@dataclass(slots=True)
class _Entry:
    delivery: Delivery[Frame]
    until: float
    size: int


class PendingFindings:
    """Who waits for the answer to which finding, by its key, and until when."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._entries: dict[bytes, _Entry] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    @property
    def free(self) -> int:
        """Places for further findings."""
        return 0 if self._bytes >= self._most_bytes else max(0, self._most - len(self))

    def put(self, key: bytes, delivery: Delivery[Frame], now: float) -> None:
        """Note who waits; one that asks again is answered on its latest question."""
        self.pop(key)
        left = delivery.body.deadline_ms / 1000
        entry = _Entry(delivery, now + (left if 0 < left < LONGEST_S else LONGEST_S), len(delivery.packet.payload))
        self._entries[key] = entry
        self._bytes += entry.size

    def pop(self, key: bytes) -> Delivery[Frame] | None:
        """Return who waits for the answer to a finding, if anybody does, and forget it."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._bytes -= entry.size
        return entry.delivery

    def expire(self, now: float) -> int:
        """Forget those whose asker has given up; return how many they were."""
        late = [key for key, entry in self._entries.items() if entry.until <= now]
        for key in late:
            self.pop(key)
        return len(late)


def found(key: bytes, asker: str, node: str, frame: Frame) -> Finding:
    """Return what a worker found in a frame, as its joint sees it."""
    return Finding(
        key=key,
        camera=frame.camera,
        worker=asker,
        node=node,
        sequence=frame.sequence,
        captured_ns=frame.captured_ns,
        prediction=frame.edge or Prediction(),
    )
