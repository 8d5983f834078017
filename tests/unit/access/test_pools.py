"""Users for pods: one for all edge workers, one for all cloud workers, wherever Kubernetes puts them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halimede.access.bridge import address
from halimede.access.certs import make_certificates
from halimede.access.grants import Action, Grant, grants
from halimede.access.passwords import make_passwords, states
from halimede.access.site import POOLS, Principal, Site, read_site
from halimede.errors import InvalidFieldError
from halimede.topic import Role

#: names of a site's broker, of which a bridge takes the first
BROKER = ["broker.example.com", "localhost"]
BRIDGE = {"name": "factory", "nodes": ["edge0"]}
SITE = {"broker": BROKER, "nodes": ["edge0"], "bridges": [BRIDGE]}


def test_a_site_has_them_only_when_it_says_so() -> None:
    names = {user.username for user in Site(nodes=["edge0"]).principals()}
    assert names.isdisjoint({"edge-worker", "cloud-worker"})
    more = {user.username for user in Site(nodes=["edge0"], pools=True).principals()}
    assert more - names == {"edge-worker", "cloud-worker"}


@pytest.mark.parametrize("role", POOLS)
def test_they_may_what_a_worker_of_any_node_may_and_no_more(role: Role) -> None:
    pool, one = grants(Principal(role)), grants(Principal(role, "edge0"))
    everywhere = Grant(Action.SUBSCRIBE, "node/+/+/sedna/training/+/trainers/+")  # aggregators read them on all nodes
    assert {
        Grant(right.action, right.filter.replace("node/+/", "node/edge0/")) for right in {*pool} - {everywhere}
    } == {*one} - {everywhere}
    assert (everywhere in pool, everywhere in one) == ((role is Role.CLOUD,) * 2)
    camera = ["node/+/+/sedna/cameras/+/status"] if role is Role.EDGE else []
    trainer = "node/+/+/sedna/training/+/trainers/+"
    trainers = [trainer] if role is Role.EDGE else [trainer, trainer]
    filters = ["node/+/+/sedna/workers/+/info", *camera, *trainers, "node/+/sedna/deadletter/+"]
    assert [right.filter for right in pool if right.filter.startswith("node/")] == filters


@pytest.mark.parametrize("make", [make_passwords, make_certificates])
def test_their_credentials_come_and_go_with_the_site(make: object, tmp_path: Path) -> None:
    assert callable(make)
    report = make(Site(nodes=["edge0"], pools=True), tmp_path)
    assert {"edge-worker", "cloud-worker"} <= set(report.created)
    assert list((tmp_path / "pools" / "edge-worker").iterdir())
    gone = make(Site(nodes=["edge0"]), tmp_path)
    assert set(gone.removed) == {"edge-worker", "cloud-worker"}
    assert not (tmp_path / "pools").exists()


def test_a_place_that_is_gone_leaves_no_keys(tmp_path: Path) -> None:
    site = read_site(SITE)
    assert {"bridge.factory", "broker.factory"} <= set(make_certificates(site, tmp_path).created)
    assert (tmp_path / "bridges" / "factory" / "broker" / "tls.key").exists()
    report = make_certificates(Site(nodes=["edge0"]), tmp_path)
    assert report.removed == ("bridge.factory",)
    assert not list((tmp_path / "bridges").rglob("*.key"))


def test_a_place_with_passwords_knows_those_who_connect_there(tmp_path: Path) -> None:
    make_passwords(read_site({**SITE, "nodes": ["edge0", "cloud0"], "passwords": True, "pools": True}), tmp_path)
    there = (tmp_path / "bridges" / "factory" / "broker" / "passwords").read_text()
    of_the_node = {"lc.edge0", "edge-worker.edge0", "cloud-worker.edge0"}
    of_others = {"edge-worker", "cloud-worker", "operator.admin"}
    assert {line.split(":")[0] for line in there.splitlines()} == of_the_node | of_others


def test_looking_at_passwords_finds_what_does_not_serve(tmp_path: Path) -> None:
    site = Site(nodes=["edge0"], passwords=True)
    make_passwords(site, tmp_path)
    assert not [found.problem for found in states(site, tmp_path) if found.problem]
    (tmp_path / "gm" / "password").write_text("another\n")
    (tmp_path / "operators" / "admin" / "password").unlink()
    problems = {found.entry.username: found.problem for found in states(site, tmp_path) if found.problem}
    assert problems == {"gm": "not the broker's", "operator.admin": "missing"}


@pytest.mark.parametrize(
    ("bridge", "field"),
    [
        ({"name": "Factory"}, "site.bridges[0]"),
        ({"nodes": []}, "site.bridges[0].nodes"),
        ({"nodes": ["edge9"]}, "site.bridges[0].nodes"),
        ({"cameras": ["cam0"]}, "site.bridges[0].cameras"),
        ({"broker": ["a:1"]}, "site.bridges[0].broker[0]"),
        ({"namespaces": ["a/b"]}, "site.bridges[0].namespaces"),
        ({"install": "x"}, "site.bridges[0].install"),
    ],
)
def test_a_bridge_that_cannot_be_is_refused_by_field(bridge: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidFieldError, match=f"^{re.escape(field)}"):
        read_site({**SITE, "bridges": [BRIDGE | bridge]})


def test_a_node_is_behind_one_bridge() -> None:
    with pytest.raises(InvalidFieldError, match="behind the bridge factory already"):
        read_site({**SITE, "bridges": [BRIDGE, {**BRIDGE, "name": "shop"}]})


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost", "me.localhost", "ip6-localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1",
     "0.0.0.0", "::"],
)  # fmt: skip
def test_a_place_whose_bridge_would_lead_back_to_itself_is_refused(host: str) -> None:
    with pytest.raises(InvalidFieldError, match=rf"^site\.broker\[0\]: .*{re.escape(host)}"):
        read_site({**SITE, "broker": [host, "broker.example.com"]})
    # behind a name that leads there it may stand, and first where there is no bridge
    assert address(read_site({**SITE, "broker": ["10.1.0.7", host]})) == "10.1.0.7:8883"
    assert read_site({"broker": [host], "nodes": ["edge0"]}).broker == [host]


def test_a_site_that_names_no_broker_has_none_that_a_place_could_reach() -> None:
    with pytest.raises(InvalidFieldError, match=r"^site\.broker\[0\]: 'localhost' "):
        read_site({"nodes": ["edge0"], "bridges": [BRIDGE]})
