"""The events of single pods: each late pod has its turn, and what cannot be read is left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.gm.cluster.kubernetes.client import KubernetesApiError
from services.gm.cluster.kubernetes.pod_warnings import AT_ONCE, FRESH_S, PodWarnings

pytestmark = pytest.mark.simulated


class Events:
    """An API server with one warning about each pod, which remembers who was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refuse = False

    async def pages(self, _api: Any, *, namespace: str, fields: str) -> AsyncIterator[tuple[list[Any], str]]:
        if self.refuse:
            raise KubernetesApiError("events", 403, "no events")
        uid = fields.removeprefix("involvedObject.uid=").removesuffix(",type=Warning")
        self.asked.append(uid)
        yield [{"reason": "FailedMount", "message": f"{namespace} {uid}", "lastTimestamp": "2026-01-01T00:00:00Z"}], "1"


async def test_all_late_pods_are_read_in_turn_however_seldom_one_looks() -> None:
    events, uids = Events(), [f"uid-{n}" for n in range(2 * AT_ONCE + 1)]
    warnings = PodWarnings(events)  # type: ignore[arg-type]
    for look in range(3):
        await asyncio.sleep(FRESH_S + 2)  # then all earlier answers are stale
        found = await warnings.get("default", uids)
        assert len(events.asked) == AT_ONCE * (look + 1)
    assert found == {uid: ("FailedMount", f"default {uid}") for uid in uids}


async def test_an_answer_is_used_while_it_is_fresh_and_after_one_that_was_refused() -> None:
    events = Events()
    warnings = PodWarnings(events)  # type: ignore[arg-type]
    first = await warnings.get("default", ["a"])
    await asyncio.sleep(FRESH_S - 1)
    assert await warnings.get("default", ["a"]) == first
    assert events.asked == ["a"]
    await asyncio.sleep(FRESH_S)
    events.refuse = True
    assert await warnings.get("default", ["a", "b"]) == first
