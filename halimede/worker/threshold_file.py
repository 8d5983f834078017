"""Stores the adapted thresholds of a worker's mining in the worker's folder, so that a restarted worker continues.

Thresholds are adapted to costs, beginning with those of the mining rule. Stored ones are used only for the same
service, the same parameters of the rule, and the same costs; otherwise a worker begins with those of the rule.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from halimede.api.deferral import Costs
from halimede.pipeline.upload_policy.adaptive_thresholds import AdaptiveThresholds, ThresholdState
from halimede.system.files import write_atomic
from halimede.worker.settings import WorkerSettings

log = structlog.get_logger()

#: name of the file, and its most bytes
NAME, MAX_BYTES = "thresholds.json", 65_536
#: seconds between two writes
WRITE_PERIOD_S = 30.0


class ThresholdFile(Struct, kw_only=True):
    """The content of the file: the adapted thresholds, and the service, rule and costs for which they are."""

    state: ThresholdState
    uid: str
    parameters: dict[str, str]
    costs: Costs


def read_thresholds(settings: WorkerSettings) -> ThresholdState | None:
    """Return the thresholds of an earlier process of this worker; None: begin with those of the rule."""
    if settings.costs is None:
        return None
    try:
        with (settings.state / NAME).open("rb") as file:
            stored = msgspec.json.decode(file.read(MAX_BYTES), type=ThresholdFile)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("thresholds not read: the worker begins with those of the rule", error=str(error))
        return None
    owner = (stored.uid, stored.parameters, stored.costs)
    return stored.state if owner == (settings.uid, dict(settings.hem_parameters), settings.costs) else None


@contextlib.asynccontextmanager
async def keeping_thresholds(settings: WorkerSettings, thresholds: AdaptiveThresholds | None) -> AsyncIterator[None]:
    """In the block, write the thresholds every WRITE_PERIOD_S, and at its end; None: they are not adapted."""
    if thresholds is None:
        yield
        return
    writing = asyncio.create_task(_write_repeatedly(settings, thresholds), name="thresholds")
    try:
        yield
    finally:
        writing.cancel()
        _write(settings, thresholds)


async def _write_repeatedly(settings: WorkerSettings, thresholds: AdaptiveThresholds) -> None:
    """Write the thresholds every WRITE_PERIOD_S, until cancelled."""
    while True:
        await asyncio.sleep(WRITE_PERIOD_S)
        _write(settings, thresholds)


def _write(settings: WorkerSettings, thresholds: AdaptiveThresholds) -> None:
    """Write the thresholds once; a file that cannot be written is logged."""
    if settings.costs is None:
        return
    contents = ThresholdFile(
        state=thresholds.state, uid=settings.uid, parameters=dict(settings.hem_parameters), costs=settings.costs
    )
    path: Path = settings.state / NAME
    try:
        write_atomic(path, msgspec.json.encode(contents))
    except OSError as error:
        log.warning("thresholds not kept", path=str(path), error=error.strerror)
