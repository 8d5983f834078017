"""Each broker that we start or configure, wherever: the same limits, no Nagle, an allocator that suits large frames."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from halimede.access import emqx
from halimede.access.bridge import configuration as place_configuration
from halimede.access.mosquitto import ENVIRONMENT, LIMITS, MAX_PACKET, configuration
from halimede.access.site import Site, read_site
from halimede.bus.settings import MqttSettings
from halimede.codec import MAX_BYTES
from services.broker import MosquittoProcess
from tests.bridged import SITE

ROOT = Path(__file__).parents[3]
#: most bytes of a packet that its own length does not count
FIXED_HEADER = 5
#: what a place's broker has otherwise, and why: it keeps what could not be passed on (``halimede/access/bridge.py``)
OF_PLACES = ("persistence", "max_queued_messages")


def written() -> Iterator[Any]:
    """Configuration files that lie in the tree, whole or inside of manifests."""
    for path in sorted(ROOT.glob("deploy/**/mosquitto.conf")):
        yield pytest.param(path.read_text(), id=str(path.relative_to(ROOT)))
    for path in sorted(ROOT.glob("deploy/*.yaml")):
        for document in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            if text := (document.get("data") or {}).get("mosquitto.conf"):
                yield pytest.param(text, id=str(path.relative_to(ROOT)))
    yield pytest.param("\n".join(MosquittoProcess(ROOT)._configuration(1883)), id="services/broker.py")
    for passwords in (True, False):
        site = Site(passwords=passwords)
        yield pytest.param(configuration(site, Path("/site")), id=f"a site, passwords: {passwords}")


def containers() -> Iterator[Any]:
    """Containers that run a Mosquitto: name and environment."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    for name, service in compose["services"].items():
        if "mosquitto" in service.get("image", ""):
            yield pytest.param(service.get("environment", {}), id=f"docker-compose.yml {name}")
    for path in sorted(ROOT.glob("deploy/**/*.yaml")):
        for document in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            pod = ((document or {}).get("spec") or {}).get("template") or {}
            for container in (pod.get("spec") or {}).get("containers", []):
                if "mosquitto" in str(container.get("command")):
                    told = {each["name"]: each["value"] for each in container.get("env", [])}
                    yield pytest.param(told, id=f"{path.relative_to(ROOT)} {container['name']}")


@pytest.mark.parametrize("text", list(written()))
def test_a_brokers_configuration_has_every_limit_once(text: str) -> None:
    lines = text.splitlines()
    for limit in LIMITS:
        name = limit.split()[0]
        assert [line for line in lines if line.split()[:1] == [name]] == [limit]


def test_a_places_broker_differs_in_what_it_keeps_alone() -> None:
    site = read_site(SITE)
    (bridge,) = site.bridges
    login = ("factory", "secret") if site.passwords else None
    lines = place_configuration(site, bridge, Path("/site"), login=login).splitlines()
    assert [limit for limit in LIMITS if limit not in lines and not limit.startswith(OF_PLACES)] == []


@pytest.mark.parametrize("told", list(containers()))
def test_a_container_with_a_broker_has_its_allocator_pinned(told: dict[str, str]) -> None:
    assert {name: told.get(name) for name in ENVIRONMENT} == ENVIRONMENT


@pytest.mark.slow
def test_there_are_brokers_to_look_at() -> None:
    assert len(list(written())) >= 7
    assert len(list(containers())) >= 5


def test_whoever_starts_a_sites_broker_by_hand_is_told_of_its_allocator() -> None:
    text = configuration(Site(), Path("/site"))
    assert all(f"{name}={value}" in text for name, value in ENVIRONMENT.items())


def has_emqx_limits(text: str) -> bool:
    lines = [line.strip() for line in text.splitlines()]
    return all(lines.count(limit.strip()) == 1 for limit in emqx.LIMITS.splitlines() if "=" in limit)


@pytest.mark.parametrize("path", ["deploy/overlays/emqx/emqx.conf", "deploy/emqx.yaml"])
def test_emqx_of_the_overlay_has_every_limit_once_and_no_nagle(path: str) -> None:
    text = (ROOT / path).read_text()
    assert has_emqx_limits(text)
    (listener,) = re.findall(r"^\s*listeners\.\w+\.default\s*\{.*$", text, re.MULTILINE)
    assert "nodelay = true" in listener


@pytest.mark.parametrize("passwords", [True, False], ids=["passwords", "certificates"])
def test_emqx_of_a_site_has_every_limit_once_and_no_nagle(tmp_path: Path, passwords: bool) -> None:
    text = emqx.configuration(Site(passwords=passwords), tmp_path)
    assert has_emqx_limits(text)
    assert (text.count("nodelay = true"), text.count("no_match = deny")) == (1, 1)
    assert len(re.findall(r"listeners\.\w+\.default.enable = false", text)) == 3


def test_what_emqx_acknowledges_fits_into_what_clients_announce() -> None:
    """EMQX counts a packet without its fixed header when it comes in, and drops one of exactly a client's limit."""
    largest = emqx.MAX_PACKET_KIB * 1024
    assert largest + FIXED_HEADER < MqttSettings("broker").max_packet == MAX_PACKET
    # the largest body has 63 KiB for topic and properties
    assert largest - MAX_BYTES == 63 * 1024
