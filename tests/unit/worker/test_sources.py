"""Sources hand every frame over, wait while there is no room, and refuse what they cannot be."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from structlog.testing import capture_logs

from halimede import topics
from halimede.api.jointinference import FrameSourceSpec
from halimede.bus import Bus, Packet
from halimede.codec import MAX_BYTES
from halimede.errors import DecodeError, InvalidFieldError
from halimede.frames import encode_image
from halimede.frames.payloads import ID_BYTES
from halimede.worker.sources import SourceContext, create
from halimede.worker.sources import folder as folder_source
from halimede.worker.sources.folder import SubmittedIds, camera_of, id_of, scan
from tests.simulated import eventually
from tests.small_disk import fill, small_disk
from tests.unit.worker.world import EASY, HARD, World, world

pytestmark = pytest.mark.simulated


def no_bus() -> Bus:
    raise AssertionError("a folder needs no bus")


async def no_letter(packet: Packet, reason: str) -> None:
    assert (packet.topic, reason) == ("file:a.png", "refused")


def context(path: Path | str = "", *, loop: bool = False, prefix: str = "", **spec: object) -> SourceContext:
    given = FrameSourceSpec(path=str(path), **spec)  # type: ignore[arg-type]
    return SourceContext("default", "helmet", given, no_bus, no_letter, prefix, loop)


class Keeper:
    """An intake that keeps what it is offered, while it has room."""

    def __init__(self, room: int = 1000, refuse: bytes = b"") -> None:
        self.room, self.refuse = asyncio.Semaphore(room), refuse
        self.payloads: list[bytes] = []
        self.ids: list[bytes | None] = []
        self.cameras: set[str] = set()
        self.files: list[str] = []
        self.owed: list[Callable[[], None] | None] = []

    async def offer(
        self,
        payload: bytes | memoryview,
        camera: str,
        *,
        id_: bytes | None = None,
        patient: bool = False,
        answered: Callable[[], None] | None = None,
        file: str = "",
        **_: Any,
    ) -> None:
        assert patient
        self.files.append(file)
        self.owed.append(answered)
        await self.room.acquire()
        if self.refuse and bytes(payload) == self.refuse:
            raise DecodeError("refused")
        self.payloads.append(bytes(payload))
        self.ids.append(id_)
        self.cameras.add(camera)


@asynccontextmanager
async def reading(of: SourceContext, **limits: Any) -> AsyncIterator[Keeper]:
    """Let a source run within the block."""
    keeper, stop = Keeper(**limits), asyncio.Event()
    running = asyncio.create_task(create(of).run(keeper, stop))
    yield keeper
    stop.set()
    await running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pictures").mkdir()
    return tmp_path / "pictures"


def put(folder: Path, name: str, content: bytes) -> None:
    """Place a file as well-behaved writers do."""
    (folder / f"{name}.part").write_bytes(content)
    (folder / f"{name}.part").rename(folder / name)


async def test_pictures_come_in_the_order_of_their_names_and_new_ones_as_they_appear(tmp_path: Path) -> None:
    for name in ("b.png", "a.jpg", "c.JPEG", "notes.txt", "._a.jpg", ".b-checkpoint.png"):
        put(tmp_path, name, name.encode())
    (tmp_path / "folder.png").mkdir()
    async with reading(context(tmp_path)) as keeper:
        await eventually(lambda: keeper.payloads == [b"a.jpg", b"b.png", b"c.JPEG"])
        put(tmp_path, "0.png", b"new")
        await eventually(lambda: keeper.payloads[3:] == [b"new"])
        await asyncio.sleep(60)
        assert len(keeper.payloads) == 4


async def test_a_picture_has_the_name_of_its_file_whatever_it_is(tmp_path: Path) -> None:
    names = [b"a.png", b"b\nc.png", b"b\xff.png", b"c<b>.png", b"d" + b"\xe2\x82\xac" * 80 + b".png"]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(b"x")
    async with reading(context(tmp_path)) as keeper:
        await eventually(lambda: len(keeper.files) == len(names))
        assert sorted(keeper.files) == sorted(["a.png", "b\nc.png", "b?.png", "c<b>.png", "d" + "\u20ac" * 80 + ".png"])


async def test_a_picture_that_is_still_written_is_left_alone(tmp_path: Path) -> None:
    async with reading(context(tmp_path)) as keeper:
        with (tmp_path / "a.png").open("wb") as file:
            for _ in range(20):
                file.write(b"x")
                file.flush()
                await asyncio.sleep(0.2)
        await eventually(lambda: len(keeper.payloads) == 1)
        assert keeper.payloads == [b"x" * 20]


async def test_a_picture_keeps_its_id_over_a_restart_and_gets_a_new_one_in_each_turn_of_a_loop(tmp_path: Path) -> None:
    put(tmp_path, "a.png", b"a")
    here, round_and_round = context(tmp_path), context(tmp_path, loop=True)
    async with reading(here) as once, reading(here) as again, reading(round_and_round) as looped:
        await eventually(lambda: len(looped.ids) >= 3)
    assert once.ids == again.ids
    assert looped.ids[0] == once.ids[0]
    assert len(set(looped.ids)) == len(looped.ids)


async def test_of_a_durable_folder_what_was_under_way_comes_again_in_the_next_life(tmp_path: Path) -> None:
    pictures, state = tmp_path / "pictures", tmp_path / "state"
    pictures.mkdir()
    state.mkdir()
    for name in ("a.png", "b.png", "c.png"):
        put(pictures, name, name.encode())
    here = replace(context(pictures), state=state, durable=True)
    killed, stop = Keeper(), asyncio.Event()
    running = asyncio.create_task(create(here).run(killed, stop))
    await eventually(lambda: len(killed.payloads) == 3)
    answered = killed.owed[1]
    answered()
    running.cancel()
    successor = Keeper()
    running = asyncio.create_task(create(here).run(successor, stop))
    await eventually(lambda: successor.payloads == [b"a.png", b"c.png"])
    stop.set()
    await running


async def test_a_refused_picture_is_passed_once_and_the_next_one_comes(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        put(tmp_path, name, name.encode())
    async with reading(context(tmp_path), refuse=b"a.png") as keeper:
        await eventually(lambda: keeper.payloads == [b"b.png"])
        await asyncio.sleep(5)
        assert keeper.payloads == [b"b.png"]


async def test_a_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as file:
        os.truncate(file.fileno(), 10 * MAX_BYTES)
    async with reading(context(tmp_path)) as keeper:
        await eventually(lambda: len(keeper.payloads) == 1)
        assert len(keeper.payloads[0]) == MAX_BYTES + 1


@pytest.mark.parametrize("loop", [False, True])
async def test_a_picture_that_cannot_be_read_now_is_logged_once_and_submitted_when_it_can(
    folder: Path, monkeypatch: pytest.MonkeyPatch, loop: bool
) -> None:
    is_locked, read_file = True, folder_source._read

    def read(path: Path) -> bytes:
        if path.name == "b.png" and is_locked:
            raise PermissionError(13, "Permission denied")
        return read_file(path)

    monkeypatch.setattr(folder_source, "_read", read)
    for name in ("a.png", "b.png"):
        put(folder, name, name.encode())
    with capture_logs() as lines:
        async with reading(context(folder, loop=loop)) as keeper:
            await eventually(lambda: keeper.payloads == [b"a.png"] * (3 if loop else 1))
            await asyncio.sleep(1)
            is_locked = False
            await eventually(lambda: b"b.png" in keeper.payloads)
    assert [line["event"] for line in lines].count("picture unreadable") == 1


async def test_a_folder_that_vanishes_for_a_while_is_looked_for_again(folder: Path) -> None:
    async with reading(context(folder)) as keeper:
        await asyncio.sleep(1)
        folder.rmdir()
        await asyncio.sleep(1)
        folder.mkdir()
        put(folder, "a.png", b"a")
        await eventually(lambda: keeper.payloads == [b"a"])


async def test_the_data_prefix_stands_before_the_path(folder: Path, tmp_path: Path) -> None:
    put(folder, "a.png", b"a")
    async with reading(context("/pictures", prefix=str(tmp_path))) as keeper:
        await eventually(lambda: keeper.cameras == {"pictures"})


@pytest.mark.parametrize(
    ("name", "camera"), [("Cam 0 (left)", "cam-0-left"), ("äöü", "folder"), ("x" * 80, "x" * 63), ("-a-", "a")]
)
def test_a_folders_name_becomes_a_cameras(name: str, camera: str) -> None:
    assert camera_of(Path("/data") / name) == camera


def test_a_stream_of_a_kind_that_nobody_reads_is_refused_without_its_password() -> None:
    with pytest.raises(InvalidFieldError, match="write rtsp://host/path") as caught:
        create(context(url="gopher://me:hidden@camera/1"))
    assert caught.value.field == "spec.edgeWorker.source.url"
    assert "hidden" not in str(caught.value)


async def test_a_folder_of_hard_samples_waits_for_the_cloud_rather_than_being_degraded(folder: Path, w: World) -> None:
    for i in range(200):
        put(folder, f"{i:03}.png", encode_image(np.full((4, 4), HARD, np.uint8), "png"))
    source = FrameSourceSpec(path=str(folder))
    async with w.worker("cloud", "c0"), w.worker("edge", "e0", source=source):
        await eventually(lambda: len(w.results) == 200, 60)
        assert {(r.by, r.degraded) for r in w.results.values()} == {("cloud", False)}
        assert set(w.results) == {id_of("helmet/u-1/node-e0", picture, 0).hex() for picture in scan(folder)}
        put(folder, "bad.png", b"\x89PNG\r\n\x1a\n broken")
        put(folder, "good.png", encode_image(np.full((4, 4), EASY, np.uint8), "png"))
        await eventually(lambda: len(w.results) == 201)
        await eventually(lambda: w.info("e0").rejected == 1)
        assert [letter.topic for letter in w.letters] == ["file:bad.png"]


async def test_a_worker_that_is_started_again_goes_on_in_its_folder_where_it_was(folder: Path, tmp_path: Path) -> None:
    for i in range(10):
        put(folder, f"{i}.png", encode_image(np.full((4, 4), EASY, np.uint8), "png"))
    source = FrameSourceSpec(path=str(folder))
    async with world(tmp_path) as w:
        async with w.worker("edge", "e0", source=source):
            await eventually(lambda: len(w.results) == 10)
        put(folder, "new.png", encode_image(np.full((4, 4), EASY, np.uint8), "png"))
        async with w.worker("edge", "e0", source=source):
            await eventually(lambda: len(w.results) == 11)
        assert set(w.copies.values()) == {1}
        assert w.info("e0").inference_number == 11
        async with w.worker("edge", "e0", source=source, uid="u-2"):
            await eventually(lambda: len(w.results) == 22)


def test_a_memory_that_a_crash_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    memory = SubmittedIds(tmp_path / "done")
    assert memory.read() == set()
    memory.add(b"a" * 16)
    with (tmp_path / "done").open("ab") as file:
        file.write(b"half")
    assert memory.read() == {b"a" * 16}
    memory.add(b"b" * 16)
    assert memory.read() == {b"a" * 16, b"b" * 16}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
async def test_a_full_disk_costs_a_folder_source_its_memory_for_a_while_and_no_picture(tmp_path: Path) -> None:
    ids = [bytes([i]) * ID_BYTES for i in range(10)]
    with small_disk(tmp_path / "disk") as disk:
        memory = SubmittedIds(disk / "done")
        memory.add(ids[0])
        fill(disk / "filling")
        with (disk / "done").open("ab", buffering=0) as file:  # the rest of its last block
            file.write(ids[1] * (4095 // ID_BYTES))
            known = file.tell() // ID_BYTES
        for id_ in ids[2:9]:
            memory.add(id_)
        assert (disk / "done").stat().st_size == known * ID_BYTES, "no part of an id is left behind"
        (disk / "filling").unlink()
        memory.add(ids[9])
        assert SubmittedIds(disk / "done").read() == set(ids)


class Measured:
    """Answers with the height and width of a picture."""

    def predict(self, data: Any) -> dict[str, Any]:
        return {"label": str(np.asarray(data).shape[-2:]), "probabilities": [0.9, 0.1]}


def marked_png() -> bytes:
    """Return a picture that is stored 8 wide and 4 high, and upright 4 wide and 8 high."""
    out, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.full((4, 8), EASY, np.uint8)).save(out, "PNG", exif=exif)
    return out.getvalue()


@pytest.mark.parametrize(
    ("source", "shape"),
    [({"cameras": ["cam0"]}, "(4, 8)"), ({"cameras": ["cam0"], "orientation": "exif"}, "(8, 4)"), ({}, "(8, 4)")],
    ids=["a camera's frames stay", "unless the service says so", "pictures of a folder are turned"],
)
async def test_pictures_of_a_folder_are_turned_upright_and_of_a_camera_where_the_service_says_so(
    w: World, folder: Path, source: dict[str, Any], shape: str
) -> None:
    put(folder, "a.png", marked_png())
    spec = FrameSourceSpec(**(source or {"path": str(folder)}))
    async with w.worker("edge", "e0", Measured, source=spec):
        await w.camera.publish(topics.CAMERA_FRAME.at(ns="default", camera="cam0"), marked_png())
        await eventually(lambda: len(w.results) == 1)
        assert [result.label for result in w.results.values()] == [shape]
