"""Lists the cameras of a system: cameras that publish their status, and cameras that services name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from halimede import topics
from halimede.api.placement import camera_readers
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.cli.output import age, plain, table
from halimede.messages import CameraStatus

#: most cameras whose status is read
MAX_CAMERAS = 1000
#: the state of a camera that only services name
SILENT = "no status"
#: a camera as plain data: fields of its ``CameraStatus``, ``namespace``, and ``services`` that read it
Row = dict[str, Any]


async def statuses(bus: Bus, seconds: float) -> list[tuple[str, CameraStatus]]:
    """Return the statuses of cameras that arrive within ``seconds``, each after its topic, sorted by topic.

    At most ``MAX_CAMERAS``, without secrets in their addresses. Raises BusError.
    """
    reports: dict[str, CameraStatus] = {}

    async def take(delivery: Delivery[CameraStatus]) -> None:
        if len(reports) < MAX_CAMERAS:
            reports[delivery.address.text] = delivery.body.without_secrets()

    kinds = (topics.CAMERA_STATUS, topics.NODE_CAMERA_STATUS)
    for kind in kinds:
        await bus.subscribe(kind.filter(), take)
    await asyncio.sleep(seconds)
    for kind in kinds:
        await bus.unsubscribe(kind.filter())
    return sorted(reports.items())


def rows(reports: Iterable[tuple[str, CameraStatus]], services: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return each camera as a row, by namespace and name; ``services`` are bodies of resources.

    A camera that publishes frames itself, without a camera process, has no status: only services name it.
    """
    readers = camera_readers(services)
    cameras, reported = [], set()
    for topic, status in reports:
        names = topics.CAMERA_STATUS.parse(topic) or topics.NODE_CAMERA_STATUS.parse(topic) or {}
        key = names.get("ns", ""), status.camera
        reported.add(key)
        cameras.append({"namespace": key[0], **plain(status), "services": readers.get(key, [])})
    cameras += [
        {"namespace": key[0], "camera": key[1], "state": SILENT, "services": names}
        for key, names in readers.items()
        if key not in reported
    ]
    return sorted(cameras, key=lambda row: (row["namespace"], row["camera"], row.get("node", "")))


def camera_table(cameras: Iterable[Row], *, wide: bool, all_namespaces: bool) -> Table:
    """Return the table of cameras; ``wide``: with all columns, ``all_namespaces``: with that of the namespace."""
    titles = ["NAMESPACE"] * all_namespaces + ["NAME", "STATE", "FRAMES/S", "FRAMES", "SIZE", "LAST FRAME", "SERVICES"]
    return table(
        titles + ["NODE", "SKIPPED", "REFUSED", "SOURCE", "MESSAGE"] * wide,
        ([row["namespace"]] * all_namespaces + _cells(row) + _wide_cells(row) * wide for row in cameras),
    )


def _cells(row: Row) -> list[str]:
    """Return the cells of a camera that each table has; ``-`` for what is unknown."""
    reports = row["state"] != SILENT
    return [
        row["camera"],
        row["state"],
        f"{row.get('fps', 0.0):g}" if reports else "-",
        str(row.get("frames", 0)) if reports else "-",
        f"{row['width']} x {row.get('height', 0)}" if row.get("width") else "-",
        f"{age(row['lastFrame'])} ago" if row.get("lastFrame") else "-",
        ", ".join(row["services"]) or "-",
    ]


def _wide_cells(row: Row) -> list[str]:
    """Return the further cells of a camera in a wide table; ``-`` for what is unknown."""
    message = ": ".join(filter(None, (row.get("reason"), row.get("error"))))
    counts = [str(row.get(key, 0)) if row["state"] != SILENT else "-" for key in ("skipped", "refused")]
    return [row.get("node") or "-", *counts, row.get("source") or "-", message or "-"]
