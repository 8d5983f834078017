"""deploy/site-broker takes the port of its place, and finds there what `halimede certs` makes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from halimede.access.bridge import address
from halimede.access.manifests import secrets_of
from halimede.access.mosquitto import acl_file
from halimede.access.site import Site, read_site
from halimede.cli.commands.certs import _make
from halimede.errors import InvalidFieldError
from tests.rendering import DEPLOY, documents, render
from tests.unit.deploy.test_rendering import Body, needs_kustomize, one, pod_of, site_broker

PLACE = {
    "name": "factory", "nodes": ["edge0"], "consumers": ["gate"], "broker": ["10.1.0.7"],
    "install": "/etc/halimede/place", "data": "/var/lib/halimede-place",
}  # fmt: skip
DNS = {("UDP", 53), ("TCP", 53)}
SITE = {
    "broker": ["cloud.example.com"], "nodes": ["edge0", "cloud0"], "cameras": ["cam0"], "consumers": ["gate", "far"],
}  # fmt: skip


def site(place: Body | None = None, **more: Any) -> Site:
    return read_site({**SITE, **more, "bridges": [PLACE | (place or {})]})


def listener(made: Site, folder: Path) -> int:
    """Return the port in the configuration that is made for the place."""
    (port,) = re.findall(r"^listener (\d+)$", configuration(made, folder), re.MULTILINE)
    return int(port)


def configuration(made: Site, folder: Path) -> str:
    _make(made, folder)
    return (folder / "bridges" / "factory" / "broker" / "mosquitto.conf").read_text()


def opened(found: list[Body]) -> list[tuple[int, int]]:
    (container,) = pod_of(found, "halimede-place")["containers"]
    return [(port["containerPort"], port["hostPort"]) for port in container["ports"]]


def reached(found: list[Body]) -> set[tuple[str, int]]:
    """Return the ports to which the place's broker may connect; fails for a range."""
    spec = one(found, "NetworkPolicy", "halimede-place")["spec"]
    ports = [port for rule in spec["egress"] for port in rule["ports"]]
    assert not any("endPort" in port for port in ports)
    return {(port["protocol"], port["port"]) for port in ports}


def test_it_takes_the_port_that_a_site_with_certificates_serves_and_no_other(tmp_path: Path) -> None:
    port = listener(site(), tmp_path)
    assert opened(site_broker()) == [(port, port)] == [(8883, 8883)]
    assert reached(site_broker()) == {("TCP", port), *DNS}


@needs_kustomize
def test_with_passwords_a_component_gives_it_the_other_port(tmp_path: Path) -> None:
    port = listener(site(passwords=True), tmp_path / "site")
    folder = shutil.copytree(DEPLOY / "site-broker", tmp_path / "own")
    own = folder / "kustomization.yaml"
    own.write_text(own.read_text().replace("# components", "components"))
    found = list(documents(render(folder)))
    assert opened(found) == [(port, port)] == [(1883, 1883)]
    assert reached(found) == {("TCP", port), *DNS}


def test_it_can_stand_next_to_another_broker_and_behind_a_node_port(tmp_path: Path) -> None:
    assert listener(site({"port": 2883}, passwords=True), tmp_path / "next") == 2883
    behind = site(port=31883)
    assert address(behind) == "cloud.example.com:31883"
    # nodes and pods know one address of the broker, whose name leads to the place's broker there
    assert listener(behind, tmp_path / "behind") == 31883
    assert address(site()) == "cloud.example.com:8883"


@pytest.mark.parametrize("passwords", [False, True])
def test_its_one_volume_has_the_files_where_its_configuration_looks_for_them(tmp_path: Path, passwords: bool) -> None:
    made = site(passwords=passwords)
    text = configuration(made, tmp_path)
    secret = one(
        list(secrets_of(made, tmp_path, namespace="halimede", workers_in=[])), "Secret", "halimede-place-factory"
    )
    pod = pod_of(site_broker(), "halimede-place")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    (name,) = (name for name, volume in volumes.items() if "secret" in volume)
    assert volumes[name]["secret"]["secretName"] == secret["metadata"]["name"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    items = {item["key"]: f"{mounts[name]}/{item['path']}" for item in volumes[name]["secret"]["items"]}
    there = {items[key] for key in secret["data"]}
    wanted = re.findall(r"^\S*(?:file|keyfile|certfile) (/\S+)$", text, re.MULTILINE)
    assert wanted
    assert set(wanted) <= there
    assert pod["containers"][0]["command"][-1] in there
    assert f"persistence_location {mounts['data']}/" in text
    assert volumes["data"]["hostPath"]["path"] == mounts["data"] == PLACE["data"]


def test_operators_and_consumers_of_a_place_may_read_whether_its_link_is_up() -> None:
    def readers(text: str) -> set[str]:
        sections = [section.splitlines() for section in text.split("user ")[1:]]
        return {lines[0] for lines in sections if "topic read $SYS/broker/connection/+/state" in lines}

    made = site()
    assert readers(acl_file(made, made.bridges[0])) == {"operator.admin", "consumer.gate"}
    assert readers(acl_file(made)) == set()


@pytest.mark.parametrize(("field", "value"), [("port", 70_000), ("port", -1), ("data", "kept")])
def test_a_port_or_folder_that_cannot_be_is_refused_by_field(field: str, value: object) -> None:
    with pytest.raises(InvalidFieldError, match=rf"^site\.bridges\[0\]\.{field}"):
        site({field: value})
