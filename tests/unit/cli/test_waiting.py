"""What ``--wait`` takes for ready, and what it says of what is not."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.cli.client import ApiRefusedError, Client
from halimede.cli.waiting import NotReadyError, wait_ready
from halimede.names import Key

DIGITS = Key("jointinferenceservices", "default", "digits")


class Said(Client):
    """A client to which GM says one thing after the other, and the last one for ever."""

    def __init__(self, *bodies: dict[str, Any] | None) -> None:
        self.bodies = list(bodies)

    async def get(self, plural: str, name: str, namespace: str = "default") -> dict[str, Any]:
        body = self.bodies.pop(0) if len(self.bodies) > 1 else self.bodies[0]
        if body is None:
            raise ApiRefusedError("NotFound", "there is none")
        return body


def body(phase: str, observed: int, **metadata: Any) -> dict[str, Any]:
    status = {"phase": phase, "observedGeneration": observed, "conditions": [{"reason": "Why", "message": "because"}]}
    return {"metadata": {"name": "digits", "namespace": "default", **metadata}, "status": status}


async def test_it_is_ready_when_this_generation_is_not_the_one_before() -> None:
    said = Said(body("Pending", 1), body("Running", 1), body("Running", 2))
    await wait_ready(said, DIGITS, 2, 10)
    assert said.bodies == [body("Running", 2)]


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (body("Degraded", 2), "ji/digits: Degraded: Why: because. What to do: "),
        (body("Running", 1), "ji/digits: its new generation has not been observed yet"),
        (body("Running", 2, deletionTimestamp="2026-01-01T00:00:00Z"), "not ready in time: ji/digits"),
    ],
)
async def test_what_is_not_ready_in_time_is_said_with_its_condition(last: dict[str, Any], message: str) -> None:
    with pytest.raises(NotReadyError, match=message):
        await wait_ready(Said(last), DIGITS, 2, 0.3)


async def test_what_was_deleted_meanwhile_is_not_waited_for() -> None:
    with pytest.raises(NotReadyError, match="was deleted"):
        await wait_ready(Said(body("Pending", 1), None), DIGITS, 1, 10)
