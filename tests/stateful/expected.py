"""What an operator has asked for, and whether the world is so: said without any code that decides in GM or LC."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from halimede.bus import Packet
from halimede.names import Key
from tests.integration.lc_world import FakeProcess
from tests.stateful.parts import Node
from tests.stateful.world import World
from tests.unit.api.samples import resource

SERVICES, MODELS = "jointinferenceservices", "models"
ROLES = {"edge": "small", "cloud": "big"}
Place = str | dict[str, str]


def model(name: str, version: int) -> dict[str, Any]:
    return resource("Model", {"url": f"/models/{name}-{version}.onnx", "format": "onnx"}, name)


def service(name: str, edge: Place, cloud: Place, revision: int) -> dict[str, Any]:
    def template(place: Place) -> dict[str, Any]:
        where = {"nodeName": place} if isinstance(place, str) else {"nodeSelector": place}
        container = {"image": "halimede/worker", "env": [{"name": "REVISION", "value": str(revision)}]}
        return {"spec": {**where, "containers": [container], "terminationGracePeriodSeconds": 2}}

    mining = {"name": "Margin"}
    edge_worker = {"model": {"name": "small"}, "hardExampleMining": mining, "template": template(edge)}
    cloud_worker = {"model": {"name": "big"}, "template": template(cloud)}
    return resource("JointInferenceService", {"edgeWorker": edge_worker, "cloudWorker": cloud_worker}, name)


@dataclass
class Applied:
    """A resource as it was applied last, and what GM said of it."""

    body: dict[str, Any]
    uid: str
    generation: int


@dataclass
class Expected:
    """All that was applied and not deleted, all that was deleted, and what nodes have let go of."""

    services: dict[str, Applied] = field(default_factory=dict)
    models: dict[str, Applied] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    #: (node, uid): a deletion that the node has acknowledged
    gone: set[tuple[str, str]] = field(default_factory=set)
    revived: list[str] = field(default_factory=list)
    #: (node, topic of a report) -> uid that it was of
    reported: dict[tuple[str, str], str] = field(default_factory=dict)

    def of(self, plural: str) -> dict[str, Applied]:
        return self.services if plural == SERVICES else self.models

    def watch(self, world: World) -> None:
        """Look at every message and every start from now on."""

        def heard(packet: Packet) -> None:
            parts = packet.topic.split("/")
            if parts[-1] != "status" or parts[0] != "node":
                return
            node, at = parts[1], (parts[1], packet.topic)
            uid = json.loads(packet.payload)["uid"] if packet.payload else ""
            before = self.reported.get(at, "")
            if before and before != uid and before in self.deleted:
                self.gone.add((node, before))
                alive = [p for p in world.nodes[node].workers.alive if p.record.uid == before]
                if alive and not uid:
                    self.revived.append(f"{node} lets {before} go while a worker of it lives")
            if uid:
                self.reported[at] = uid
            else:
                self.reported.pop(at, None)

        def started(node: str, process: FakeProcess) -> None:
            record = process.record
            if (node, record.uid) in self.gone:
                self.revived.append(f"{node} starts {record.name} of {record.uid}, which it has let go")
            twins = [p for p in world.nodes[node].workers.alive if p.record.worker == record.worker]
            if len(twins) > 1:
                self.revived.append(f"{node} runs {record.name} twice")

        world.broker.heard = heard
        for node in world.nodes.values():
            node.workers.on_start = started

    # --- what should be ---------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether all that is named exists."""
        return not self.services or self.models.keys() >= set(ROLES.values())

    def roles(self, node: Node) -> Iterator[tuple[str, str, Applied]]:
        """Yield (service, role, service as applied) of each worker that belongs on a node."""
        for name, applied in self.services.items():
            for role in ROLES:
                pod = applied.body["spec"][f"{role}Worker"]["template"]["spec"]
                if pod.get("nodeName") == node.node or pod.get("nodeSelector") == {"site": node.site}:
                    yield name, role, applied

    def workers(self, node: Node) -> set[tuple[str, str, str, str]]:
        """Return (worker, uid, revision, model file) of all that should run on a node."""
        wanted = set()
        for name, role, applied in self.roles(node):
            container = applied.body["spec"][f"{role}Worker"]["template"]["spec"]["containers"][0]
            used = self.models[ROLES[role]].body["spec"]["url"].replace("/", "_")
            wanted.add((node.worker(name, role).name, applied.uid, container["env"][0]["value"], used))
        return wanted

    def held(self, node: Node) -> set[tuple[Key, str, int]]:
        """Return what a node should hold."""
        held = set()
        for name, role, applied in self.roles(node):
            used = self.models[ROLES[role]]
            held.add((Key(SERVICES, "default", name), applied.uid, applied.generation))
            held.add((Key(MODELS, "default", ROLES[role]), used.uid, used.generation))
        return held


