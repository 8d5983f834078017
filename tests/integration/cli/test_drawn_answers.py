"""``publish --draw``: the answers to the frames that it sent are pictures in a folder, on a real broker."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

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
from halimede.cli.output import Format
from halimede.errors import InvalidFieldError
from halimede.messages import Box, Frame, HardSample, Prediction, Result
from services.broker import MosquittoProcess
from tests.cameras import video
from tests.typed import halimede
from tests.waiting import patience

Output = pytest.CaptureFixture[str]
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
    async with MqttBus("edge", mosquitto.url) as bus:
        await bus.wait_connected(patience(5))
        await bus.subscribe(topics.CAMERA_FRAME.filter(camera="cam0"), Answerer(bus, sequences))
        yield sequences


def pictures(folder: Path, *names: str) -> PublishPlan:
    folder.mkdir()
    for name in names:
        Image.new("RGB", (400, 300), (90, 120, 60)).save(folder / name, format="PNG")
    draw = folder.parent / "out" / "drawn"
    return PublishPlan([str(folder)], "cam0", "default", 0.0, 1, 1, bare=False, draw=draw)


async def test_each_answer_of_each_service_is_one_picture(
    broker: BrokerAddress, silent: set[int], tmp_path: Path, capsys: Output
) -> None:
    plan = pictures(tmp_path / "in", "a.png", "b\n\x1b[31m.png", "…..png")
    assert await publish.publish_pictures(broker, plan) == 0
    assert plan.draw
    drawn = sorted(path.name for path in plan.draw.iterdir())
    ends = [f"{number:06d}{name}-{service}.jpg" for number, name in enumerate(("-a", "-b_31m", ""))
            for service in ("crowd", "faces")]  # fmt: skip
    assert drawn == ends
    with Image.open(plan.draw / drawn[0]) as picture:
        assert picture.size == (400, 300)
        assert len(picture.getcolors(400 * 300) or []) > 50
    assert f"6 answers drawn in {plan.draw}" in capsys.readouterr().out
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
    plan = replace(pictures(tmp_path / "in", "a.png"), rounds=9)
    assert await publish.publish_pictures(broker, plan) == 0
    assert plan.draw
    assert len(list(plan.draw.iterdir())) == 4
    assert "only answers to the first 4 of 9 frames were drawn" in capsys.readouterr().err


async def test_frames_of_a_video_are_drawn(broker: BrokerAddress, silent: set[int], tmp_path: Path) -> None:
    path = video(tmp_path / "film.mkv", frames=5)
    plan = PublishPlan([str(path)], "cam0", "default", 0.0, 1, 1, bare=False, draw=tmp_path / "drawn")
    assert await publish.publish_stream(broker, plan) == 0
    assert plan.draw
    assert len(list(plan.draw.iterdir())) == 10
    assert all(Image.open(io.BytesIO(path.read_bytes())).format == "JPEG" for path in plan.draw.iterdir())


async def test_the_first_frame_that_waits_for_a_worker_is_one_frame(
    broker: BrokerAddress, mosquitto: MosquittoProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []
    add_frame = AnswerDrawer.add_frame

    def recorded(drawer: AnswerDrawer, frame: Frame) -> None:
        attempts.append(frame.sequence)
        add_frame(drawer, frame)

    monkeypatch.setattr(AnswerDrawer, "add_frame", recorded)
    path = video(tmp_path / "film.mkv", frames=3)
    plan = PublishPlan([str(path)], "cam0", "default", 0.0, 1, 1, bare=False, wait_s=60.0, draw=tmp_path / "drawn")
    published = asyncio.create_task(publish.publish_stream(broker, plan))
    async with asyncio.timeout(patience(30)):
        while len(attempts) < 3:
            await asyncio.sleep(0.05)
        async with MqttBus("edge", mosquitto.url) as bus:
            await bus.wait_connected(patience(5))
            await bus.subscribe(topics.CAMERA_FRAME.filter(camera="cam0"), Answerer(bus, set()))
            assert await published == 0
    assert plan.draw
    assert len(list(plan.draw.iterdir())) == 6


async def test_a_folder_that_cannot_be_made_is_refused_before_a_frame_is_sent(
    broker: BrokerAddress, silent: set[int], tmp_path: Path, capsys: Output
) -> None:
    plan = pictures(tmp_path / "in", "a.png")
    with pytest.raises(InvalidFieldError, match=r"--draw: .* this folder cannot be made"):
        await publish.publish_pictures(broker, replace(plan, draw=tmp_path / "in" / "a.png" / "drawn"))
    assert "frames sent" not in capsys.readouterr().out


async def test_a_second_run_into_the_same_folder_is_refused_before_a_frame_is_sent(
    broker: BrokerAddress, silent: set[int], tmp_path: Path, capsys: Output
) -> None:
    plan = pictures(tmp_path / "in", "a.png")
    assert await publish.publish_pictures(broker, plan) == 0
    assert plan.draw
    before = {path.name: path.read_bytes() for path in plan.draw.iterdir()}
    capsys.readouterr()
    with pytest.raises(InvalidFieldError, match=r"--draw: .* it has files: name a new folder"):
        await publish.publish_pictures(broker, plan)
    with pytest.raises(InvalidFieldError, match=r"--draw: .* it has files: name a new folder"):
        await results.show_results(broker, "faces", "default", 1, Format.TABLE, plan.draw)
    assert "frames sent" not in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in plan.draw.iterdir()} == before


def png() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (400, 300), (90, 120, 60)).save(out, format="PNG")
    return out.getvalue()


async def test_results_draw_the_hard_samples_that_workers_publish(
    broker: BrokerAddress, mosquitto: MosquittoProcess, tmp_path: Path, capsys: Output
) -> None:
    folder = tmp_path / "out" / "hard"
    names = {"ns": "default", "service": "faces"}
    boxed = HardSample(
        id=bytes(16), worker="w", by="cloud", file="../a.jpg", data=png(), boxes=[Box(0, 0, 0.5, 0.5, 0.9, "face")]
    )
    classed = HardSample(id=bytes(16), worker="w", by="cloud", camera="../cam", data=png(), label="cat", score=0.5)
    broken = HardSample(id=bytes(16), worker="w", by="cloud", data=png()[:300])
    result = Result(id="0" * 32, service="faces", by="cloud", worker="w", prediction=ANSWER)
    shown = asyncio.create_task(results.show_results(broker, "faces", "default", 1, Format.TABLE, folder))
    async with MqttBus("edge", mosquitto.url) as bus:
        await bus.wait_connected(patience(5))
        async with asyncio.timeout(patience(20)):
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
    done = halimede("publish", ".", "--camera", "cam0", "--bare", "--draw", "d", "--broker", "localhost:1")
    assert done.returncode == 2
    assert "give --draw or --bare, not both" in done.stderr


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
