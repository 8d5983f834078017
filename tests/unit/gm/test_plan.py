"""What each kind's plan asks for: plain values in, actions out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from halimede.api import Resource, parse
from halimede.messages import Metric, ModelFacts, NodeStatus, Presence, Status, WorkerReport
from halimede.names import Key
from services.gm.cluster.port import NodeReport
from services.gm.controllers import CONTROLLERS, Observed, plan
from services.gm.controllers.base import ClearStatus, Finalize, Forget, Keep, RecordEvent, Send, WriteStatus
from services.gm.nodes import Node
from tests.integration.gm_world import dataset, model, service

EDGE, CLOUD, BOTH = frozenset({"edge"}), frozenset({"cloud"}), frozenset({"edge", "cloud"})


def stored(body: dict[str, Any], *, generation: int = 1, **metadata: Any) -> Resource[Any]:
    meta = {**body["metadata"], "uid": f"uid-{body['metadata']['name']}", "generation": generation, **metadata}
    return parse({**body, "metadata": meta})


def node(name: str, *, online: bool = True) -> Node:
    return Node(name, online=online, epoch=1, presence=Presence(node=name, epoch=1, online=online))


SMALL, BIG, FRAMES = stored(model("small")), stored(model("big")), stored(dataset("frames"))
NODES = {name: node(name) for name in ("edge0", "edge1", "cloud0")}


def seen_where(placed: Mapping[str, Collection[str]], /, *resources: Resource[Any], **changes: Any) -> Observed:
    """Return what GM knows where the nodes of ``placed`` are online and these resources are there."""
    nodes, references = {name: node(name) for name in placed}, {resource.key: resource for resource in resources}
    fresh = {"now": "2026-01-01T00:00:00Z", "placed": placed, "nodes": nodes, "references": references}
    return Observed(**{**fresh, **changes})


def seen(**changes: Any) -> Observed:
    return seen_where({"edge0": EDGE, "cloud0": CLOUD}, SMALL, BIG, FRAMES, **{"nodes": NODES, **changes})


def written(actions: list[Any]) -> Status:
    """Return the status that a plan writes."""
    [write] = [action for action in actions if isinstance(action, WriteStatus)]
    return write.status


def verdict(status: Status) -> tuple[str, str]:
    return status.phase, status.conditions[-1].reason


def deliveries(resource: Resource[Any], observed: Observed) -> list[Any]:
    return [action for action in plan(resource, observed) if isinstance(action, Send | Keep | Forget)]


def reported(resource: Resource[Any], on: str, *workers: WorkerReport, **fields: Any) -> NodeReport:
    """Return what a node says of a resource; ``fields``: of the status."""
    meta = resource.metadata
    status = {"phase": "Running", "uid": meta.uid, "observed_generation": meta.generation, "workers": list(workers)}
    is_edge = any(worker.role == "edge" for worker in workers)
    return NodeReport(resource.key, on, NodeStatus(**{**status, **fields}), edge=is_edge)


def report(resource: Resource[Any], on: str, *roles: Any, phase: Any = "Running") -> NodeReport:
    workers = [WorkerReport(name=f"w-{role}", role=role, phase=phase) for role in roles]
    return reported(resource, on, *workers, phase=phase)


def test_each_node_gets_what_its_roles_name_and_then_the_service() -> None:
    helmet = stored(service(dataset={"name": "frames"}))
    assert deliveries(helmet, seen()) == [
        Send("edge0", SMALL), Send("edge0", FRAMES), Send("edge0", helmet), Send("cloud0", BIG), Send("cloud0", helmet),
    ]  # fmt: skip


def test_a_node_with_both_roles_gets_both_models_and_one_service() -> None:
    helmet = stored(service(edge="edge0", cloud="edge0"))
    sent = deliveries(helmet, seen(placed={"edge0": BOTH}))
    assert sent == [Send("edge0", SMALL), Send("edge0", BIG), Send("edge0", helmet)]


def test_a_dataset_goes_only_where_its_data_is() -> None:
    helmet, elsewhere = stored(service(dataset={"name": "frames"})), stored(dataset("frames", nodeName="edge1"))
    references = {SMALL.key: SMALL, BIG.key: BIG, FRAMES.key: elsewhere}
    assert Send("edge0", elsewhere) not in deliveries(helmet, seen(references=references))
    placed = {"edge1": frozenset[str]()}
    observed = seen(placed=placed, holders=frozenset({"edge0"}))
    assert deliveries(elsewhere, observed) == [Send("edge1", elsewhere), Forget("edge0", FRAMES.key, "uid-frames", 0)]


@pytest.mark.parametrize("missing", [SMALL, FRAMES], ids=["model", "dataset"])
def test_a_node_whose_role_misses_something_keeps_what_it_has_and_the_others_go_on(missing: Resource[Any]) -> None:
    helmet = stored(service(dataset={"name": "frames"}))
    references = {**seen().references, missing.key: None}
    sent = deliveries(helmet, seen(references=references))
    assert Keep("edge0", helmet.key, "uid-helmet") in sent
    assert Send("edge0", helmet) not in sent
    assert sent[-1] == Send("cloud0", helmet)


def test_who_holds_a_service_without_a_role_in_it_forgets_it_but_may_take_this_generation_again() -> None:
    helmet = stored(service(), generation=3)
    sent = deliveries(helmet, seen(holders=frozenset({"edge0", "edge1"})))
    assert sent[-1] == Forget("edge1", helmet.key, "uid-helmet", 2)


@pytest.mark.parametrize(
    ("url", "nodes", "problem"),
    [
        ("rtsp://10.0.0.7/door", ("edge0", "edge1"), "SeveralReaders"),
        ("https://cam/video", ("edge0", "edge1"), "SeveralReaders"),
        ("rtsp://10.0.0.7/door", ("edge0",), "AllWorkersRun"),
        ("/dev/video0", ("edge0", "edge1"), "AllWorkersRun"),  # every node has its own
        ("file:///data/street.mp4", ("edge0", "edge1"), "AllWorkersRun"),
    ],
)
def test_one_network_camera_that_several_nodes_read_is_a_condition(
    url: str, nodes: tuple[str, ...], problem: str
) -> None:
    body = service(edge={"site": "north"})
    body["spec"]["edgeWorker"]["source"] = {"url": url}
    helmet = stored(body)
    reports = {name: report(helmet, name, "edge") for name in nodes} | {"cloud0": report(helmet, "cloud0", "cloud")}
    observed = seen(placed={**dict.fromkeys(nodes, EDGE), "cloud0": CLOUD}, reports=reports)
    made = CONTROLLERS["jointinferenceservices"].status(helmet, observed)
    assert made.conditions[-1].reason == problem
    assert made.phase == ("Running" if problem == "AllWorkersRun" else "Degraded")
    if made.phase == "Degraded":
        assert "spec.edgeWorker.source.url: nodes edge0, edge1 each read it" in made.conditions[-1].message


def test_how_far_a_download_is_is_told_in_coarse_steps() -> None:
    told = report(SMALL, "edge0", phase="Pending")
    facts = ModelFacts(size=200_000_000, done=99_000_000, rate=11_900_000)
    status = msgspec.structs.replace(told.status, reason="Downloading", model=facts)
    observed = seen(placed={"edge0": frozenset()}, reports={"edge0": replace(told, status=status)})
    made = CONTROLLERS["models"].status(SMALL, observed)
    assert (made.phase, made.conditions[-1].reason) == ("Pending", "Downloading")
    assert made.nodes[0].message == "45 % of 200 MB downloaded, at about 10 MB/s"


def test_measures_of_others_stay_until_the_model_is_another() -> None:
    own = stored(model("small", metrics=[{"key": "accuracy", "value": "0.9"}]))
    others = [Metric(key="accuracy", value="0.1"), Metric(key="recall", value="0.7")]
    before = Status(observed_generation=1, metrics=others)
    made = CONTROLLERS["models"].status(own, seen(placed={}, status=before))
    assert {m.key: m.value for m in made.metrics} == {"accuracy": "0.9", "recall": "0.7"}
    newer = stored(own.body, generation=2)
    made = CONTROLLERS["models"].status(newer, seen(placed={}, status=before))
    assert {m.key: m.value for m in made.metrics} == {"accuracy": "0.9"}


def test_a_model_goes_where_it_is_needed_and_leaves_where_it_is_not() -> None:
    observed = seen(placed={"edge0": frozenset()}, holders=frozenset({"edge0", "cloud0"}))
    assert deliveries(SMALL, observed) == [Send("edge0", SMALL), Forget("cloud0", SMALL.key, "uid-small", 0)]


def test_planning_again_with_the_status_written_asks_for_no_second_write() -> None:
    helmet = stored(service())
    reports = {"edge0": report(helmet, "edge0", "edge"), "cloud0": report(helmet, "cloud0", "cloud")}
    actions = plan(helmet, seen(reports=reports))
    [write] = [a for a in actions if isinstance(a, WriteStatus)]
    assert RecordEvent("Normal", "Running", str(helmet.key), "AllWorkersRun: 2 workers are running") in actions
    later = seen(reports=reports, status=write.status, now="2026-01-01T01:00:00Z")
    assert all(isinstance(a, Send) for a in plan(helmet, later))


def test_deleting_waits_for_online_holders_alone() -> None:
    gone = stored(service(), deletionTimestamp="2026-01-01T00:00:00Z")
    key, uid = gone.key, "uid-helmet"
    both = seen(holders=frozenset({"edge0", "edge1"}))
    assert plan(gone, both) == [Forget("edge0", key, uid, 1), Forget("edge1", key, uid, 1)]
    away = replace(both, nodes={"edge0": node("edge0", online=False), "edge1": node("edge1", online=False)})
    assert plan(gone, away)[2:] == [
        ClearStatus(key),
        Finalize(key, uid),
        RecordEvent("Normal", "Deleted", str(key), ""),
    ]
    assert plan(gone, seen())[0] == ClearStatus(key)


@pytest.mark.parametrize(
    ("placed", "reports", "phase", "reason"),
    [
        ((), {}, "Unused", "NotNeeded"),
        (("edge0",), {}, "Pending", "Preparing"),
        (("edge0",), {"edge0": "Ready"}, "Ready", "OnAllNodes"),
        (("edge0", "edge1"), {"edge0": "Ready"}, "Pending", "Preparing"),
        (("edge0", "edge1"), {"edge0": "Ready", "edge1": "Failed"}, "Failed", "Failed"),
        (("edge0", "edge1"), {"edge1": "Failed"}, "Failed", "Failed"),
        (("edge9",), {}, "Pending", "NodeOffline"),
    ],
)
def test_a_model_is_ready_once_every_node_that_needs_it_has_it(
    placed: tuple[str, ...], reports: dict[str, str], phase: str, reason: str
) -> None:
    made = {name: report(SMALL, name, phase=phase) for name, phase in reports.items()}
    status = CONTROLLERS["models"].status(SMALL, seen(placed=dict.fromkeys(placed, frozenset()), reports=made))
    assert (status.phase, status.conditions[-1].reason) == (phase, reason)
    assert [n.node for n in status.nodes if n.phase != "Ready"] == [n for n in placed if reports.get(n) != "Ready"]


def test_every_key_that_a_service_names_is_in_its_own_namespace() -> None:
    body = service(dataset={"name": "frames"})
    body["metadata"]["namespace"] = "plant"
    entry = CONTROLLERS["jointinferenceservices"].entry(parse(body))
    assert entry.references == {
        Key("models", "plant", "small"), Key("models", "plant", "big"), Key("datasets", "plant", "frames"),
    }  # fmt: skip
