"""A frame that ends workers gets to each of them twice at most, and costs no other frame its answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

from halimede.worker.sources.poison_journal import DEATHS, PoisonJournal


def life(folder: Path) -> PoisonJournal:
    suspects = PoisonJournal(folder)
    suspects.open()
    return suspects


async def test_what_a_worker_dies_of_again_is_guilty_and_what_was_beside_it_is_not(tmp_path: Path) -> None:
    first = life(tmp_path)
    for payload in (b"innocent", b"poison", b"another"):
        await first.begin(payload)
    first.end(b"another")  # and then it died

    second = life(tmp_path)
    assert not any(second.guilty(payload) for payload in (b"innocent", b"poison", b"another"))
    await second.begin(b"innocent")
    waiting = asyncio.create_task(second.begin(b"poison"))
    await asyncio.sleep(0)
    assert not waiting.done()  # one suspect at a time
    second.end(b"innocent")
    await waiting  # and it died of that

    third = life(tmp_path)
    assert third.guilty(b"poison")
    assert not third.guilty(b"innocent")
    assert DEATHS == 2


async def test_a_journal_that_is_damaged_or_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "suspects.json").write_bytes(b"\xff{")
    suspects = life(tmp_path)
    await suspects.begin(b"frame")
    suspects.end(b"frame")
    suspects.end(b"never begun")
    nowhere = life(tmp_path / "missing")
    await nowhere.begin(b"frame")
    nowhere.end(b"frame")
    assert not nowhere.guilty(b"frame")
