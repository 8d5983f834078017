"""Datasets at GM: who is sent one, and what its status says of what the node has found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from halimede.messages import ClassCount, DatasetFacts, Presence, Status
from services.gm.cluster.port import NodeReport
from services.gm.controllers import CONTROLLERS, Observed
from services.gm.nodes import Node, Nodes
from services.gm.reference_index import ReferenceIndex
from tests.integration.gm_world import dataset, service
from tests.unit.gm.test_plan import NODES, reported, seen_where, stored, verdict

RULES = CONTROLLERS["datasets"]
FACTS = DatasetFacts(number_of_samples=3, classes=[ClassCount(name="a", count=3)], counted_at="2026-01-01T00:00:00Z")
OWNED = stored(dataset("frames", nodeName="edge1"))


def said(phase: Any, *, facts: DatasetFacts | None = None, **fields: Any) -> NodeReport:
    return reported(OWNED, "edge1", phase=phase, dataset=facts, **fields)


def seen(*reports: NodeReport, **changes: Any) -> Observed:
    fresh = {"nodes": NODES, "reports": {report.node: report for report in reports}}
    return seen_where({"edge1": frozenset()}, **{**fresh, **changes})


def test_a_dataset_belongs_to_its_node_alone_and_whether_a_service_names_it_or_not() -> None:
    index = ReferenceIndex(Nodes())
    key = OWNED.key
    index.put(key, RULES.entry(OWNED))
    assert (index.roles_by_node(key), index.roles_on(key, "edge0")) == ({"edge1": frozenset()}, None)
    assert (index.roles_on(key, "edge1"), set(index.keys_on("edge1"))) == (frozenset(), {key})
    helmet = stored(service(dataset={"name": "frames"}))
    index.put(helmet.key, CONTROLLERS["jointinferenceservices"].entry(helmet))
    assert index.roles_by_node(key) == {"edge1": frozenset()}
    moved = stored(dataset("frames", nodeName="edge0"), generation=2)
    assert helmet.key in index.put(key, RULES.entry(moved))
    assert (list(index.roles_by_node(key)), set(index.keys_on("edge1"))) == (["edge0"], set())
    index.put(key, RULES.entry(stored(dataset("frames"), generation=3)))  # without a node: where it is needed
    assert list(index.roles_by_node(key)) == ["edge0"]
    index.put(key, None)
    assert not any(key in index.keys_on(node) for node in ("edge0", "edge1"))


@pytest.mark.parametrize("reason", ["NoSamples", "SamplesRepeated"])
def test_a_ready_dataset_keeps_the_reason_of_a_doubtful_count(reason: str) -> None:
    status = RULES.status(OWNED, seen(said("Ready", facts=FACTS, reason=reason, message="remove one")))
    assert (verdict(status), status.conditions[-1].message) == (("Ready", reason), "node edge1: remove one")


def test_the_status_has_what_the_node_has_counted() -> None:
    status = RULES.status(OWNED, seen(said("Ready", facts=FACTS, message="3 samples")))
    assert (verdict(status), status.conditions[-1].message) == (("Ready", "Counted"), "node edge1: 3 samples")
    assert (status.dataset, status.number_of_samples, status.update_time) == (FACTS, 3, FACTS.counted_at)
    assert (status.active, [node.node for node in status.nodes]) == (1, ["edge1"])


@pytest.mark.parametrize(
    ("observed", "phase", "reason", "message"),
    [
        (seen(), "Pending", "Preparing", "node edge1 has not reported its state yet"),
        (seen(said("Ready", facts=FACTS, observed_generation=0)), "Pending", "Preparing", "has not reported"),
        (seen(nodes={}), "Pending", "NodeNotFound", "spec.nodeName: node edge1 has never connected"),
        (seen(said("Pending", reason="Counting", message="counting: 50 %")), "Pending", "Counting", "50 %"),
        (seen(said("Failed", reason="DatasetNotFound", message="gone")), "Failed", "DatasetNotFound", "edge1: gone"),
        (seen(said("Ready", reason="NotCounted", message="s3")), "Ready", "NotCounted", "s3"),
        (
            seen(nodes={"edge1": Node("edge1", online=True, epoch=0)}, as_pods=True),
            "Pending",
            "NotCounted",
            "label the node",
        ),
        (seen(placed={}), "Unused", "NotNeeded", "set spec.nodeName to the node that has the data"),
    ],
)
def test_what_is_not_counted_says_why(observed: Observed, phase: str, reason: str, message: str) -> None:
    of = stored(dataset("frames")) if not observed.placed else OWNED
    status = RULES.status(of, observed)
    assert verdict(status) == (phase, reason)
    assert message in status.conditions[-1].message
    assert status.dataset is None


def test_what_was_counted_stands_while_its_node_starts_again_and_not_once_it_is_gone() -> None:
    before = Status(observed_generation=1, dataset=FACTS)
    counting = said("Pending", reason="Counting")
    assert RULES.status(OWNED, seen(counting, status=before)).dataset == FACTS
    assert RULES.status(OWNED, seen(said("Failed", reason="DatasetNotFound"), status=before)).dataset is None
    edited = stored(dataset("frames", nodeName="edge1"), generation=2)
    assert RULES.status(edited, seen(counting, status=before)).dataset is None


COPIED = stored(dataset("frames", nodeName="edge1", syncTo={"zone": "a"}))


def labelled(nodes: Nodes, *names: str, **labels: str) -> None:
    for number, name in enumerate(names, 1):
        nodes.process_presence(Presence(node=name, epoch=number, online=True, labels=labels))


def test_a_dataset_that_others_copy_goes_to_its_node_and_to_all_that_the_selector_matches() -> None:
    nodes = Nodes()
    labelled(nodes, "edge0", "edge2", zone="a")
    labelled(nodes, "edge1", "edge3", zone="b")
    index = ReferenceIndex(nodes)
    index.put(COPIED.key, RULES.entry(COPIED))
    assert set(index.roles_by_node(COPIED.key)) == {"edge0", "edge1", "edge2"}
    assert index.roles_on(COPIED.key, "edge3") is None
    labelled(nodes, "edge4", zone="a")
    assert COPIED.key in index.node_changed("edge4")
    assert set(index.keys_on("edge4")) == {COPIED.key}


def test_the_data_of_several_nodes_is_counted_on_each_that_the_selector_matches() -> None:
    nodes = Nodes()
    several = stored(dataset("frames", nodeSelector={"zone": "a"}))
    index = ReferenceIndex(nodes)
    index.put(several.key, RULES.entry(several))
    helmet = stored(service(dataset={"name": "frames"}))
    index.put(helmet.key, CONTROLLERS["jointinferenceservices"].entry(helmet))
    assert not index.roles_by_node(several.key)
    labelled(nodes, "edge0", "edge2", zone="a")
    assert set(index.roles_by_node(several.key)) == {"edge0", "edge2"}
    assert verdict(RULES.status(several, replace(seen(), placed={}))) == ("Pending", "NoNode")


def test_the_status_of_a_copied_dataset_has_the_content_of_its_source_and_waits_for_the_copies() -> None:
    copies: dict[str, Any] = {"edge0": frozenset(), "edge1": frozenset()}
    of_copy = reported(COPIED, "edge0", phase="Ready", dataset=DatasetFacts(number_of_samples=2))
    counted = DatasetFacts(number_of_samples=3, listing="a" * 64)
    status = RULES.status(COPIED, seen(said("Ready", facts=counted), placed=copies))
    assert (*verdict(status), status.dataset) == ("Pending", "Preparing", counted)
    status = RULES.status(COPIED, seen(said("Ready", facts=counted), of_copy, placed=copies))
    assert (*verdict(status), status.dataset) == ("Ready", "Counted", counted)
    assert status.conditions[-1].message.endswith("; 1 node has a copy")
    # without the source nothing is known of the content, whatever a copy says
    assert RULES.status(COPIED, seen(of_copy, placed=copies)).dataset is None
