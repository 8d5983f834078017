"""``publish --draw``: the answers to the frames that it sent are pictures in a folder, on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halimede import codec, topics
from halimede.bus.message import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.cli import answer_drawer
from halimede.cli.answer_drawer import AnswerDrawer
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.commands import publish, results
from halimede.cli.commands.publish import PublishPlan
from halimede.cli.drawings import drawing_name
from halimede.cli.options import Format
from halimede.errors import InvalidFieldError
from halimede.frames import encode_image
from halimede.messages import Box, Frame, HardSample, Prediction, Result
from services.broker import MosquittoProcess
from tests.cameras import video
from tests.integration.cli.conftest import Output, connected, plan
from tests.typed import typed
from tests.waiting import eventually, patience

PICTURE = encode_image(np.full((300, 400, 3), (90, 120, 60), np.uint8))
#: a hostile worker's answer: boxes outside of the frame, and a label that is a path
ANSWER = Prediction(boxes=[Box(-50, -50, 1e6, 40, 0.9, "../../face")])


class Answerer:
    """An edge worker that answers all frames but those of these sequences, each twice, for two services."""

    def __init__(self, bus: MqttBus, silent: set[int]) -> None:
        self._bus = bus
        self._silent = silent

    async def __call__(self, delivery: Delivery[bytes]) -> None:
        frame = codec.decode(topics.REQUEST, bytes(delivery.body))
        for topic, service in ((topics.RESULT, "faces"), (topics.MULTI_RESULT, "crowd")) * 2:
            result = Result(id=frame.id.hex(), service=service, camera="cam0", by="edge", worker="w", prediction=ANSWER)
            if frame.sequence not in self._silent:
                await self._bus.publish(topic.at(ns="default", service=service), result)


@pytest.fixture
async def silent(mosquitto: MosquittoProcess) -> AsyncIterator[set[int]]:
    """Start the worker; yield the sequences that it does not answer."""
    sequences: set[int] = set()
    async with connected("edge", mosquitto) as bus:
        await bus.subscribe(topics.CAMERA_FRAME.filter(camera="cam0"), Answerer(bus, sequences))
        yield sequences


def pictures(folder: Path, *names: str) -> PublishPlan:
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(PICTURE)
    return plan(str(folder), draw=folder.parent / "out" / "drawn")


async def test_each_answer_of_each_service_is_one_picture(
    broker: BrokerAddress, silent: set[int], tmp_path: Path, capsys: Output
) -> None:
    order = pictures(tmp_path / "in", "a.png", "b\n\x1b[31m.png", "…..png")
    assert await publish.publish_pictures(broker, order) == 0
    drawn = sorted(path.name for path in order.draw.iterdir())
    ends = [f"{number:06d}{name}-{service}.jpg" for number, name in enumerate(("-a", "-b_31m", ""))
            for service in ("crowd", "faces")]  # fmt: skip
    assert drawn == ends
    with Image.open(order.draw / drawn[0]) as picture:
        assert picture.size == (400, 300)
        assert len(picture.getcolors(400 * 300) or []) > 50
    assert f"6 answers drawn in {order.draw}" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["drawn"]


async def test_frames_without_an_answer_are_counted(
    broker: BrokerAddress, silent: set[int], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_drawer, "QUIET_S", patience(1.0))
    silent.add(1)
    assert await publish.publish_pictures(broker, pictures(tmp_path / "in", "a.png", "b.png", "c.png")) == 1
    printed = capsys.readouterr()
    assert "4 answers drawn in" in printed.out
    assert "1 of 3 frames had no answer" in printed.err


async def test_drawings_are_bounded(
    broker: BrokerAddress, silent: set[int], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_drawer, "MAX_DRAWINGS", 4)
    order = replace(pictures(tmp_path / "in", "a.png"), rounds=9)
    assert await publish.publish_pictures(broker, order) == 0
    assert len(list(order.draw.iterdir())) == 4
    assert "only answers to the first 4 of 9 frames were drawn" in capsys.readouterr().err


async def test_the_first_frame_that_waits_for_a_worker_is_one_frame(
    broker: BrokerAddress, mosquitto: MosquittoProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []
    add_frame = AnswerDrawer.add_frame

    def recorded(drawer: AnswerDrawer, frame: Frame) -> None:
        attempts.append(frame.sequence)
        add_frame(drawer, frame)

    monkeypatch.setattr(AnswerDrawer, "add_frame", recorded)
    film, drawn = video(tmp_path / "film.mkv", frames=3), tmp_path / "drawn"
    published = asyncio.create_task(publish.publish_stream(broker, plan(str(film), wait_s=60.0, draw=drawn)))
    await eventually(lambda: len(attempts) >= 3, 30)
    async with connected("edge", mosquitto) as bus, asyncio.timeout(patience(30)):
        await bus.subscribe(topics.CAMERA_FRAME.filter(camera="cam0"), Answerer(bus, set()))
        assert await published == 0
    assert len(list(drawn.iterdir())) == 6


async def test_a_folder_that_cannot_be_made_is_refused_before_a_frame_is_sent(
    broker: BrokerAddress, silent: set[int], tmp_path: Path, capsys: Output
) -> None:
    order = pictures(tmp_path / "in", "a.png")
    with pytest.raises(InvalidFieldError, match=r"--draw: .* this folder cannot be made"):
        await publish.publish_pictures(broker, replace(order, draw=tmp_path / "in" / "a.png" / "drawn"))
    assert "frames sent" not in capsys.readouterr().out


async def test_a_second_run_into_the_same_folder_is_refused_before_a_frame_is_sent(
    broker: BrokerAddress, silent: set[int], tmp_path: Path, capsys: Output
) -> None:
    order = pictures(tmp_path / "in", "a.png")
    assert await publish.publish_pictures(broker, order) == 0
    before = {path.name: path.read_bytes() for path in order.draw.iterdir()}
    capsys.readouterr()
    for command in (
        publish.publish_pictures(broker, order),
        results.show_results(broker, "faces", "default", 1, Format.TABLE, order.draw),
    ):
        with pytest.raises(InvalidFieldError, match=r"--draw: .* it has files: name a new folder"):
            await command
    assert "frames sent" not in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in order.draw.iterdir()} == before


async def test_results_draw_the_hard_samples_that_workers_publish(
    broker: BrokerAddress, mosquitto: MosquittoProcess, tmp_path: Path, capsys: Output
) -> None:
    folder = tmp_path / "out" / "hard"
    names = {"ns": "default", "service": "faces"}
    boxed = HardSample(
        id=bytes(16), worker="w", by="cloud", file="../a.jpg", data=PICTURE, boxes=[Box(0, 0, 0.5, 0.5, 0.9, "face")]
    )
    classed = HardSample(id=bytes(16), worker="w", by="cloud", camera="../cam", data=PICTURE, label="cat", score=0.5)
    broken = HardSample(id=bytes(16), worker="w", by="cloud", data=PICTURE[:300])
    result = Result(id="0" * 32, service="faces", by="cloud", worker="w", prediction=ANSWER)
    shown = asyncio.create_task(results.show_results(broker, "faces", "default", 1, Format.TABLE, folder))
    async with connected("edge", mosquitto) as bus, asyncio.timeout(patience(20)):
        while not folder.exists() or len(list(folder.iterdir())) < 2:
            for sample in (broken, boxed, classed):
                await bus.publish(topics.HARD_SAMPLE.at(**names), sample)
            await asyncio.sleep(0.2)
        while not shown.done():
            await bus.publish(topics.RESULT.at(**names), result)
            await asyncio.sleep(0.1)
    await shown
    drawn = sorted(path.name for path in folder.iterdir())
    assert drawn[:2] == ["000000-a-faces.jpg", "000001-cam-faces.jpg"]
    with Image.open(folder / drawn[0]) as picture:
        line = picture.crop((195, 20, 205, 120)).getcolors(1000) or []
    assert len(line) > 3, "the right edge of the box stands at half of the width"
    printed = capsys.readouterr()
    assert "hard samples drawn in" in printed.out
    assert "the picture of a hard sample is unreadable" in printed.err
    assert "results have no pictures" in printed.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["hard"]


def test_a_bare_frame_has_no_id_to_find_its_answer_by() -> None:
    arguments = ("publish", ".", "--camera", "cam0", "--bare", "--draw", "d", "--broker", "localhost:1")
    assert "give --draw or --bare, not both" in typed(*arguments, code=2).stderr


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "..\\..\\x", "/", "..", "", "a\0b", "\x1b]0;x\x07", "x" * 9999, "中"]
)
def test_no_name_leaves_the_folder(name: str) -> None:
    drawn = drawing_name(7, name, "../s")
    assert Path(drawn).name == drawn
    assert drawn.startswith("000007-")
    assert drawn.endswith("-s.jpg")
    assert len(drawn) < 255
    assert drawn.isascii()
    assert drawn.isprintable()
