"""``halimede publish``: pictures as a camera would send them."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from halimede import topics
from halimede.bus.port import Bus
from halimede.cli import images
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client, UnreachableError
from halimede.cli.images import InlineImage
from halimede.cli.output import console, warn
from halimede.errors import DisconnectedError, first_error
from halimede.names import check_label
from halimede.topic import Address
from halimede.tracing import Book, FrameRecord, write
from halimede.tracing.export import exporting
from halimede.tracing.steps import PUBLISH

#: messages on their way at a time
WINDOW = 20
#: seconds that a frame is tried again while the broker is away
PATIENCE_S = 30.0
RETRY_S = 0.2
#: frames a second, where nobody says how many
FPS = 25.0

Properties = Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """What is to be sent. ``rounds`` 0: for ever; ``fps`` 0: as fast as the broker takes it."""

    paths: Sequence[str]
    camera: str
    namespace: str
    fps: float
    rounds: int
    qos: int
    bare: bool


@dataclass(slots=True)
class PublishSummary:
    """What became of it."""

    sent: int = 0
    unheard: int = 0


async def publish(broker: BrokerAddress, plan: PublishPlan) -> None:
    """Send all pictures of a plan in order, showing progress, and say at the end what became of them."""
    address = topics.CAMERA_FRAME.at(ns=plan.namespace, camera=check_label("--camera", plan.camera))
    async with Client.to(broker) as client:
        pictures, others = images.find(plan.paths, images.limit(client.bus.max_packet, bare=plan.bare))
        if others:
            warn(f"files that are neither JPEG nor PNG, left out: {others}")
        tally, loop = PublishSummary(), asyncio.get_running_loop()
        started = loop.time()
        names = {"namespace": plan.namespace, "service": "", "worker": plan.camera, "node": socket.gethostname()}
        try:
            async with exporting("camera", names) as exporter:
                await send_all(client.bus, address, pictures, plan, tally, book=Book(exporter, size=WINDOW))
        finally:
            _report(address, plan, tally, loop.time() - started)


async def send_all(
    bus: Bus,
    address: Address[bytes],
    pictures: Sequence[InlineImage],
    plan: PublishPlan,
    tally: PublishSummary,
    *,
    book: Book,
) -> None:
    """Send pictures at the pace of the plan, at most ``WINDOW`` at a time unacknowledged; count into ``tally``."""
    window = asyncio.Semaphore(WINDOW)
    loop = asyncio.get_running_loop()
    started = loop.time()
    total = len(pictures) * plan.rounds or None

    async def send(data: bytes, trace: FrameRecord | None) -> None:
        began = time.monotonic()
        try:
            heard = await send_frame(bus, address, data, plan.qos, write(trace.here) if trace else None)
            if trace:
                trace.step((PUBLISH, began, time.monotonic(), plan.camera, heard))
                book.done(trace)
            tally.sent += 1
            tally.unheard += not heard
            progress.update(task, completed=tally.sent)
        finally:
            window.release()

    with progress_bar() as progress, first_error():
        task = progress.add_task(str(address), total=total)
        async with asyncio.TaskGroup() as group:
            for sequence, picture in enumerate(_rounds(pictures, plan.rounds)):
                if plan.fps:
                    await asyncio.sleep(max(0.0, started + sequence / plan.fps - loop.time()))
                await window.acquire()
                id_ = secrets.token_bytes(16)
                data = images.payload(picture, plan.camera, sequence, id_, bare=plan.bare)
                group.create_task(send(data, None if plan.bare else book.begin(id_)))


async def send_frame(bus: Bus, address: Address[bytes], data: bytes, qos: int, properties: Properties = None) -> bool:
    """Publish one frame with these user properties; return whether anybody takes it.

    While the broker is away try again. A frame of ours keeps its id, so it counts once.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + PATIENCE_S
    while True:
        try:
            return await bus.publish(address, data, qos=qos, properties=properties)
        except DisconnectedError as error:
            if loop.time() >= give_up:
                raise UnreachableError(f"the broker has been away for {PATIENCE_S:g} s: {error}") from error
            await asyncio.sleep(RETRY_S)


def _rounds(pictures: Sequence[InlineImage], rounds: int) -> Iterator[InlineImage]:
    endless: Iterator[Any] = itertools.count() if rounds == 0 else iter(range(rounds))
    return (picture for _ in endless for picture in pictures)


def progress_bar() -> Progress:
    """Return a bar on standard error, of which nothing stays; none where that is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def _report(address: Address[bytes], plan: PublishPlan, tally: PublishSummary, seconds: float) -> None:
    rate = f"{tally.sent / seconds:.0f} a second" if seconds > 0 else "at once"
    taken = ", each acknowledged by the broker" if plan.qos and tally.sent else ""
    console().print(f"{tally.sent} frames sent to {address} in {seconds:.1f} s ({rate}){taken}")
    if tally.unheard:
        warn(
            f"{tally.unheard} of them reached nobody: no edge worker takes camera {plan.camera} in namespace "
            f"{plan.namespace} (see `halimede get ji -A`, `halimede get mei -A`)"
        )
