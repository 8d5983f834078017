"""One hard sample on its way to the cloud and back, as its asker sees it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from msgspec.structs import replace

from halimede.frames.reasons import OffloadError, Reason
from halimede.messages import Frame, Reply
from halimede.topic import Address
from halimede.tracing import Record, write
from halimede.tracing.steps import REQUEST, WINDOW

#: attempts of one sample that its trace shows
SHOWN = 16
NOTHING = memoryview(b"")


class Beside(TypedDict):
    """What v5 carries beside a frame (``Bus.publish``)."""

    reply_to: Address[Reply]
    correlation: bytes
    expiry_s: int
    properties: Mapping[str, str] | None


@dataclass(slots=True, eq=False)
class Ask:
    """One sample under way. ``turn`` is set when it was answered or has to be sent again: look at ``reply``."""

    frame: Frame
    correlation: bytes
    clock: asyncio.Timeout
    until: float
    turn: asyncio.Event
    #: when it was asked for
    began: float = 0.0
    reply: Reply | None = None
    #: some worker has had it; it is out now
    sent: bool = False
    out: bool = False
    #: the worker that has it; "" while it is on the shared topic or with nobody
    worker: str = ""
    #: all that it was sent to, "" for the shared topic; how many of them ended while they had it
    asked: set[str] = field(default_factory=set)
    deaths: int = 0
    #: what it waits for, which is the reason to give should time run out
    lacks: Reason = Reason.DEADLINE
    trace: Record | None = None
    attempts: int = 0
    #: the broker's word on the attempt that is out; whether it owes one; what it or the connection's end meant
    taken: asyncio.Future[int] | None = None
    owed: bool = False
    refused: OffloadError | None = None
    broke: bool = False

    @property
    def data(self) -> memoryview:
        """The sample's bytes."""
        return self.frame.data

    def body(self, service: str, worker: str, left_s: float) -> Frame:
        """Return the frame as it travels, but for its data, which follow uncopied."""
        return replace(self.frame, service=service, worker=worker, deadline_ms=left_s * 1000, data=NOTHING)

    def beside(self, answers: Address[Reply], left_s: float) -> Beside:
        """Return what is sent beside the frame."""
        return {
            "reply_to": answers,
            "correlation": self.correlation,
            "expiry_s": math.ceil(left_s),
            "properties": self.properties,
        }

    @property
    def properties(self) -> Mapping[str, str] | None:
        """What tells whoever gets the sample which trace it belongs to."""
        return write(self.trace.ask()) if self.trace else None

    def waited(self, began: float) -> None:
        """Note that it waited for a place or a credit, from ``began`` (monotonic) until now."""
        if self.trace and self.attempts < SHOWN:
            self.trace.step(WINDOW, began, time.monotonic(), str(self.lacks))

    def attempted(self, worker: str, began: float) -> None:
        """Note an attempt that ends now."""
        self.attempts += 1
        if self.trace and self.attempts <= SHOWN:
            answered = self.reply is not None
            self.trace.step(REQUEST, began, time.monotonic(), worker or "any", self.attempts, answered)
