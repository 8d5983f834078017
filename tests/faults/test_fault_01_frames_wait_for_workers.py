"""kill -9 of the broker under 25 frames a second, and workers that return later than the camera: no frame is lost."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from halimede import codec, topics
from halimede.bus.message import Delivery
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.commands import publish
from halimede.cli.commands.publish import WINDOW, PublishPlan
from halimede.contract.examples import PNG
from services.broker import MosquittoProcess
from tests.proxy import Proxy
from tests.simulated import eventually
from tests.waiting import patience

FRAMES = 150
WAIT_S = 60.0


def clients(broker: MosquittoProcess) -> int:
    """Return how often a client has connected, by the broker's log."""
    return broker.log.read_text().count("New client connected")


@pytest.mark.slow
@pytest.mark.parametrize(("return_s", "code"), [(120.0, 0), (0.0, 1)])
async def test_fault_01_frames_wait_for_workers_that_return_after_the_camera(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], return_s: float, code: int
) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number in range(FRAMES):
        (pictures / f"{number:03}.png").write_bytes(PNG)
    sequences: set[int] = set()

    async def work(delivery: Delivery[bytes]) -> None:
        sequences.add(codec.decode(topics.REQUEST, bytes(delivery.body)).sequence)

    async with (
        MosquittoProcess(tmp_path / "broker") as broker,
        Proxy(broker.port) as proxy,
        MqttBus("worker", MqttSettings("127.0.0.1", proxy.port)) as bus,
    ):
        await bus.wait_connected(patience(WAIT_S))
        await bus.subscribe(topics.CAMERA_FRAME.filter(camera="cam0"), work)
        plan = PublishPlan([str(pictures)], "cam0", "default", 25.0, 1, 1, bare=False, return_s=return_s)
        address = BrokerAddress(MqttSettings("127.0.0.1", broker.port), "the test")
        sending = asyncio.create_task(publish.publish_pictures(address, plan))
        await eventually(lambda: len(sequences) >= 20, patience(WAIT_S))
        await broker.kill()
        proxy.cut()
        before = clients(broker)
        await broker.start()
        await eventually(lambda: clients(broker) > before, patience(WAIT_S))
        await asyncio.sleep(2)  # the camera is back, and sends its backlog unless it waits for the worker
        proxy.heal()
        assert await sending == code
    shown = capsys.readouterr()
    missing = FRAMES - len(sequences)
    reported = re.search(r"(\d+) of them had no subscriber", shown.err)
    unheard = int(reported[1]) if reported else 0
    assert bool(unheard) == bool(code), shown.err
    assert unheard <= missing <= unheard + WINDOW, "more than what the broker had acknowledged and lost with its memory"
    assert f"{FRAMES} frames sent to" in shown.out
