"""EMQX's authorization file: well-formed, the same rights as on Mosquitto, and denied is what nobody granted.

Read by a small reader of Erlang terms; no EMQX runs here.
"""

from __future__ import annotations

import itertools

import pytest

from halimede.access.emqx import acl_conf
from halimede.access.grants import NAMED, OWN_NAME
from halimede.access.mosquitto import acl_file
from halimede.access.site import Site
from halimede.bus.topic_filter import matches
from halimede.topics import CONTRACT
from tests.unit.access.erlang import consult

SITE = Site(nodes=["edge0", "cloud0.example.com"], cameras=["cam0"], consumers=["viewer"], prefix="factory/east")


@pytest.mark.parametrize("broken", ["{a", "{a}", "{a,}.", "[a b].", '{"x}.', "A.", "{a].", "a. b"])
def test_the_reader_refuses_what_erlang_would(broken: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        consult(broken)


def test_every_rule_is_one_that_emqx_knows() -> None:
    *rules, hidden, last = consult(acl_conf(SITE))
    names = {user.username for user in SITE.principals()}
    for rule in rules:
        allow, who, action, topics = rule
        assert allow == ":allow"
        assert who[0] == ":username"
        assert who[1] in names
        assert action in {":publish", ":subscribe"}
        assert isinstance(topics, list)
        assert topics
        assert all(topic.startswith("factory/east/") for topic in topics)
    assert hidden[:3] == (":deny", ":all", ":all")
    assert "$SYS/#" in hidden[3]
    assert last == (":deny", ":all")


def test_it_grants_what_mosquittos_file_grants() -> None:
    wanted, user = set(), ""
    for line in acl_file(SITE).splitlines():
        word, _, rest = line.partition(" ")
        if word == "user":
            user = rest
        elif word == "topic":
            access, _, topic = rest.partition(" ")
            actions = {"read": [":subscribe"], "write": [":publish"], "readwrite": [":subscribe", ":publish"]}[access]
            wanted |= {(user, action, topic) for action in actions}
    rules = consult(acl_conf(SITE))[:-2]
    assert {(who[1], action, topic) for _, who, action, topics in rules for topic in topics} == wanted


def test_whatever_our_clients_subscribe_is_within_one_rule() -> None:
    """EMQX refuses a filter that is wider than what is granted."""
    site = Site(nodes=["edge0"], cameras=["cam0"], operators=["admin"], consumers=["viewer"])
    rules = consult(acl_conf(site))[:-2]
    granted = [(who[1], filter_) for _, who, action, filters in rules if action == ":subscribe" for filter_ in filters]
    for user, topic in itertools.product(site.principals(), CONTRACT):
        if user.role not in topic.subscribers:
            continue
        own = {OWN_NAME[user.role]: user.name} if OWN_NAME.get(user.role) in topic.fields else {}
        if topic.listener and user.role in NAMED:
            own = {topic.listener: user.username}
        others = [field for field in topic.fields if field not in own]
        for count in range(len(others) + 1):
            text = topic.filter(**own, **dict.fromkeys(others[:count], "x")).text
            mine = [filter_ for name, filter_ in granted if name == user.username]
            assert any(matches(filter_.split("/"), text.split("/")) for filter_ in mine), (user, text)
