"""Frames that come twice: each copy is acknowledged or comes again; what ends workers gets to each twice at most."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from halimede.errors import DecodeError
from halimede.frames import encode_image, pack
from halimede.frames.payloads import new_id
from halimede.messages import Frame
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.worker.sources.poison_journal import GUILTY_DEATHS, PoisonJournal
from tests.unit.frames.clouds import Brightness
from tests.unit.pipeline.answering import edge_worker
from tests.waiting import patience


def life(folder: Path) -> PoisonJournal:
    suspects = PoisonJournal(folder)
    suspects.open()
    return suspects


async def test_copies_of_one_picture_count_one_death_and_hold_nobody_up(tmp_path: Path) -> None:
    picture = b"a picture that a camera sends again and again"
    first = life(tmp_path)
    for _ in range(3):
        await first.begin(picture)

    second = life(tmp_path)
    assert not second.is_guilty(picture)
    async with asyncio.timeout(patience(5)):
        copies = [asyncio.create_task(second.begin(picture)) for _ in range(2)]
        await asyncio.sleep(0)
        for copy in copies:
            await copy
            second.end(picture)
    assert not life(tmp_path).is_guilty(picture)


async def test_what_was_in_hand_when_a_worker_stopped_in_order_is_no_suspect(tmp_path: Path) -> None:
    for _ in range(3):
        suspects = life(tmp_path)
        await suspects.begin(b"frame")
        suspects.close()
        suspects.end(b"frame")
    assert not life(tmp_path).is_guilty(b"frame")


async def test_a_copy_of_a_frame_that_is_refused_is_refused_as_well_and_not_forgotten() -> None:
    answered: list[str] = []
    async with ModelThread() as thread:
        worker = edge_worker(ModelSlot(LoadedModel(Brightness(), thread)))
        noise = np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)
        picture = bytearray(encode_image(noise, "png"))
        picture[3000:3100] = bytes(100)  # it looks right: only the decoder finds out, in its thread
        broken = pack(Frame(id=new_id(), encoding="png", data=memoryview(picture)))

        async def offer(camera: str) -> None:
            await worker.intake.offer(broken, camera, answered=lambda: answered.append(camera))

        offers = [offer(camera) for camera in ("cam0", "cam1")]
        errors = await asyncio.gather(*offers, return_exceptions=True)
        assert [type(error) for error in errors] == [DecodeError, DecodeError]
        assert not answered


async def test_what_a_worker_dies_of_again_is_guilty_and_what_was_beside_it_is_not(tmp_path: Path) -> None:
    first = life(tmp_path)
    for payload in (b"innocent", b"poison", b"another"):
        await first.begin(payload)
    first.end(b"another")  # and then it died

    second = life(tmp_path)
    assert not any(second.is_guilty(payload) for payload in (b"innocent", b"poison", b"another"))
    await second.begin(b"innocent")
    waiting = asyncio.create_task(second.begin(b"poison"))
    await asyncio.sleep(0)
    assert not waiting.done()  # one suspect at a time
    second.end(b"innocent")
    await waiting  # and it died of that

    third = life(tmp_path)
    assert third.is_guilty(b"poison")
    assert not third.is_guilty(b"innocent")
    assert GUILTY_DEATHS == 2


async def test_a_journal_that_is_damaged_or_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "suspects.json").write_bytes(b"\xff{")
    suspects = life(tmp_path)
    await suspects.begin(b"frame")
    suspects.end(b"frame")
    suspects.end(b"never begun")
    nowhere = life(tmp_path / "missing")
    await nowhere.begin(b"frame")
    nowhere.end(b"frame")
    assert not nowhere.is_guilty(b"frame")
