"""The consumer that is for another system, such as Home Assistant: its rights on that system's own topics."""

from __future__ import annotations

from typing import Any

import pytest

from halimede import topics
from halimede.access.emqx import acl_conf
from halimede.access.grants import FOREIGN_GRANTS, Action, Grant, grants
from halimede.access.mosquitto import acl_file
from halimede.access.site import Principal, Site
from halimede.bridges.homeassistant.discovery import DiscoveryTopics
from halimede.bus.topic_filter import has_overlap, matches
from halimede.topic import Role, Topic
from halimede.topics import CONTRACT

SITE = Site(
    nodes=["edge0"], cameras=["homeassistant"], operators=["homeassistant"], consumers=["homeassistant", "viewer"]
)
FOREIGN = set(FOREIGN_GRANTS["homeassistant"])


def test_only_the_consumer_of_that_name_has_rights_on_home_assistants_topics() -> None:
    users = {user.username for user in SITE.principals() if FOREIGN & set(grants(user))}
    assert users == {"consumer.homeassistant"}
    assert set(grants(Principal(Role.CONSUMER, "homeassistant"))) >= FOREIGN


def test_it_may_read_what_the_bridge_shows_and_publish_nothing_else() -> None:
    granted = set(grants(Principal(Role.CONSUMER, "homeassistant"))) - FOREIGN
    shown = (topics.STATUS, topics.PRESENCE, topics.GM_PRESENCE, topics.CAMERA_STATUS, topics.HARD_SAMPLE)
    assert {Grant(Action.SUBSCRIBE, topic.filter().text) for topic in shown} <= granted
    published = {right.filter for right in granted if right.action is Action.PUBLISH}
    assert published == {topics.IDENTITY_QUERY.filter().text}


def may(action: Action, topic: str) -> bool:
    return any(g.action is action and matches(g.filter.split("/"), topic.split("/")) for g in FOREIGN)


@pytest.mark.parametrize("topic", CONTRACT, ids=lambda topic: topic.id)
def test_nothing_may_be_published_in_a_namespace_of_the_name_of_another_system(topic: Topic[Any]) -> None:
    published = [grant.filter.split("/") for grant in FOREIGN if grant.action is Action.PUBLISH]
    assert not [levels for levels in published if has_overlap(levels, topic.filter().text.split("/"))]


def test_results_and_hard_samples_of_such_a_namespace_need_the_rights_of_the_contract() -> None:
    for topic in (topics.RESULT, topics.HARD_SAMPLE, topics.OCCUPANCY, topics.REQUEST):
        levels = topic.filter(ns="homeassistant").text.split("/")
        assert not [grant for grant in FOREIGN if has_overlap(grant.filter.split("/"), levels)]


def test_home_assistant_and_the_bridge_may_use_the_topics_of_discovery() -> None:
    bridge = DiscoveryTopics()
    for topic in (bridge.birth, bridge.claim, bridge.record, bridge.availability, bridge.document("system")):
        assert may(Action.PUBLISH, topic)
        assert may(Action.SUBSCRIBE, topic)
    state = bridge.state("node_edge0", "drained")
    assert may(Action.PUBLISH, f"{state}/set")
    assert may(Action.SUBSCRIBE, f"{state}/attributes")
    # of all platforms, also with a level for the node (homeassistant/components/mqtt/discovery.py)
    assert may(Action.SUBSCRIBE, "homeassistant/sensor/a/config")
    assert may(Action.SUBSCRIBE, "homeassistant/sensor/a/b/config")


def test_both_brokers_get_the_rules_with_the_prefix_of_the_site() -> None:
    site = Site(consumers=["homeassistant"], prefix="plant/a")
    assert "topic readwrite plant/a/homeassistant/device/#" in acl_file(site)
    assert "topic read plant/a/homeassistant/+/+/config" in acl_file(site)
    assert acl_conf(site).count('"plant/a/homeassistant/device/#"') == 2
