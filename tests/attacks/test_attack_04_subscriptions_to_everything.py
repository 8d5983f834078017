"""Attack 4: a subscription to everything, to the broker's own topics, or into somebody's group. Nothing is delivered.

What a stranger to a topic can still do on Mosquitto is take a place in a group whose name it knows: the broker hands
the group's messages round and drops those that it may not be sent. docs/security.md says so, the last test notes it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede.access.site import Principal
from halimede.bus import Packet
from halimede.topic import Role
from tests.access_world import AUDITOR, access_world
from tests.integration.test_access_matrix import cases
from tests.waiting import eventually

EVERYTHING = ["#", "+", "+/#", "+/+/#", "/#", "$SYS/#", "$SYS/broker/uptime"]
EVERYTHING += ["$share/x/#", "$share/x/$SYS/#", "$share/x/+/+/#"]
FRAMES, GROUP = "default/sedna/frames/cam0", "digits"
#: users that may read nothing but their own things
STRANGERS = [Principal(Role.CAMERA, "cam0"), Principal(Role.CONSUMER, "viewer"), Principal(Role.CLOUD, "edge0")]


def may(user: Principal) -> set[str]:
    return {case.text for case in cases() if case.may(user, case.topic.subscribers)}


@pytest.mark.parametrize("filter_", EVERYTHING)
async def test_attack_04_a_filter_for_everything_brings_what_one_may_read(tmp_path: Path, filter_: str) -> None:
    async with access_world(tmp_path) as world:
        auditor = await world.client(AUDITOR)
        for case in cases():
            await auditor.bus.send(Packet(case.text, b"retained", retain=True))
        for stranger in [await world.client(user) for user in STRANGERS]:
            await stranger.listen([filter_])
            for case in cases():
                await auditor.publish(case.text, "secret")
            await stranger.settle()
            assert {topic for topic, _ in stranger.heard} <= may(stranger.principal)
            await stranger.unlisten([filter_])


async def test_attack_04_a_strangers_place_in_a_group_brings_it_nothing(tmp_path: Path) -> None:
    async with access_world(tmp_path) as world:
        users = Principal(Role.EDGE, "edge0"), Principal(Role.CAMERA, "cam0"), Principal(Role.CONSUMER, "viewer")
        worker, camera, stranger = [await world.client(user) for user in users]
        filter_ = f"$share/{GROUP}/{FRAMES}"
        await worker.listen([filter_])
        await stranger.listen([filter_])
        for number in range(20):
            assert await camera.publish(FRAMES, str(number)) == 0
        await worker.settle()
        await stranger.settle()
        assert stranger.heard == []
        await stranger.unlisten([filter_])
        before = len(worker.heard)
        # known, and Mosquitto's: a member that may not read takes its turns all the same
        assert before in {10, 20}, "half of them at worst"
        for number in range(20):
            await camera.publish(FRAMES, str(number))
        await eventually(lambda: len(worker.heard) == before + 20)
