"""Statuses as real kubelets, the scheduler and the node controller leave them: the files of ``recordings``.

Each file is one case: ``pod``, ``node`` and ``events`` as the API returned them, or ``pods`` and ``nodes`` of a whole
namespace. ``kubernetes`` has the version, and ``source`` says of a file that was not recorded how it was written.
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
    """Return a case."""
    return copy.deepcopy(_read(case))


def pods_of(case: str) -> list[Body]:
    """Return the pods of a case."""
    found = recorded(case)
    return [*found.get("pods", []), *([found["pod"]] if "pod" in found else [])]


def nodes_of(case: str) -> list[Body]:
    """Return the nodes of a case."""
    found = recorded(case)
    return [*found.get("nodes", []), *([found["node"]] if "node" in found else [])]


def cases() -> list[str]:
    """Return the names of all cases."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def left(case: str) -> State:
    """Return the status of a case's pod, for any pod: only the names of its containers are that pod's."""
    status = recorded(case)["pod"]["status"]

    def state(pod: Body) -> Body:
        now = copy.deepcopy(status)
        for field, of in (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")):
            known = pod["spec"].get(of, [])
            now[field] = [{**each, "name": own["name"]} for own, each in zip(known, now.get(field, []), strict=False)]
        return now

    return state


async def leave_node(client: Client, name: str, case: str) -> None:
    """Bring a Node to the conditions and taints of a case."""
    node = recorded(case)["node"]
    await client.patch("Node", None, name, {"spec": {"taints": node["spec"].get("taints")}})
    await client.patch("Node", None, name, {"status": {"conditions": node["status"]["conditions"]}}, "status")


async def leave_events(client: Client, pod: Body, case: str) -> None:
    """Write the events of a case about a pod."""
    meta = pod["metadata"]
    about = {"apiVersion": "v1", "kind": "Pod", **{name: meta[name] for name in ("name", "namespace", "uid")}}
    for number, event in enumerate(recorded(case)["events"]):
        own = {"name": f"{meta['name']}.{number}", "namespace": meta["namespace"]}
        kept: dict[str, Any] = {name: value for name, value in event.items() if value is not None}
        await client.create("Event", meta["namespace"], {**kept, "metadata": own, "involvedObject": about})
