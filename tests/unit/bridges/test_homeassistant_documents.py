"""The documents and states for Home Assistant, and the facts of its MQTT device discovery that they have to respect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.bridges.homeassistant.devices import (
    SYSTEM,
    DeviceKey,
    all_devices,
    camera_key,
    device_of,
    node_key,
    service_key,
)
from halimede.bridges.homeassistant.discovery import (
    MAX_REMOVED,
    DeviceState,
    DiscoveryTopics,
    Entity,
    device_messages,
    removal_messages,
)
from halimede.bridges.homeassistant.operator_side import (
    BudgetCommand,
    DrainCommand,
    budget_of,
    read_command,
    with_budget,
)
from halimede.bridges.homeassistant.system_view import MAX_DEVICES, SystemView, UploadWindow
from halimede.contract.examples import PNG
from halimede.errors import InvalidFieldError
from halimede.messages import NodeInfo, ServedVersion, StatusDocument
from halimede.names import Key
from tests.homeassistant.schema import Document, read_document
from tests.homeassistant.stand_in import (
    JOINT,
    MODELS,
    camera_status,
    hard_sample,
    model_document,
    presence,
    status_document,
)

TOPICS = DiscoveryTopics()
SERVICE = Key(JOINT, "default", "digits")
MODEL = Key(MODELS, "default", "digits-small")
#: texts that a model, a camera or a user may have in a name or a message
HOSTILE = [
    "<script>alert(1)</script>",
    "{{ states('sun.sun') }}",
    "a\nb\tc",
    "\u202egnp.exe",
    "🦊" * 40,
    "x" * 10_240,
    "\0",
]


def view_of(*documents: StatusDocument, control: bool = False, kubernetes: bool = False) -> SystemView:
    """A system with a node, a camera and the statuses of these documents (by default a service and its Model)."""
    view = SystemView(has_control=control, on_kubernetes=kubernetes)
    for document in documents or (status_document(), model_document()):
        if document.kind == "Model":
            view.models.put(Key(MODELS, document.namespace, document.name), document, 1)
        else:
            view.record_status(0.0, Key(JOINT, document.namespace, document.name), document, 1)
    view.nodes.put("edge0", presence(), 1)
    view.cameras.put(("default", "cam0", ""), camera_status(), 1)
    if control:
        view.infos = {"edge0": NodeInfo(name="edge0", online=True, workers=3)}
        view.budgets = {SERVICE: (1, 0.2)}
    return view


def messages_of(
    view: SystemView,
    key: DeviceKey,
    remembered: Mapping[str, str] = MappingProxyType({}),
    topics: DiscoveryTopics = TOPICS,
) -> dict[str, bytes]:
    device = device_of(view, key, {})
    assert device
    return device_messages(topics, device, remembered).payloads


def document_of(view: SystemView, key: DeviceKey, remembered: Mapping[str, str] = MappingProxyType({})) -> Document:
    topic = TOPICS.document(key.id)
    return read_document(topic, messages_of(view, key, remembered)[topic])


def state_of(view: SystemView, key: DeviceKey, entity: str) -> bytes | None:
    return messages_of(view, key).get(TOPICS.state(key.id, entity))


def attributes_of(view: SystemView, key: DeviceKey, entity: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(messages_of(view, key)[f"{TOPICS.state(key.id, entity)}/attributes"])
    return content


def update_of(view: SystemView) -> dict[str, Any]:
    """Return the state of the update of the Model."""
    content: dict[str, Any] = json.loads(state_of(view, SYSTEM, "model_default_digits-small") or b"")
    return content


def put_loop(view: SystemView, phase: str, **loop: str) -> None:
    """Put a TrainingModel of the Model, whose loop is so."""
    state = {"model": "digits-small", **loop}
    document = status_document("digits", plural="trainingmodels", phase=phase, metrics={}, loop=state)
    view.models.put(Key("trainingmodels", "default", "digits"), document, 1)


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("kubernetes", [False, True])
def test_each_document_has_the_form_that_home_assistant_accepts(control: bool, kubernetes: bool) -> None:
    view = view_of(control=control, kubernetes=kubernetes)
    documents = [document_of(view, key) for key in all_devices(view)]
    assert len(documents) == 4
    unique = [entity.unique_id for document in documents for entity in document.entities.values()]
    assert len(unique) == len(set(unique))


def test_availability_stands_once_in_one_form_for_the_whole_device() -> None:
    view = view_of(control=True)
    for key in all_devices(view):
        document = json.loads(messages_of(view, key)[TOPICS.document(key.id)])
        assert document["availability_topic"] == TOPICS.availability
        assert "availability" not in document
        assert not any("availab" in field for component in document["components"].values() for field in component)


def test_documents_have_no_templates_abbreviations_or_base_topics() -> None:
    view = view_of(control=True)
    text = b"".join(payload for key in all_devices(view) for payload in messages_of(view, key).values()).decode()
    assert not any(f'"{field}"' in text for field in ("~", "p", "dev", "o", "cmps", "uniq_id", "stat_t", "ids"))
    assert "template" not in text


def test_ids_are_the_same_after_a_restart_and_differ_between_all_names() -> None:
    names = [("a", "b.c"), ("a", "b-c"), ("a-b", "c"), ("a", "bc"), ("default", "a.b"), ("default", "a-b")]
    keys = [service_key(Key(plural, *name)) for name in names for plural in (JOINT, "multiedgeinferenceservices")]
    keys += [camera_key("a", "b"), node_key("a.b"), node_key("a-b"), SYSTEM]
    assert len({key.id for key in keys}) == len(keys)
    first, second = (document_of(view_of(), service_key(SERVICE)) for _ in range(2))
    assert first == second


def test_two_systems_of_one_home_assistant_share_no_id() -> None:
    one, two = (
        messages_of(view_of(), node_key("edge0"), topics=DiscoveryTopics(system=name)) for name in ("one", "two")
    )
    assert not one.keys() & two.keys()
    assert b"halimede_two_node_edge0_online" in b"".join(two.values())
    assert b"_one_" not in b"".join(two.values())


def test_an_entity_that_is_gone_is_removed_by_its_platform_alone() -> None:
    view, key = view_of(), node_key("edge0")
    remembered = {"online": "binary_sensor", "drained": "switch"}
    document = document_of(view, key, remembered)
    assert document.removed == {"drained": "switch"}
    payloads = messages_of(view, key, remembered)
    assert payloads[TOPICS.state(key.id, "drained")] == payloads[f"{TOPICS.state(key.id, 'drained')}/attributes"] == b""


def test_of_too_many_entities_that_go_one_after_the_other_the_oldest_are_forgotten() -> None:
    names = [f"e{number:03}" for number in range(200)]
    platforms: Mapping[str, str] = {}
    for number in range(100):
        entities = tuple(Entity(name, "sensor", {"name": name}) for name in names[number:])
        messages = device_messages(TOPICS, DeviceState("node_a", "node a", "node", entities), platforms)
        platforms = messages.platforms
        removed = [name for name in platforms if name not in names[number:]]
        assert removed == names[:number][-MAX_REMOVED:]


def test_an_entity_that_returns_is_no_longer_removed() -> None:
    view, key = view_of(control=True), node_key("edge0")
    assert not document_of(view, key, {"drained": "switch"}).removed


def test_a_device_that_is_gone_is_removed_with_all_its_messages() -> None:
    payloads = removal_messages(TOPICS, "node_edge0", {"online": "binary_sensor"})
    assert next(iter(payloads)) == TOPICS.document("node_edge0")
    assert set(payloads.values()) == {b""}
    assert TOPICS.state("node_edge0", "online") in payloads


def test_texts_in_documents_have_the_prefix_of_a_shared_broker() -> None:
    topics = DiscoveryTopics(outer="plant/a/")
    document = json.loads(messages_of(view_of(), node_key("edge0"), topics=topics)[topics.document("node_edge0")])
    assert document["availability_topic"] == "plant/a/homeassistant/halimede/halimede/availability"
    assert document["components"]["online"]["state_topic"].startswith("plant/a/homeassistant/")


@pytest.mark.parametrize(
    ("entity", "state"),
    [
        ("problem", b"OFF"),
        ("phase", b"Running"),
        ("upload_share", b"12.5"),
        ("uploaded", b"4096000"),
        ("edge_p95", b"12.5"),
        ("offload_p95", b"80"),
        ("queue", b"2"),
        ("frames", b"1000"),
        ("bytes_a_day", b"None"),
    ],
)
def test_a_service_shows_the_numbers_of_its_status(entity: str, state: bytes) -> None:
    assert state_of(view_of(), service_key(SERVICE), entity) == state


def test_a_service_with_trouble_is_a_problem_with_its_reason() -> None:
    view = view_of(status_document(phase="Degraded", message="node edge0 is offline"))
    assert state_of(view, service_key(SERVICE), "problem") == b"ON"
    attributes = attributes_of(view, service_key(SERVICE), "problem")
    assert (attributes["reason"], attributes["message"]) == ("NodeOffline", "node edge0 is offline")


@pytest.mark.parametrize("number", ["none", "", "nan", "inf", "-inf", "1e999"])
def test_a_metric_that_is_absent_no_number_or_not_finite_is_unknown(number: str) -> None:
    view = view_of(status_document(metrics={"uploadCloudRatio": number, "uploadedBytes": number}))
    for entity in ("upload_share", "uploaded", "edge_p95"):
        assert state_of(view, service_key(SERVICE), entity) == b"None"


def test_bytes_a_day_are_the_rate_of_the_last_day() -> None:
    window = UploadWindow("uid")
    for second in range(0, 3 * 86_400, 300):
        window.record(float(second), 10 * second)
    assert window.bytes_a_day == pytest.approx(864_000)
    assert len(window.points) <= 145
    window.record(3 * 86_400.0, 5)  # new workers count from 0
    assert window.bytes_a_day is None


@pytest.mark.parametrize(
    ("states", "problem"),
    [
        (["running"], b"OFF"),
        (["failed"], b"ON"),
        (["gone"], b"ON"),
        (["failed", "running"], b"OFF"),
        (["stopped"], b"OFF"),
    ],
)
def test_a_camera_is_a_problem_if_nobody_reads_it_well(states: list[str], problem: bytes) -> None:
    view = view_of()
    for number, state in enumerate(states):
        node = f"edge{number}" if number else ""
        view.cameras.put(("default", "cam0", node), camera_status(state=state, error="no answer"), 1)
    assert state_of(view, camera_key("default", "cam0"), "problem") == problem


def test_a_camera_does_not_show_secrets_in_its_address() -> None:
    view = view_of()
    view.cameras.put(("default", "cam0", ""), camera_status(source="rtsp://user:secret@camera/1"), 1)
    assert b"secret" not in b"".join(messages_of(view, camera_key("default", "cam0")).values())


def test_a_node_that_is_offline_or_in_trouble_is_a_problem() -> None:
    view = view_of()
    assert state_of(view, node_key("edge0"), "problem") == b"OFF"
    view.nodes.put("edge0", presence(online=False), 1)
    assert [state_of(view, node_key("edge0"), entity) for entity in ("online", "problem")] == [b"OFF", b"ON"]
    view.nodes.put("edge0", presence(trouble="its store is full"), 1)
    assert attributes_of(view, node_key("edge0"), "problem") == {"message": "its store is full"}


def test_the_last_hard_sample_is_an_image_with_the_type_of_its_bytes() -> None:
    view, key = view_of(), service_key(SERVICE)
    assert state_of(view, key, "hard_sample") is None
    before = document_of(view, key)
    view.pictures[SERVICE] = hard_sample(data=b"\xff\xd8\xffpicture")
    assert state_of(view, key, "hard_sample") == b"\xff\xd8\xffpicture"
    assert document_of(view, key) == before
    view.pictures[SERVICE] = hard_sample(data=PNG)
    assert document_of(view, key).components["hard_sample"]["content_type"] == "image/png"


def test_a_roll_out_is_an_update_in_progress() -> None:
    old, new = "1" * 64, "2" * 64
    assert update_of(view_of(model_document(old)))["latest_version"] == old[:12]
    rolling = update_of(view_of(model_document(old, new)))
    state = [rolling[field] for field in ("installed_version", "latest_version", "in_progress")]
    assert state == [old[:12], new[:12], True]


@pytest.mark.parametrize(("state", "installed"), [("Canary", "v1"), ("RolledOut", "1" * 12), ("Judging", "1" * 12)])
def test_a_candidate_of_a_learning_loop_is_an_update_while_it_is_rolled_out(state: str, installed: str) -> None:
    view = view_of()
    put_loop(view, state, state=state, base="v1", version="v2", message="9 audits")
    content = update_of(view)
    expected = "1" * 12 if state == "Judging" else "v2"
    assert (content["installed_version"], content["latest_version"]) == (installed, expected)


def test_a_model_without_versions_has_a_state() -> None:
    content = update_of(view_of(status_document("digits-small", plural=MODELS, phase="Unused", metrics={})))
    assert content["installed_version"] == content["latest_version"] == "none"


@pytest.mark.parametrize(
    ("control", "kubernetes", "platforms"),
    [
        (False, False, set()),
        (True, False, {"budget": "number", "drained": "switch"}.items()),
        (True, True, {"budget_value": "sensor", "is_drained": "binary_sensor"}.items()),
    ],
)
def test_home_assistant_may_change_something_only_with_control_on_one_machine(
    control: bool, kubernetes: bool, platforms: set[tuple[str, str]]
) -> None:
    view = view_of(control=control, kubernetes=kubernetes)
    documents = [document_of(view, service_key(SERVICE)), document_of(view, node_key("edge0"))]
    components = {id_: fields for document in documents for id_, fields in document.components.items()}
    ids = {"budget", "budget_value", "drained", "is_drained"}
    assert {(id_, fields["platform"]) for id_, fields in components.items() if id_ in ids} == set(platforms)
    assert any("command_topic" in fields for fields in components.values()) == (control and not kubernetes)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_stay_text_on_one_line_and_within_the_limits(text: str) -> None:
    view = view_of(status_document(message=text[:4096]))
    view.problem = text
    view.nodes.put("edge0", presence(trouble=text[:4096]), 1)
    view.pictures[SERVICE] = hard_sample(label=text[:128], edge_label=text[:128])
    for key in all_devices(view):
        document_of(view, key)
        for topic, payload in messages_of(view, key).items():
            assert topic.endswith(("/config", "hard_sample")) or len(payload) < 8192
    problem = (state_of(view, SYSTEM, "last_problem") or b"").decode()
    assert problem.isprintable()
    assert 0 < len(problem) <= 255
    assert attributes_of(view, service_key(SERVICE), "hard_sample")["label"].isprintable()


@given(st.text(max_size=300))
def test_any_version_text_gives_a_document_that_is_accepted(text: str) -> None:
    versions = [ServedVersion(version=text, digest="1" * 64)]
    view = view_of(status_document("digits-small", plural=MODELS, phase=text[:256], metrics={}, versions=versions))
    put_loop(view, "Running", state="Canary", version=text, message=text)
    document_of(view, SYSTEM)
    update = update_of(view)
    for field in ("installed_version", "latest_version"):
        assert 0 < len(update[field]) <= 255
        assert update[field].isprintable()


def test_more_services_than_a_bridge_shows_are_counted() -> None:
    view = SystemView()
    for number in range(MAX_DEVICES + 7):
        view.record_status(0.0, Key(JOINT, "default", f"s{number}"), status_document(f"s{number}"), 1)
    assert (len(view.services.entries), view.ignored) == (MAX_DEVICES, 7)


def test_what_the_broker_does_not_send_again_on_a_new_connection_is_stale() -> None:
    view = view_of()
    view.nodes.put("edge1", presence("edge1"), 2)
    assert view.nodes.stale(2) == ["edge0"]


@pytest.mark.parametrize("prefix", ["", "a//b", "/a", "a/", "a+", "#", "$SYS", "a b", "a\0b", "x" * 300])
def test_a_prefix_that_is_no_topic_is_refused_by_name(prefix: str) -> None:
    with pytest.raises(InvalidFieldError, match="--prefix"):
        DiscoveryTopics.from_options(prefix, "halimede")


def test_a_name_that_is_no_label_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="--name"):
        DiscoveryTopics.from_options("homeassistant", "A_b")
    assert DiscoveryTopics.from_options("site/ha", "two").document("x") == "site/ha/device/two/x/config"


def test_commands_are_read_for_entities_that_exist() -> None:
    view, base = view_of(control=True), TOPICS.base
    assert read_command(view, TOPICS, f"{base}/node_edge0/drained/set", b"ON") == DrainCommand("edge0", drain=True)
    budget = read_command(view, TOPICS, f"{base}/ji_default_digits/budget/set", b"25")
    assert budget == BudgetCommand(SERVICE, 0.25)


@pytest.mark.parametrize(
    ("target", "payload"),
    [
        ("node_edge0/drained", b"yes"),
        ("node_edge9/drained", b"ON"),
        ("node_edge0/online", b"ON"),
        ("ji_default_digits/budget", b"101"),
        ("ji_default_digits/budget", b"nan"),
        ("ji_default_digits/budget", b"\xff" * 10_000),
        ("ji_default_digits/problem", b"1"),
        ("a/b/c", b"1"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused_by_its_topic(target: str, payload: bytes) -> None:
    with pytest.raises(InvalidFieldError, match=target.split("/", maxsplit=1)[0]) as error:
        read_command(view_of(control=True), TOPICS, f"{TOPICS.base}/{target}/set", payload)
    assert len(str(error.value)) < 1000


def test_a_budget_is_changed_in_the_spec_alone() -> None:
    body = {"metadata": {"name": "digits"}, "spec": {"edgeWorker": {"model": {"name": "m"}, "targetUploadRatio": 0.1}}}
    assert budget_of(body) == (True, 0.1)
    changed = with_budget(body, 0.25)
    assert changed["spec"]["edgeWorker"] == {"model": {"name": "m"}, "targetUploadRatio": 0.25}
    assert body["spec"]["edgeWorker"]["targetUploadRatio"] == 0.1  # type: ignore[index]


def test_a_service_whose_costs_decide_has_no_budget_to_set() -> None:
    assert budget_of({"spec": {"edgeWorker": {"costs": {"miss": 1}}}}) == (False, None)
