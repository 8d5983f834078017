"""Statuses as real kubelets, the scheduler and the controllers leave them: the files of ``recordings``.

Each file is one case: ``pods``, ``nodes``, ``objects`` and ``events`` as the API returned them, recorded by
``tests/cluster/recording.py``. ``kubernetes`` has the version. A file with ``source`` was not recorded but written.
"""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tests.kubernetes.client import Client
from tests.kubernetes.podstates import Body, State

FOLDER = Path(__file__).parent / "recordings"


@cache
def _read(case: str) -> Body:
    found: Body = msgspec.json.decode((FOLDER / f"{case}.json").read_bytes())
    assert found["case"] == case
    return found


def recorded(case: str) -> Body:
    return copy.deepcopy(_read(case))


def pods_of(case: str) -> list[Body]:
    return list(recorded(case)["pods"])


def nodes_of(case: str) -> list[Body]:
    return list(recorded(case)["nodes"])


def events_of(case: str) -> list[Body]:
    """Return the events about pods of a case."""
    return [each for each in recorded(case)["events"] if each.get("involvedObject", {}).get("kind", "Pod") == "Pod"]


def cases() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def left(case: str, number: int = 0) -> State:
    """Return the status of one of a case's pods, for any pod: only the names of its containers are that pod's."""
    status = pods_of(case)[number]["status"]

    def state(pod: Body) -> Body:
        now = copy.deepcopy(status)
        for field, of in (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")):
            known = pod["spec"].get(of, [])
            found = zip(known, now.get(field, []), strict=False)
            # recordings have no digests of images, but the API wants the field
            now[field] = [{"imageID": "", **each, "name": own["name"]} for own, each in found]
        return now

    return state


async def leave_node(client: Client, name: str, case: str) -> None:
    """Bring a Node to the conditions and taints of a case."""
    node = nodes_of(case)[0]
    await client.patch("Node", None, name, {"spec": {"taints": node["spec"].get("taints")}})
    await client.patch("Node", None, name, {"status": {"conditions": node["status"]["conditions"]}}, "status")


async def leave_events(client: Client, pod: Body, case: str) -> None:
    """Write the events that a case has of its pods as those of one pod."""
    meta = pod["metadata"]
    about = {"apiVersion": "v1", "kind": "Pod", **{name: meta[name] for name in ("name", "namespace", "uid")}}
    for number, event in enumerate(events_of(case)):
        own = {"name": f"{meta['name']}.{number}", "namespace": meta["namespace"]}
        kept: dict[str, Any] = {name: value for name, value in event.items() if value is not None}
        await client.create("Event", meta["namespace"], {**kept, "metadata": own, "involvedObject": about})
