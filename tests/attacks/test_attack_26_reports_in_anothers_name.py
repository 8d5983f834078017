"""Attacks 2 and 26: reports in another's name: presence, statuses, health, letters. Brokers take one's own alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede import topics
from halimede.access.site import Principal
from halimede.contract.examples import NAMES
from halimede.topic import Address, Role
from tests.access_world import AUDITOR, access_world
from tests.waiting import eventually

NOT_AUTHORIZED = 0x87


def reports(name: str) -> dict[Principal, list[Address]]:
    """Return what may be published in the name of node or camera ``name``, by who may."""
    dead_letter = topics.DEAD_LETTER.at(node=name, client="any-client")
    worker = topics.WORKER_INFO.at(node=name, ns="default", worker=NAMES["worker"])
    status = topics.NODE_STATUS.at(node=name, ns="default", plural="jointinferenceservices", name="helmet")
    read_itself = topics.NODE_CAMERA_STATUS.at(node=name, ns="default", camera="cam0")
    return {
        Principal(Role.LC, name): [dead_letter, topics.PRESENCE.at(node=name), topics.SYNC.at(node=name), status],
        Principal(Role.EDGE, name): [dead_letter, worker, read_itself],
        Principal(Role.CLOUD, name): [dead_letter, worker],
    }


@pytest.mark.parametrize("role", [Role.LC, Role.EDGE, Role.CLOUD])
async def test_attack_26_what_runs_on_a_node_reports_in_its_name_alone(role: Role, tmp_path: Path) -> None:
    async with access_world(tmp_path) as world:
        auditor = await world.client(AUDITOR)
        await auditor.listen(["#"])
        own, foreign = (reports(node)[Principal(role, node)] for node in ("edge0", "edge1"))
        hostile = await world.client(Principal(role, "edge0"))
        for address in foreign:
            assert await hostile.publish(address.text, "forged") == NOT_AUTHORIZED, address.text
        for address in own:
            assert await hostile.publish(address.text, "true") == 0, address.text
        await eventually(lambda: len(auditor.heard) == len(own))
        assert {tag for _, tag in auditor.heard} == {"true"}


@pytest.mark.parametrize(
    ("principal", "allowed"),
    [
        (Principal(Role.CAMERA, "cam0"), True),
        (Principal(Role.CAMERA, "cam1"), False),
        *((Principal(role, "edge0"), False) for role in (Role.EDGE, Role.CLOUD, Role.LC)),
        (Principal(Role.CONSUMER, "viewer"), False),
    ],
)
async def test_attack_26_a_camera_reports_on_itself_alone(principal: Principal, allowed: bool, tmp_path: Path) -> None:
    address = topics.CAMERA_STATUS.at(ns="default", camera="cam0")
    async with access_world(tmp_path) as world:
        hostile = await world.client(principal)
        assert (await hostile.publish(address.text, "x") in {0, 0x10}) is allowed


async def test_attack_26_no_camera_and_no_consumer_publishes_dead_letters_or_health(tmp_path: Path) -> None:
    async with access_world(tmp_path) as world:
        for principal in (Principal(Role.CAMERA, "cam0"), Principal(Role.CONSUMER, "viewer")):
            hostile = await world.client(principal)
            for addresses in reports("edge0").values():
                for address in addresses:
                    assert await hostile.publish(address.text, "forged") == NOT_AUTHORIZED, address.text
