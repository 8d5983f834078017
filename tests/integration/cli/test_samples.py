"""publish is a camera and results is a reader: real frames and results on a real broker."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from halimede import codec, topics
from halimede.bus.mqtt import MqttBus
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.commands import apply, get, publish, results
from halimede.cli.options import Format
from halimede.cli.waiting import NotReadyError
from halimede.contract.examples import EXAMPLES, PNG
from halimede.errors import HalimedeError, TooLargeError
from halimede.messages import CameraStatus, Result
from halimede.topic import Topic
from halimede.tracing import read
from tests.cameras import video
from tests.collector import collector
from tests.inbox import Inbox
from tests.integration.cli.conftest import DIGITS, Output, Reader, plan
from tests.typed import halimede
from tests.waiting import eventually, patience


def folder(path: Path, count: int) -> str:
    for i in range(count):
        (path / f"{i:03}.png").write_bytes(PNG)
    return str(path)


async def test_pictures_leave_in_order_as_frames_with_ids_of_their_own(
    broker: BrokerAddress, reader: Reader, tmp_path: Path, capsys: Output
) -> None:
    assert await publish.publish_pictures(broker, plan(folder(tmp_path, 30), rounds=2)) == 0
    frames = await reader.frames(60)
    assert [frame.sequence for frame in frames] == list(range(60))
    assert len({bytes(frame.id) for frame in frames}) == 60
    assert {(f.camera, f.encoding, bytes(f.data)) for f in frames} == {("cam0", "png", PNG)}
    assert "60 frames sent to default/sedna/frames/cam0" in capsys.readouterr().out


def classes(path: Path) -> tuple[str, list[int]]:
    """Write pictures of different widths into the class folders a and b; return the folder and their widths."""
    for i in range(12):
        file = path / "ab"[i // 6] / f"{i:02}.png"
        file.parent.mkdir(exist_ok=True)
        Image.new("L", (i + 1, 1)).save(file)
    return str(path), list(range(1, 13))


async def test_pictures_sorted_by_class_are_warned_of_and_can_be_shuffled(
    broker: BrokerAddress, reader: Reader, tmp_path: Path, capsys: Output
) -> None:
    folder, widths = classes(tmp_path)
    sent: list[list[int]] = []
    for options in ((), ("--shuffle", "--seed", "1"), ("--shuffle", "--seed", "1"), ("--shuffle", "--seed", "2")):
        words = ("publish", folder, "--camera", "cam0", "--fps", "0", "--repeat", "2", *options)
        done = await asyncio.to_thread(halimede, *words, "--broker", f"127.0.0.1:{broker.settings.port}")
        assert done.returncode == 0, done.stderr
        frames = await reader.frames(24 * (len(sent) + 1))
        order = [Image.open(io.BytesIO(frame.data)).width for frame in frames[-24:]]
        assert sorted(order[:12]) == sorted(order[12:]) == widths
        assert ("sorted by folder (a, b, ...)" in done.stderr) == (not options)
        sent.append(order)
    plain, first, same, other = sent
    assert plain == widths * 2
    assert first == same != other
    assert first[:12] != first[12:]


def test_a_shuffled_order_needs_pictures() -> None:
    for words, said in ((("--seed", "1"), "give --shuffle with --seed"), (("--shuffle", "--seed", "-1"), "-1")):
        done = halimede("publish", ".", "--camera", "cam0", *words)
        assert done.returncode == 2
        assert said in done.stderr
    assert "a video has an order" in halimede("publish", "a.mp4", "--camera", "cam0", "--shuffle").stderr


async def test_frames_are_paced(broker: BrokerAddress, reader: Reader, tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    await publish.publish_pictures(broker, plan(folder(tmp_path, 6), fps=20))
    assert 0.25 <= loop.time() - started < 5  # 5 s were one a second


async def test_frames_that_nobody_takes_are_told(
    broker: BrokerAddress, bus: MqttBus, tmp_path: Path, capsys: Output
) -> None:
    assert await publish.publish_pictures(broker, plan(folder(tmp_path, 3), camera="cam7")) == 1
    assert "3 of them had no subscriber: no edge worker reads camera cam7" in capsys.readouterr().err


def film(path: Path, count: int) -> str:
    return str(video(path / "a.avi", count, codec="mjpeg"))


EACH_SOURCE = pytest.mark.parametrize(
    ("send", "make"),
    [(publish.publish_pictures, folder), (publish.publish_stream, film)],
    ids=["pictures", "video"],
)


@EACH_SOURCE
async def test_publish_waits_for_a_reader_and_then_sends_each_frame_once(
    broker: BrokerAddress, bus: MqttBus, tmp_path: Path, send: Any, make: Any
) -> None:
    waiting = asyncio.create_task(send(broker, plan(make(tmp_path, 5), wait_s=30.0)))
    await asyncio.sleep(0.8)
    assert not waiting.done()
    late = Reader()
    await bus.subscribe(topics.CAMERA_FRAME.filter(camera="cam0"), late)
    assert sorted(frame.sequence for frame in await late.frames(5)) == list(range(5))
    assert await waiting == 0
    assert len(late.payloads) == 5


@EACH_SOURCE
async def test_publish_that_waited_in_vain_ends_with_what_is_missing(
    broker: BrokerAddress, client: Client, tmp_path: Path, send: Any, make: Any
) -> None:
    order = plan(make(tmp_path, 5), wait_s=0.6)
    with pytest.raises(NotReadyError, match="no service in namespace default has it in edgeWorker"):
        await send(broker, order)
    await apply.apply_manifests(broker, [DIGITS], "")
    services = "jointinferenceservices"
    await client.wait_until(lambda body: "NoNode" in str(body), services, "digits", timeout_s=patience(10))
    with pytest.raises(NotReadyError, match=r"camera cam0 after 0\.6 s: ji/digits: Pending: NoNode: .* What to do: "):
        await send(broker, order)


async def test_an_endless_loop_says_how_many_it_sent_when_it_is_ended(
    broker: BrokerAddress, reader: Reader, tmp_path: Path, capsys: Output
) -> None:
    sending = asyncio.create_task(publish.publish_pictures(broker, plan(folder(tmp_path, 2), rounds=0, fps=50)))
    await reader.frames(5)
    sending.cancel()
    await asyncio.wait([sending])
    assert "frames sent to" in capsys.readouterr().out


async def test_a_picture_over_the_limit_is_refused_before_the_first_is_sent(
    broker: BrokerAddress, reader: Reader, tmp_path: Path
) -> None:
    folder(tmp_path, 2)
    (tmp_path / "z.png").write_bytes(PNG + bytes(17 << 20))
    with pytest.raises(TooLargeError, match=r"z\.png: \d+ bytes are more than"):
        await publish.publish_pictures(broker, plan(str(tmp_path)))
    assert reader.payloads == []


async def test_what_is_no_picture_is_refused_by_name_and_left_out_of_folders(
    broker: BrokerAddress, reader: Reader, tmp_path: Path, capsys: Output
) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    (pictures / "notes.png").write_text("no picture")
    (pictures / "empty.png").touch()
    for name, error in (
        ("notes.png", r"notes\.png: this is neither JPEG nor PNG"),
        ("empty.png", r"empty\.png: the file is empty"),
        ("", "there is no JPEG or PNG"),
        ("absent", "no such file"),
    ):
        with pytest.raises(HalimedeError, match=error):
            await publish.publish_pictures(broker, plan(str(pictures / name)))
    await publish.publish_pictures(broker, plan(folder(pictures, 1)))
    assert "skipped 2 files that are neither JPEG nor PNG" in capsys.readouterr().err
    assert len(await reader.frames(1)) == 1


@pytest.mark.parametrize("camera", ["Cam0", "a/b", "+", "#", "", "a" * 64])
async def test_a_hostile_camera_name_is_refused(broker: BrokerAddress, tmp_path: Path, camera: str) -> None:
    with pytest.raises(HalimedeError, match="--camera"):
        await publish.publish_pictures(broker, plan(folder(tmp_path, 1), camera=camera))


async def test_cameras_are_listed_with_their_state_and_who_reads_them(
    broker: BrokerAddress, client: Client, bus: MqttBus, capsys: Output
) -> None:
    await apply.apply_manifests(broker, [DIGITS], "")
    door = CameraStatus(camera="door", state="running", fps=25.0, frames=100, width=640, height=480, source="rtsp://d")
    await bus.publish(topics.CAMERA_STATUS.at(ns="default", camera="door"), door)
    yard = CameraStatus(camera="yard", state="failed", reason="NotFound", error="no such device", node="edge0")
    await bus.publish(topics.NODE_CAMERA_STATUS.at(node="edge0", ns="other", camera="yard"), yard)
    capsys.readouterr()
    await get.show_cameras(broker, "", "default", Format.TABLE)
    header, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header[0] == "NAME"
    assert [row[0] for row in rows] == ["cam0", "cam1", "door"]
    assert rows[0] == ["cam0", "no", "status", "-", "-", "-", "-", "digits"]
    assert rows[2][1:7] == ["running", "25", "100", "640", "x", "480"]
    await asyncio.to_thread(get.get, "cameras/door", output=Format.NAME, broker=broker.settings.where)
    assert capsys.readouterr().out.split() == ["camera/door"]
    await get.show_cameras(broker, "yard", "", Format.WIDE)
    _, row = capsys.readouterr().out.splitlines()
    assert row.split()[:3] == ["other", "yard", "failed"]
    assert "edge0" in row
    assert row.endswith("NotFound: no such device")
    await get.show_cameras(broker, "", "default", Format.JSON)
    by_name = {camera["camera"]: camera for camera in json.loads(capsys.readouterr().out)}
    assert by_name["cam0"] == {"namespace": "default", "camera": "cam0", "state": "no status", "services": ["digits"]}
    assert (by_name["door"]["frames"], by_name["door"]["services"]) == (100, [])


def result(id_: str, **changes: object) -> Result:
    return msgspec.structs.replace(EXAMPLES[topics.RESULT.id], id=id_, **changes)


async def send_until(
    bus: MqttBus, found: asyncio.Task[None], ids: list[str], to: Topic[Result] = topics.RESULT
) -> None:
    """Send results, again and again, as a reader that has just come sees only what comes now."""
    async with asyncio.timeout(patience(10)):
        while not found.done():
            for id_ in ids:
                await bus.publish(to.at(ns="default", service="digits"), result(id_))
            await asyncio.sleep(0.05)
    found.result()


async def test_results_are_shown_once_each_however_often_they_come(
    broker: BrokerAddress, gm: None, bus: MqttBus, capsys: Output
) -> None:
    ids = [f"{i:032x}" for i in range(3)]
    found = asyncio.create_task(results.show_results(broker, "digits", "default", 3, Format.JSON))
    await send_until(bus, found, ids)
    said = capsys.readouterr()
    assert sorted(json.loads(line)["id"] for line in said.out.splitlines()) == ids
    assert "there is no service digits in namespace default yet" in said.err


async def test_results_end_when_their_service_is_deleted(
    broker: BrokerAddress, client: Client, digits_running: None, bus: MqttBus, capsys: Output
) -> None:
    following = asyncio.create_task(results.show_results(broker, "digits", "default", 0, Format.JSON))

    async def is_shown() -> bool:
        await bus.publish(topics.RESULT.at(ns="default", service="digits"), result("0" * 32))
        return bool(capsys.readouterr().out)

    await eventually(is_shown, 30, 0.05)
    await bus.clear(topics.STATUS.at(ns="default", plural="models", name="digits"))  # a Model of the same name
    await asyncio.sleep(0.2)
    assert not following.done()
    await client.delete("jointinferenceservices", "digits")
    async with asyncio.timeout(patience(30)):
        await following
    assert "service digits in namespace default was deleted: no more results" in capsys.readouterr().err


async def test_results_of_several_edges_are_shown_as_well(
    broker: BrokerAddress, gm: None, bus: MqttBus, capsys: Output
) -> None:
    found = asyncio.create_task(results.show_results(broker, "digits", "default", 2, Format.JSON))
    await send_until(bus, found, ["0" * 32, "1" * 32], topics.MULTI_RESULT)
    assert len(capsys.readouterr().out.splitlines()) == 2


async def test_results_are_a_table_for_people_even_without_a_manager(
    broker: BrokerAddress, bus: MqttBus, capsys: Output
) -> None:
    found = asyncio.create_task(results.show_results(broker, "digits", "default", 1, Format.TABLE))
    await send_until(bus, found, ["0" * 32])
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["CAMERA", "SEQ", "LABEL", "SCORE", "BY", "MS", "FILE", "NOTE"]
    assert row.split()[:7] == ["cam0", "41", "5", "0.970", "cloud", "6.10", "-"]
    assert row.endswith("hard, the edge answered 3")


def test_a_result_shows_why_it_is_degraded_and_no_escape_sequence() -> None:
    degraded = result("0" * 32, by="edge", degraded=True, reason="no-cloud", label="\x1b[31mred")
    text = results.line(degraded).plain
    assert "degraded: no-cloud" in text
    assert "\x1b" not in text


def test_a_hard_result_that_a_full_budget_held_back_names_the_budget() -> None:
    held_back = result("0" * 32, by="edge", hard=True, reason="budget", label="cat")
    assert results.line(held_back).plain.endswith("hard, kept by the budget")


def test_remembered_ids_are_bounded() -> None:
    once = results.Once(size=2)
    assert [once.is_new(i) for i in ("a", "a", "b", "c", "a")] == [True, False, True, True, True]


async def test_a_published_frame_begins_its_trace_and_a_bare_one_has_none(
    broker: BrokerAddress, bus: MqttBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox: Inbox[bytes] = Inbox()
    await bus.subscribe(topics.CAMERA_FRAME.filter(camera="cam0"), inbox)
    async with collector() as there:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", there.url)
        await publish.publish_pictures(broker, plan(folder(tmp_path, 1)))
        await publish.publish_pictures(broker, plan(folder(tmp_path, 1), bare=True, qos=0))
        await eventually(lambda: len(inbox.deliveries) == len(there.spans) == 2, 30)
    ours, bare = inbox.deliveries
    context = read(ours.packet.properties)
    assert context is not None
    assert context.trace == int.from_bytes(codec.decode(topics.REQUEST, ours.body).id)
    root, step = sorted(there.spans, key=lambda span: span.name)
    assert (root.name, root.trace, root.id) == ("camera frame", f"{context.trace:032x}", f"{context.span:016x}")
    assert (step.name, step.parent, root.parent) == ("publish", root.id, "")
    assert root.resource["service.name"] == "camera"
    assert (bare.body, bare.packet.properties) == (PNG, ())


async def test_a_video_is_published_frame_by_frame(
    broker: BrokerAddress, reader: Reader, tmp_path: Path, capsys: Output
) -> None:
    path = film(tmp_path, 20)
    assert publish.is_stream([path])
    await publish.publish_stream(broker, plan(path, rounds=2))
    frames = await reader.frames(40)
    assert [frame.sequence for frame in frames] == list(range(40))
    assert all(frame.captured_ns for frame in frames)
    assert f"40 frames of {path} sent as camera cam0" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["/nonexistent.mp4"], "SOURCE: '/nonexistent.mp4' is not accepted: there is no such file"),
        (["rtsp://me:hidden@cam/x"], "others can read command lines"),
        (["a.mp4", "b.mp4"], "give only one video, stream or device"),
        (["@/nonexistent"], "make it a small text file"),
    ],
)
async def test_a_video_that_cannot_be_published(broker: BrokerAddress, paths: list[str], message: str) -> None:
    with pytest.raises(HalimedeError, match=message) as caught:
        await publish.publish_stream(broker, plan(*paths, fps=None))
    assert "hidden" not in str(caught.value)