def problem(expected: Expected, world: World) -> str:
    """Say in what the world is not yet as it should be; empty: in nothing. All parts run, all models exist."""
    for part in world.parts:
        if not part.bus.connected:
            return f"{part.name} is not connected"
    for node in world.nodes.values():
        running, wanted = {_seen(p) for p in node.workers.alive}, expected.workers(node)
        if running != wanted:
            return f"{node.node} runs {sorted(running)}, not {sorted(wanted)}"
    kept = world.broker.kept
    phases = _phases(expected, world)
    for (plural, name), phase in phases.items():
        applied = expected.of(plural)[name]
        topic = f"default/sedna/status/{plural}/{name}"
        if topic not in kept:
            return f"there is no {topic}"
        shown = json.loads(kept[topic])
        said = (shown["uid"], shown["generation"], shown["status"]["observedGeneration"], shown["status"]["phase"])
        started = {"Running", "Degraded"} & {condition["type"] for condition in shown["status"]["conditions"]}
        now = phase if started or phase != "Degraded" else "Pending"  # a cloud worker that has never started
        if said != (applied.uid, applied.generation, applied.generation, now):
            return f"{topic} says {said} instead of {now}: {shown['status']['conditions'][-1]}"
    for node in world.nodes.values():
        if (here := _stored(node)) != (should := expected.held(node)):
            return f"{node.node} holds {here}, not {should}"
    topics = {f"default/sedna/status/{plural}/{name}" for plural, name in phases}
    for node in world.nodes.values():
        topics |= {
            f"node/{node.node}/default/sedna/upstream/{key.plural}/{key.name}/status"
            for key, _, _ in expected.held(node)
        }
    shown_now = {topic for topic in kept if topic.rsplit("/", 1)[-1] == "status" or "/sedna/status/" in topic}
    if topics != shown_now:
        return f"retained: {shown_now - topics} too much, {topics - shown_now} missing"
    return agreed(expected, world)


def agreed(expected: Expected, world: World) -> str:
    """Say in what GM's store is not what was applied. Holds at any time while GM runs, but for what is on its way out.

    An answer is a promise: what was acknowledged outlives every crash.
    """
    stored = {(s.key.plural, s.key.name): s for s in world.gm.cluster.resources()}
    for plural in (SERVICES, MODELS):
        for name, applied in expected.of(plural).items():
            found = stored.pop((plural, name), None)
            if found is None or found.deleting:
                return f"GM has lost {plural}/{name}"
            if (found.uid, found.resource.metadata.generation) != (applied.uid, applied.generation):
                return f"GM has {found.resource.metadata} instead of {applied.uid}, {applied.generation}"
    for found in stored.values():
        if found.uid not in expected.deleted or not found.deleting:
            return f"GM has {found.key}, which nobody applied"
    return ""


def leftover(world: World) -> str:
    """Say which resources are still on their way out."""
    return " ".join(str(s.key) for s in world.gm.cluster.resources() if s.deleting)


def _phases(expected: Expected, world: World) -> dict[tuple[str, str], str]:
    phases: dict[tuple[str, str], str] = {}
    placed = [(name, role) for node in world.nodes.values() for name, role, _ in expected.roles(node)]
    for name in expected.services:
        roles = {role for service_, role in placed if service_ == name}
        some = "Degraded" if "edge" in roles else "Pending"
        phases[SERVICES, name] = "Running" if roles == set(ROLES) else some
    for name in expected.models:
        phases[MODELS, name] = "Ready" if any(ROLES[role] == name for _, role in placed) else "Unused"
    return phases


def _seen(process: FakeProcess) -> tuple[str, str, str, str]:
    assert process.start is not None
    env = process.start.spec.env
    return process.record.name, process.record.uid, env["REVISION"], env["MODEL_URL"].rsplit("/", 1)[-1]


def _stored(node: Node) -> set[tuple[Key, str, int]]:
    with contextlib.closing(sqlite3.connect(node.store)) as db:
        rows = db.execute("SELECT key, uid, generation FROM resources").fetchall()
    return {(Key.parse(key), uid, generation) for key, uid, generation in rows}
