"""EMQX's files of a site: well-formed, the same rights as on Mosquitto, and denied is what nobody granted.

Read by a small reader of Erlang terms; no EMQX runs here.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from halimede.access.emqx import acl_conf, write_files
from halimede.access.grants import OWN_NAME, USERNAME_ROLES
from halimede.access.mosquitto import acl_file
from halimede.access.passwords import make_passwords
from halimede.access.site import Site, read_site
from halimede.bus.topic_filter import matches
from halimede.topics import CONTRACT
from tests.unit.access.erlang import consult

SITE = Site(nodes=["edge0", "cloud0.example.com"], cameras=["cam0"], consumers=["viewer"], prefix="factory/east")


def test_every_rule_is_one_that_emqx_knows() -> None:
    *rules, hidden, last = consult(acl_conf(SITE))
    names = {user.username for user in SITE.principals()}
    for allow, who, action, topics in rules:
        assert (allow, who[0], who[1] in names) == (":allow", ":username", True)
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
        if topic.listener and user.role in USERNAME_ROLES:
            own = {topic.listener: user.username}
        others = [field for field in topic.fields if field not in own]
        for count in range(len(others) + 1):
            text = topic.filter(**own, **dict.fromkeys(others[:count], "x")).text
            mine = [filter_ for name, filter_ in granted if name == user.username]
            assert any(matches(filter_.split("/"), text.split("/")) for filter_ in mine), (user, text)


#: levels of topics that are no names. What is named like one is not a case here: docs/emqx.md advises against it
WORDS = {level for topic in CONTRACT for level in topic.filter().text.split("/")} - {"+"}


def beyond_the_rules(subscribed: list[str], prefix: list[str]) -> list[str]:
    """Return topics that a user receives because EMQX lets a ``+`` at the end of a rule match a ``#``."""
    rules = [filter_.split("/") for filter_ in subscribed]
    excess = []
    for *head, last in rules:
        for topic in CONTRACT if last == "+" else ():
            name = joint_topic(head, prefix + topic.filter().text.split("/"))
            if name and not any(matches(rule, name) for rule in rules):
                excess.append("/".join(name))
    return excess


def joint_topic(head: list[str], pattern: list[str]) -> list[str] | None:
    """Return a topic of ``pattern`` that ``head`` and a ``#`` match, with names of others; None: there is none."""
    if len(pattern) < len(head):  # a `#` also matches the level before it
        return None
    levels = []
    for granted, level in zip(head, pattern, strict=False):
        if granted not in {level, "+"} and (level != "+" or granted in WORDS):
            return None
        levels.append(level if granted == "+" else granted)
    return ["of-another" if level == "+" else level for level in levels + pattern[len(head) :]]


@pytest.mark.parametrize("prefix", ["", "factory/east"])
def test_a_plus_at_the_end_of_a_rule_grants_no_more_where_it_matches_a_hash(prefix: str) -> None:
    bridge = {"name": "plant", "nodes": ["edge1"], "cameras": ["cam1"], "broker": ["plant.lan"]}
    site = read_site({
        "broker": ["hub.lan"], "nodes": ["edge0", "edge1", "cloud0"], "cameras": ["cam0", "cam1"],
        "consumers": ["viewer"], "pools": True, "bridges": [{**bridge, "consumers": ["viewer"]}], "prefix": prefix,
    })  # fmt: skip
    levels = [level for level in prefix.split("/") if level]
    rules = consult(acl_conf(site))[:-2]
    assert sum(filter_.endswith("/+") for rule in rules if rule[2] == ":subscribe" for filter_ in rule[3]) > 10
    for user in site.principals():
        subscribed = [
            filter_ for _, who, action, filters in rules if action == ":subscribe" and who[1] == user.username
            for filter_ in filters
        ]  # fmt: skip
        assert beyond_the_rules(subscribed, levels) == [], user.username


def test_a_plus_that_would_grant_more_is_noticed() -> None:
    insert = "node/edge0/of-another/sedna/downstream/of-another/of-another/insert"
    assert insert in beyond_the_rules(["node/edge0/+"], [])


@pytest.mark.parametrize("passwords", [True, False], ids=["passwords", "certificates"])
def test_the_files_are_those_of_the_sites_mode(tmp_path: Path, passwords: bool) -> None:
    site = Site(nodes=["edge0"], passwords=passwords)
    if passwords:
        make_passwords(site, tmp_path)
    write_files(site, tmp_path)
    own = tmp_path / "emqx"
    settings, rules = (own / "emqx.conf").read_text(), (own / "acl.conf").read_text()
    assert (own / "users.csv").exists() is passwords
    assert (own / "emqx.conf").stat().st_mode & 0o077 == 0
    assert f'path = "{own}/acl.conf"' in settings
    assert f'node.cookie = "{(own / "cookie").read_text()}"' in settings
    assert (f'bootstrap_file = "{own}/users.csv"' in settings) is passwords
    assert ("verify = verify_peer" in settings) is ("fail_if_no_peer_cert = true" in settings) is (not passwords)
    assert ("peer_cert_as_username" in rules.partition("{allow")[0]) is (not passwords)
    assert f'bind = "0.0.0.0:{1883 if passwords else 8883}"' in settings
    write_files(site, tmp_path)
    assert (own / "emqx.conf").read_text() == settings


def test_users_of_another_mode_are_removed_and_the_folder_on_the_brokers_machine_is_named(tmp_path: Path) -> None:
    site, own = Site(nodes=["edge0"], passwords=True, install="/etc/emqx/halimede", port=18883), tmp_path / "emqx"
    make_passwords(site, tmp_path)
    write_files(site, tmp_path)
    assert 'bootstrap_file = "/etc/emqx/halimede/users.csv"' in (own / "emqx.conf").read_text()
    write_files(Site(nodes=["edge0"], install="/etc/emqx/halimede", port=18883), tmp_path)
    assert not (own / "users.csv").exists()
    text = (own / "emqx.conf").read_text()
    assert 'cacertfile = "/etc/emqx/halimede/ca.crt"' in text
    assert 'bind = "0.0.0.0:18883"' in text
