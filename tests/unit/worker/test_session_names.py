"""Names and client ids of sessions, and a worker whose session key is new, has changed, or whose session is lost."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from halimede import topics
from halimede.bus.transport import Ended
from halimede.worker.session_failover import LOST_SHOWN_S
from halimede.worker.session_names import FILE, SessionJournal, is_keyed, session_client_id, session_name
from halimede.worker.status_reporter import SESSION_LOST
from tests.simulated import eventually
from tests.unit.worker.world import EASY, NS, World

pytestmark = pytest.mark.simulated

KEY, OTHER = "0123456789abcdef" * 2, "fedcba9876543210" * 2
INTAKE = f"intake.{NS}.e0"


def test_without_a_key_the_client_id_is_the_name_of_earlier_versions() -> None:
    name = session_name(INTAKE, ["b", "a"], "u-1")
    assert name == f"{INTAKE}.{hashlib.sha256(b'u-1' + bytes(1) + b'a' + bytes(1) + b'b').hexdigest()[:8]}"
    assert not is_keyed(name)
    assert session_client_id(name, "") == session_client_id(name, KEY) == name


def test_with_a_key_the_client_id_is_a_secret_of_128_bits_that_the_workers_of_a_service_share() -> None:
    name = session_name(INTAKE, ["a"], "u-1", KEY)
    assert is_keyed(name)
    client_id = session_client_id(name, KEY)
    assert client_id == session_client_id(name, KEY)
    assert len(client_id.removeprefix("intake.")) == 32
    assert len({client_id, session_client_id(name, OTHER), session_client_id(f"{name}0", KEY)}) == 3
    changed = [session_name(INTAKE, ["b"], "u-1", KEY), session_name(INTAKE, ["a"], "u-2", KEY)]
    assert len({name, *changed, session_name(INTAKE, ["a"], "u-1", OTHER)}) == 4
    assert session_name(f"intake.{NS}.e1", ["a"], "u-1", KEY).rpartition(".")[2] == name.rpartition(".")[2]


def test_the_journal_is_for_its_user_alone_and_survives_a_restart_but_no_damage(tmp_path: Path) -> None:
    journal = SessionJournal(tmp_path)
    journal.open(first="old")
    assert journal.sessions == {"old": "old"}
    journal.add("new", "secret")
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    again = SessionJournal(tmp_path)
    again.open(first="old")
    assert again.sessions == {"old": "old", "new": "secret"}
    again.remove("old")
    journal.open(first="old")
    assert journal.sessions == {"new": "secret"}
    (tmp_path / FILE).write_text("{")
    journal.open(first="old")
    assert journal.sessions == {"old": "old"}


async def leave_frames(w: World, key: str) -> list[str]:
    """Run a worker that cannot publish its answers: its frames stay in its session."""
    async with w.worker("edge", "e0", grace_s=2.0, session_key=key):
        w.buses[f"worker.{NS}.e0"].cut()
        sent = [await w.send(EASY) for _ in range(3)]
        await asyncio.sleep(1)
    w.infos.clear()  # its last report did not arrive
    return sent


@pytest.mark.parametrize("key", [OTHER, ""], ids=["another key", "no key"])
async def test_a_worker_with_another_key_or_none_answers_the_frames_of_the_former_one(w: World, key: str) -> None:
    sent = await leave_frames(w, KEY)
    (old,) = w.broker.sessions.keys() - {"camera"}
    async with w.worker("edge", "e0", session_key=key):
        sent.append(await w.send(EASY))
        await eventually(lambda: sorted(w.results) == sorted(sent))
        await eventually(lambda: old not in w.broker.sessions)
        sent.append(await w.send(EASY))
        await eventually(lambda: sorted(w.results) == sorted(sent))
    assert set(w.copies.values()) == {1}
    connected = [bus.stats.connects for name, bus in w.buses.items() if bus.session_id == old]
    async with w.worker("edge", "e0", session_key=key):
        await asyncio.sleep(20)
    assert connected == [bus.stats.connects for bus in w.buses.values() if bus.session_id == old], "once"


async def test_an_upgraded_worker_answers_the_frames_of_the_session_that_anybody_can_compute(
    w: World, tmp_path: Path
) -> None:
    sent = await leave_frames(w, "")
    (tmp_path / "e0" / FILE).unlink()  # the former version recorded nothing
    old = session_name(INTAKE, ["cam0"], "u-1")
    assert old in w.broker.sessions
    async with w.worker("edge", "e0", session_key=KEY):
        await eventually(lambda: sorted(w.results) == sorted(sent))
        await eventually(lambda: old not in w.broker.sessions)
        assert not any(old in name for name in w.broker.links)


async def test_no_metric_report_or_dead_letter_of_a_worker_has_the_client_id(w: World) -> None:
    async with w.worker("edge", "e0", session_key=KEY):
        name = session_name(INTAKE, ["cam0"], "u-1", KEY)
        secret = session_client_id(name, KEY)
        assert secret in w.broker.links
        assert w.buses[name].session_id == secret
        await w.camera.publish(topics.CAMERA_FRAME.at(ns=NS, camera="cam0"), b"no frame")
        await eventually(lambda: w.letters)
        told = repr([w.letters, w.infos, w.settings("edge", "e0", session_key=KEY), w.broker._retained])
    assert secret.removeprefix("intake.") not in told
    assert KEY not in told
    assert w.letters[0].client == name


async def test_a_worker_whose_session_is_gone_counts_and_reports_it_for_a_while(w: World) -> None:
    async with w.worker("edge", "e0", session_key=KEY):
        secret = session_client_id(session_name(INTAKE, ["cam0"], "u-1", KEY), KEY)
        assert w.infos["e0"][-1].reason == ""
        # who knows the client id takes the session over and ends it
        w.broker.leave(w.broker.links[secret], Ended("session taken over", taken_over=True), keep=False)
        await eventually(lambda: w.infos["e0"][-1].reason == SESSION_LOST)
        assert "may be lost" in w.infos["e0"][-1].message
        await asyncio.sleep(LOST_SHOWN_S + 5)
        assert w.infos["e0"][-1].reason == ""
        id_ = await w.send(EASY)
        await w.answer(id_)


async def test_a_session_that_is_still_there_or_that_an_heir_may_have_ended_is_not_reported(w: World) -> None:
    async with w.worker("edge", "e0", session_key=KEY):
        name = session_name(INTAKE, ["cam0"], "u-1", KEY)
        own = [w.buses[name], w.buses[f"worker.{NS}.e0"]]
        own[0].cut()
        own[0].heal()
        await asyncio.sleep(5)
        async with w.worker("edge", "e1", session_key=KEY):
            for bus in own:
                bus.cut()
            await eventually(lambda: session_client_id(name, KEY) not in w.broker.sessions)  # the heir ended it
            for bus in own:
                bus.heal()
            await eventually(lambda: all(bus.connected for bus in own), 60)
            await asyncio.sleep(5)
            assert {info.reason for info in w.infos["e0"]} == {""}
