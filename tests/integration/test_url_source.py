"""An edge worker reads its camera itself: each frame that it takes is answered, and its status is on the bus."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede import topics
from halimede.api.jointinference import FrameSourceSpec
from halimede.messages import CameraStatus
from halimede.models.address_policy import VARIABLE
from tests.cameras import PASSWORD, USER, MjpegCamera, counting, video
from tests.inbox import Inbox
from tests.ports import free_port
from tests.simulated import eventually
from tests.unit.worker.world import world

PATIENCE_S = 30.0
pytestmark = pytest.mark.timeout(90)


@pytest.fixture(autouse=True)
def _cameras_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow them, as the machine's operator does."""
    monkeypatch.setenv(VARIABLE, "loopback")


async def test_every_frame_of_a_video_file_is_answered(tmp_path: Path) -> None:
    path = video(tmp_path / "Door 1.mp4", 30)
    async with world(tmp_path) as site, site.worker("edge", "e0", source=FrameSourceSpec(url=f"{path.as_uri()}#door")):
        await eventually(lambda: len(site.results) == 30, PATIENCE_S)
    answers = sorted(site.results.values(), key=lambda result: result.sequence)
    assert [a.sequence for a in answers] == list(range(30))
    assert {a.camera for a in answers} == {"door"}
    assert answers[25].captured_ns - answers[0].captured_ns == pytest.approx(1e9, abs=10)
    assert set(site.copies.values()) == {1}


async def test_a_live_camera_is_read_with_the_password_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_USERNAME", USER)
    monkeypatch.setenv("SOURCE_PASSWORD", PASSWORD)
    statuses: Inbox[CameraStatus] = Inbox()
    async with world(tmp_path) as site, MjpegCamera(counting(), password=PASSWORD) as camera:
        await site.camera.subscribe(topics.NODE_CAMERA_STATUS.filter(), statuses)
        async with site.worker("edge", "e0", source=FrameSourceSpec(url=f"{camera.url()}#yard")):
            await eventually(lambda: len(site.results) >= 10, PATIENCE_S)
            await eventually(lambda: "running" in statuses.read(lambda s: s.state), PATIENCE_S)
        await eventually(lambda: statuses.read(lambda s: s.state)[-1] == "stopped", PATIENCE_S)
    assert not any(PASSWORD in repr(status) for status in statuses.bodies)
    assert site.info("e0").lost == 0


async def test_a_worker_whose_camera_is_away_says_so_and_takes_it_back_when_it_comes(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/stream#gate"
    async with world(tmp_path) as site, site.worker("edge", "e0", period_s=0.2, source=FrameSourceSpec(url=url)):
        await eventually(lambda: site.infos["e0"][-1].reason == "SourceFailed", PATIENCE_S)
        info = site.infos["e0"][-1]
        assert info.status == "running"
        assert info.message.startswith("gate: ")
        async with MjpegCamera(counting(), port=port):
            await eventually(lambda: site.results and not site.infos["e0"][-1].reason, PATIENCE_S)
