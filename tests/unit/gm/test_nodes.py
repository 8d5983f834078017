"""Which news about a node counts."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.messages import Presence
from services.gm.cluster.port import RegisteredNode
from services.gm.nodes import Change, Nodes


def presence(epoch: int, *, online: bool = True, **more: Any) -> Presence:
    return Presence(node="edge0", epoch=epoch, online=online, **more)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def test_a_birth_brings_a_node_and_its_will_takes_it_away_but_not_its_labels(nodes: Nodes) -> None:
    assert nodes.process_presence(presence(1, labels={"a": "b"})) == Change(online=True, labels=True)
    assert nodes.process_presence(presence(1, labels={"a": "b"})) == Change()
    assert nodes.process_presence(presence(1, online=False)) == Change(online=True)
    assert not nodes.is_online("edge0")
    assert set(nodes.match({"a": "b"})) == {"edge0"}


def test_news_of_an_earlier_connection_is_ignored(nodes: Nodes) -> None:
    nodes.process_presence(presence(2))
    assert nodes.process_presence(presence(1, online=False)) == Change()
    assert nodes.process_presence(presence(1, labels={"a": "b"})) == Change()
    assert nodes.is_online("edge0")
    assert nodes["edge0"].epoch == 2


def test_a_sync_proves_that_its_sender_is_there_even_one_that_lost_its_count(nodes: Nodes) -> None:
    nodes.process_presence(presence(50, labels={"a": "b"}))
    nodes.process_presence(presence(50, online=False))
    nodes.process_presence(presence(1, labels={"a": "c"}))
    assert not nodes.is_online("edge0")
    assert nodes.process_sync("edge0", 1) == Change(online=True, labels=True)
    assert set(nodes.match({"a": "c"})) == {"edge0"}
    assert nodes.process_presence(presence(1, online=False)) == Change(online=True)


def test_a_retained_birth_shows_a_node_that_must_confirm_it(nodes: Nodes) -> None:
    assert nodes.process_presence(presence(1), retained=True) == Change(online=True, labels=True)
    assert nodes.list_unconfirmed() == ["edge0"]
    nodes.process_presence(presence(1), retained=True)
    assert nodes.list_unconfirmed() == ["edge0"], "the broker sends it again"
    nodes.process_sync("edge0", 1)
    nodes.process_presence(presence(1), retained=True)
    assert nodes.list_unconfirmed() == []
    nodes.process_presence(presence(2), retained=True)
    assert nodes.list_unconfirmed() == ["edge0"], "GM has missed that connection"
    nodes.process_presence(presence(2))
    assert nodes.list_unconfirmed() == []


def test_a_retained_birth_confirms_no_node_and_brings_back_none(nodes: Nodes) -> None:
    nodes.process_presence(presence(1))
    nodes.doubt()
    nodes.process_presence(presence(1), retained=True)
    assert nodes.list_unconfirmed() == ["edge0"]
    nodes.set_offline("edge0")
    assert nodes.process_presence(presence(1), retained=True) == Change()
    assert not nodes.is_online("edge0")
    assert nodes.process_sync("edge0", 1) == Change(online=True)


@pytest.mark.parametrize("retained", [False, True])
@pytest.mark.parametrize("online", [False, True])
def test_an_outdated_message_confirms_no_node(nodes: Nodes, *, retained: bool, online: bool) -> None:
    nodes.process_presence(presence(2))
    nodes.doubt()
    assert nodes.process_presence(presence(1, online=online), retained=retained) == Change()
    assert nodes.list_unconfirmed() == ["edge0"]


def test_a_report_of_the_present_connection_confirms_a_node_but_brings_back_none(nodes: Nodes) -> None:
    nodes.process_presence(presence(2))
    nodes.doubt()
    nodes.confirm("edge0", 1)
    nodes.confirm("edge1", 2)
    assert nodes.list_unconfirmed() == ["edge0"]
    nodes.confirm("edge0", 2)
    assert nodes.list_unconfirmed() == []
    nodes.process_presence(presence(2, online=False))
    nodes.confirm("edge0", 2)
    assert not nodes.is_online("edge0")


def test_a_retained_will_takes_a_node_away(nodes: Nodes) -> None:
    nodes.process_presence(presence(1))
    nodes.doubt()
    assert nodes.process_presence(presence(1, online=False), retained=True) == Change(online=True)
    assert nodes.list_unconfirmed() == []


def test_a_repeated_birth_confirms_its_node_and_is_not_stored_again(nodes: Nodes) -> None:
    nodes.process_presence(presence(1))
    assert nodes.take_dirty() == (presence(1),)
    nodes.doubt()
    assert nodes.process_presence(presence(1), retained=True) == Change()
    assert nodes.list_unconfirmed() == ["edge0"]
    assert nodes.process_presence(presence(1)) == Change()
    assert nodes.list_unconfirmed() == []
    assert nodes.take_dirty() == ()


def test_a_node_is_described_once_the_birth_of_its_connection_is_here(nodes: Nodes) -> None:
    assert not nodes.has_labels("edge0")
    nodes.process_sync("edge0", 1)
    assert not nodes.has_labels("edge0")
    nodes.process_presence(presence(1))
    assert nodes.has_labels("edge0")
    nodes.process_sync("edge0", 2)
    assert not nodes.has_labels("edge0")


def test_all_labels_of_a_selector_must_match_and_the_name_is_one(nodes: Nodes) -> None:
    nodes.process_presence(presence(1, labels={"a": "b", "c": "d"}))
    assert set(nodes.match({"a": "b", "c": "d"})) == {"edge0"}
    assert set(nodes.match({"kubernetes.io/hostname": "edge0"})) == {"edge0"}
    assert (set(nodes.match({"a": "b", "c": "x"})), set(nodes.match({}))) == (set(), set())


def test_what_could_not_be_remembered_is_handed_out_again(nodes: Nodes) -> None:
    nodes.process_presence(presence(1))
    taken = nodes.take_dirty()
    assert taken == (presence(1),)
    assert nodes.take_dirty() == ()
    nodes.put_back(taken)
    assert nodes.take_dirty() == taken


def test_two_stores_in_turn_under_one_name_are_two_controllers_and_a_replaced_store_is_not(nodes: Nodes) -> None:
    assert not nodes.is_duplicate(presence(1, store="a"))
    assert not nodes.is_duplicate(presence(2, store="a"))
    assert not nodes.is_duplicate(presence(1, store="b")), "its store was lost"
    assert not nodes.is_duplicate(presence(2, store="b"))
    assert nodes.is_duplicate(presence(3, store="a"))
    assert nodes.is_duplicate(presence(3, store="b"))
    assert not nodes.is_duplicate(presence(4)), "an older version does not say"


def test_the_stores_of_a_name_are_bounded_and_forgotten_with_the_node(nodes: Nodes) -> None:
    nodes.process_presence(presence(1))
    for number in range(100):
        assert not nodes.is_duplicate(presence(1, store=str(number)))
    assert not nodes.is_duplicate(presence(1, store="0")), "too long ago"
    nodes.remove("edge0")
    assert not nodes.is_duplicate(presence(1, store="99"))


def test_a_node_that_the_cluster_knows_needs_no_controller_and_keeps_its_labels_when_one_comes(nodes: Nodes) -> None:
    assert nodes.register("edge0", RegisteredNode({"zone": "a"})) == Change(labels=True)
    assert nodes["edge0"].labels["zone"] == "a"
    assert (nodes["edge0"].controlled, nodes["edge0"].online, nodes.has_labels("edge0")) == (False, False, True)
    nodes.process_presence(presence(1, labels={"own": "b"}))
    assert nodes["edge0"].controlled
    assert set(nodes.match({"zone": "a", "own": "b"})) == {"edge0"}
    assert nodes.register("edge0", RegisteredNode({"zone": "b"})) == Change(labels=True)
    assert nodes.register("edge0", RegisteredNode({"zone": "b"})) == Change()
    assert nodes["edge0"].online


def test_a_node_that_leaves_the_cluster_goes_unless_a_controller_spoke_for_it(nodes: Nodes) -> None:
    nodes.register("edge0", RegisteredNode())
    nodes.register("edge1", RegisteredNode())
    nodes.process_presence(presence(1))
    assert nodes.register("edge0", None) == Change()
    assert nodes.register("edge1", None) == Change(labels=True)
    assert nodes.register("edge2", None) == Change()
    assert set(nodes) == {"edge0"}


def test_a_node_that_the_cluster_does_not_reach_changes_what_its_services_are(nodes: Nodes) -> None:
    nodes.register("edge0", RegisteredNode({"zone": "a"}))
    assert nodes.register("edge0", RegisteredNode({"zone": "a"}, "it is silent")) == Change(ready=True)
    nodes.process_presence(presence(1))
    assert (nodes["edge0"].online, nodes["edge0"].unready) == (True, "it is silent")
    assert nodes.register("edge0", RegisteredNode({"zone": "a"})) == Change(ready=True)
