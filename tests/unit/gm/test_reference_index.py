"""Who belongs where: the incremental index always says what looking at everything would say."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from halimede.api import matches, parse
from halimede.messages import Presence
from halimede.names import Key
from services.gm.cluster.port import RegisteredNode
from services.gm.controllers import CONTROLLERS
from services.gm.nodes import Nodes
from services.gm.reference_index import ReferenceEntry, ReferenceIndex
from tests.integration.gm_world import MODELS, SERVICES, model, service
from tests.integration.inference_models import inference_model

SMALL, BIG = Key(MODELS, "default", "small"), Key(MODELS, "default", "big")
NAMES, LABELS = st.sampled_from(["n0", "n1", "n2"]), st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"))
PLACES = st.one_of(NAMES, LABELS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("node"), NAMES, LABELS),
        st.tuples(st.just("put"), st.sampled_from(["s0", "s1"]), st.tuples(PLACES, PLACES)),
        st.tuples(st.just("remove"), st.sampled_from(["s0", "s1"]), st.none()),
    ),
    max_size=30,
)


@given(STEPS)
def test_after_any_history_placement_is_what_matching_everything_gives(steps: list[tuple[str, str, object]]) -> None:
    nodes = Nodes()
    index = ReferenceIndex(nodes)
    entries: dict[Key, ReferenceEntry] = {}
    for epoch, (what, name, detail) in enumerate(steps):
        if what == "node":
            change = nodes.process_presence(Presence(node=name, epoch=epoch, online=True, labels=detail))  # type: ignore[arg-type]
            if change.labels:
                index.node_changed(name)
        else:
            key = Key(SERVICES, "default", name)
            if what == "put":
                edge, cloud = detail  # type: ignore[misc]
                entries[key] = CONTROLLERS[SERVICES].entry(parse(service(name, edge=edge, cloud=cloud)))  # type: ignore[has-type]
            else:
                entries.pop(key, None)
            index.put(key, entries.get(key))
        _compare(index, nodes, entries)


def _compare(index: ReferenceIndex, nodes: Nodes, entries: dict[Key, ReferenceEntry]) -> None:
    everywhere = {*nodes, "n0", "n1", "n2"}
    for key, entry in entries.items():
        wanted = {}
        for node in everywhere:
            labels = nodes[node].labels if node in nodes else {}
            known = node in nodes
            roles = frozenset(
                r.name for r in entry.roles if r.pod.node_name == node or (known and matches(r.pod, node, labels))
            )
            if roles:
                wanted[node] = roles
        assert index.roles_by_node(key) == wanted
        for node in everywhere:
            assert index.roles_on(key, node) == wanted.get(node)
            assert (key in index.keys_on(node)) == (node in wanted)
    for named, role in ((SMALL, "edge"), (BIG, "cloud")):
        needed = {n for key in entries for n, roles in index.roles_by_node(key).items() if role in roles}
        assert index.roles_by_node(named).keys() == needed


@given(st.lists(st.tuples(NAMES, LABELS), max_size=30), st.integers(1, 2))
def test_a_role_with_a_limit_has_that_many_of_the_matching_nodes_and_keeps_them(
    steps: list[tuple[str, dict[str, str]]], most: int
) -> None:
    nodes, key = Nodes(), Key("inferencemodels", "default", "faces")
    index, selector = ReferenceIndex(nodes), {"a": "x"}
    body = inference_model(nodeSelector=selector, replicas=most)
    index.put(key, CONTROLLERS[key.plural].entry(parse(body)))
    for epoch, (name, labels) in enumerate(steps):
        before = set(index.roles_by_node(key))
        if nodes.process_presence(Presence(node=name, epoch=epoch, online=True, labels=labels)).labels:
            index.node_changed(name)
        matching, placed = set(nodes.match(selector)), set(index.roles_by_node(key))
        assert placed <= matching
        assert len(placed) == min(most, len(matching))
        assert before & matching <= placed
        assert all((key in index.keys_on(node)) == (node in placed) for node in nodes)


def test_a_model_concerns_the_services_that_name_it_and_the_other_way_round() -> None:
    index = ReferenceIndex(Nodes())
    key = Key(SERVICES, "default", "helmet")
    assert index.put(key, CONTROLLERS[SERVICES].entry(parse(service()))) == {SMALL, BIG}
    assert index.put(SMALL, None) == {key}
    assert index.put(key, None) == {SMALL, BIG}
    assert index.put(SMALL, None) == set()


def placed(index: ReferenceIndex, **where: Any) -> tuple[Key, ReferenceEntry]:
    entry = CONTROLLERS[SERVICES].entry(parse(service(**where)))
    index.put(entry.resource.key, entry)
    return entry.resource.key, entry


def test_where_pods_run_only_names_and_the_scheduler_place_a_service() -> None:
    nodes = Nodes()
    for name in ("edge0", "edge1", "cloud0", "cloud1"):
        nodes.register(name, RegisteredNode({"pool": name[:-1]}))
    index = ReferenceIndex(nodes, pods=True)
    key, _ = placed(index, edge="edge0", cloud={"pool": "cloud"})
    assert index.roles_by_node(key) == {"edge0": {"edge"}}
    assert index.set_scheduled(key, {"cloud": frozenset({"cloud1"}), "edge": frozenset({"edge1"})}) >= {key, BIG}
    assert index.roles_by_node(key) == {"edge0": {"edge"}, "cloud1": {"cloud"}}
    assert index.roles_by_node(BIG) == {"cloud1": frozenset()}
    index.node_changed("edge1")
    index.node_changed("cloud0")
    assert index.roles_by_node(key) == {"edge0": {"edge"}, "cloud1": {"cloud"}}


def test_a_role_whose_pods_are_being_replaced_keeps_its_nodes_until_others_have_them() -> None:
    index = ReferenceIndex(Nodes(), pods=True)
    key, entry = placed(index, edge="edge0", cloud={"pool": "cloud"})
    index.set_scheduled(key, {"cloud": frozenset({"cloud1"})})
    assert index.set_scheduled(key, {}) == set()
    assert "cloud1" in index.roles_by_node(key)
    index.set_scheduled(key, {"cloud": frozenset({"cloud0"})})
    assert "cloud1" not in index.roles_by_node(key)
    index.put(key, None)
    index.put(key, entry)
    assert set(index.roles_by_node(key)) == {"edge0"}


def test_a_role_without_pods_keeps_its_nodes_while_pods_of_another_role_move() -> None:
    index = ReferenceIndex(Nodes(), pods=True)
    key, _ = placed(index, edge={"pool": "edge"}, cloud={"pool": "cloud"})
    index.set_scheduled(key, {"edge": frozenset({"edge0"}), "cloud": frozenset({"cloud0"})})
    assert index.set_scheduled(key, {"edge": frozenset({"edge1"}), "cloud": frozenset()}) == {key, SMALL, BIG}
    assert index.roles_by_node(key) == {"edge1": {"edge"}, "cloud0": {"cloud"}}
    assert index.set_scheduled(key, {"edge": frozenset(), "cloud": frozenset({"cloud1"})}) == {key, SMALL, BIG}
    assert index.roles_by_node(key) == {"edge1": {"edge"}, "cloud1": {"cloud"}}


def test_a_node_that_loses_a_label_concerns_the_models_that_name_it() -> None:
    nodes = Nodes()
    index = ReferenceIndex(nodes)
    nodes.process_presence(Presence(node="n0", epoch=1, online=True, labels={"a": "x", "b": "x"}))
    resource = parse(model("small", nodeSelector={"a": "x"}))
    index.put(SMALL, CONTROLLERS[MODELS].entry(resource))
    assert (index.roles_by_node(SMALL), index.roles_on(SMALL, "n0")) == ({"n0": frozenset()}, frozenset())
    assert set(index.keys_on("n0")) == {SMALL}
    assert nodes.process_presence(Presence(node="n0", epoch=2, online=True, labels={"b": "x"})).labels
    assert SMALL in index.node_changed("n0")
    assert (index.roles_by_node(SMALL), index.roles_on(SMALL, "n0"), set(index.keys_on("n0"))) == ({}, None, set())
