"""A drained node has no place in any plan, and what has no other node says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from halimede.messages import Condition, Status
from halimede.names import Key
from services.gm.controllers import CONTROLLERS, plan
from services.gm.controllers.base import Forget
from services.gm.nodes import Change, Nodes
from services.gm.reference_index import ReferenceIndex
from tests.integration.gm_world import service
from tests.unit.gm.test_dataset import labelled
from tests.unit.gm.test_nodes import presence
from tests.unit.gm.test_plan import CLOUD, EDGE, NODES, report, seen, stored, written

HELMET = stored(service())
SITE = {"site": "north"}
RAN = Status(phase="Running", conditions=[Condition(type="Running")])


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def verdict(resource: Any, observed: Any) -> tuple[str, str, str]:
    status = written(plan(resource, observed))
    return status.phase, status.conditions[-1].reason, status.conditions[-1].message


def test_the_mark_outlives_the_presence_and_ends_with_the_node(nodes: Nodes) -> None:
    nodes.set_drained("edge0", drained=True)
    for message in (presence(1, labels=SITE), presence(1, online=False), presence(2, labels=SITE)):
        nodes.process_presence(message)
    assert (nodes["edge0"].drained, set(nodes.match(SITE))) == (True, set())
    nodes.remove("edge0")
    nodes.process_presence(presence(3, labels=SITE))
    assert set(nodes.match(SITE)) == {"edge0"}


def test_of_a_drained_node_no_labels_need_to_be_known(nodes: Nodes) -> None:
    nodes.set_drained("edge0", drained=True)
    assert not nodes.has_labels("edge0")
    nodes.process_sync("edge0", 1)
    assert nodes.has_labels("edge0")


def test_the_index_places_nothing_on_a_drained_node_by_name_or_selector(nodes: Nodes) -> None:
    labelled(nodes, "edge0", "edge1", **SITE)
    index = ReferenceIndex(nodes)
    named, chosen = stored(service("named", edge="edge0", cloud="edge1")), stored(service("chosen", edge=SITE))
    for each in (named, chosen):
        index.put(each.key, CONTROLLERS[each.kind.plural].entry(each))
    assert nodes.set_drained("edge0", drained=True) == Change(labels=True)
    assert nodes.set_drained("edge0", drained=True) == Change()
    small = Key("models", "default", "small")
    assert {named.key, chosen.key, small} <= index.node_changed("edge0")
    assert dict(index.roles_by_node(named.key)) == {"edge1": CLOUD}
    assert "edge0" not in index.roles_by_node(chosen.key)
    assert index.roles_on(small, "edge0") is None
    assert index.stranded_roles("edge0") == [(named.key, "edge")]
    # what is applied from now on, too
    later = stored(service("later", edge=SITE, cloud="edge0"))
    index.put(later.key, CONTROLLERS[later.kind.plural].entry(later))
    assert dict(index.roles_by_node(later.key)) == {"edge1": EDGE}
    assert nodes.set_drained("edge0", drained=False) == Change(labels=True)
    index.node_changed("edge0")
    assert {"edge0", "edge1"} == set(index.roles_by_node(later.key))
    assert index.stranded_roles("edge0") == []


def test_a_service_leaves_a_drained_node_and_one_pinned_to_it_waits_for_it() -> None:
    drained = {**NODES, "edge0": replace(NODES["edge0"], drained=True)}
    observed = seen(placed={"cloud0": CLOUD}, holders=frozenset({"edge0", "cloud0"}), nodes=drained)
    actions = plan(HELMET, observed)
    assert Forget("edge0", HELMET.key, "uid-helmet", 0) in actions
    phase, reason, message = verdict(HELMET, observed)
    assert (phase, reason) == ("Pending", "NodeDrained")
    assert "spec.edgeWorker.template.spec.nodeName: node edge0 is drained" in message
    assert "halimede uncordon edge0" in message


def test_a_selector_of_which_only_drained_nodes_are_left_says_so() -> None:
    resource = stored(service(edge=SITE))
    both = {**NODES, "edge0": replace(NODES["edge0"], presence=presence(1, labels=SITE), drained=True)}
    assert verdict(resource, seen(placed={"cloud0": CLOUD}, nodes=both))[1] == "NodeDrained"
    assert verdict(resource, seen(placed={"cloud0": CLOUD}))[1] == "NoNode"


def test_without_its_cloud_node_a_service_is_degraded_for_the_edge_answers() -> None:
    drained = {**NODES, "cloud0": replace(NODES["cloud0"], drained=True)}
    placed, reports = {"edge0": EDGE}, {"edge0": report(HELMET, "edge0", "edge")}
    observed = seen(placed=placed, nodes=drained, reports=reports)
    assert verdict(HELMET, replace(observed, status=RAN))[:2] == ("Degraded", "NodeDrained")
    assert verdict(HELMET, observed)[:2] == ("Pending", "NodeDrained"), "it has never started"
