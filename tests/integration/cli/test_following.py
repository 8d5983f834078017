"""Events and logs that are followed through restarts and moves; recordings that are made and played."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from halimede import topics
from halimede.bus.mqtt import MqttBus
from halimede.cli.app import app
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.commands import apply, events, logs, publish, record, replay
from halimede.cli.commands.record import RecordLimits
from halimede.cli.commands.replay import ReplayPlan
from halimede.cli.follow import follow
from halimede.cli.options import Format
from halimede.contract.examples import EXAMPLES, PNG
from services.broker import MosquittoProcess
from tests.integration.cli.conftest import DIGITS, Node, Output, Printed, Reader, background, connected, manager, plan
from tests.simulated import eventually
from tests.waiting import patience


async def test_followed_events_have_no_gap_and_no_repeat_through_restarts(
    mosquitto: MosquittoProcess,
    broker: BrokerAddress,
    tmp_path: Path,
    printed: Printed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "POLL_S", 0.2)
    monkeypatch.setattr(events, "PAGE", 3)  # several pages

    def messages() -> list[str]:
        return [json.loads(line)["message"] for line in printed.out.splitlines()]

    async with contextlib.AsyncExitStack() as stack:
        async with manager(mosquitto.url, tmp_path / "gm.db") as cluster:
            await cluster.record("Warning", "R", "node/a", "0")
            await cluster.record("Normal", "R", "node/a", "not of this type")
            work = events.show_events(broker, events.EventSelection(type="Warning"), Format.JSON, follow=True)
            await stack.enter_async_context(background(work))
            await eventually(lambda: messages() == ["0"], 30)
            for i in range(1, 9):
                await cluster.record("Warning", "R", "node/a", str(i))
            await eventually(lambda: len(messages()) == 9, 30)
        await mosquitto.restart()
        async with manager(mosquitto.url, tmp_path / "gm.db") as cluster:
            await cluster.record("Warning", "R", "node/a", "9")
            await eventually(lambda: len(messages()) == 10, 30)
            await asyncio.sleep(0.5)
            assert messages() == [str(i) for i in range(10)]
        async with manager(mosquitto.url, tmp_path / "another.db") as cluster:  # its sequence begins anew
            await cluster.record("Warning", "R", "node/a", "new")
            await eventually(lambda: messages()[-1] == "new", 30)


async def test_occupancy_events_are_followed_each_once_and_labels_stay_text(
    mosquitto: MosquittoProcess, broker: BrokerAddress, capsys: Output
) -> None:
    entered = EXAMPLES[topics.OCCUPANCY.id]
    hostile = msgspec.structs.replace(entered, id="0" * 32, type="left", label="<b>\x1b[31m\N{SMILING FACE WITH HORNS}")
    async with connected("edge", mosquitto) as edge:
        address = topics.OCCUPANCY.at(ns="default", service="digits", camera="cam0")
        for form in (Format.TABLE, Format.JSON):
            await edge.publish(address, entered)
            async with background(events.follow_occupancy(broker, "digits", "default", form)):
                printed = Printed(capsys)
                await eventually(lambda printed=printed: printed.out.count("\n") == 1)
                await asyncio.sleep(0.2)
                for event in (entered, hostile):
                    await edge.publish(address, event)
                await eventually(lambda printed=printed: printed.out.count("\n") == 2)
                await asyncio.sleep(0.2)
            lines = printed.out.splitlines()
            assert len(lines) == 2
            assert "\x1b" not in lines[1]
            if form is Format.TABLE:
                assert lines[0].endswith("entered   person in cam0/door: 1, before 0")
            else:
                assert json.loads(lines[0])["zone"] == "door"


async def test_who_follows_the_occupancy_of_a_service_that_has_none_is_warned(
    broker: BrokerAddress, gm: None, printed: Printed
) -> None:
    async with background(events.follow_occupancy(broker, "digits", "default", Format.TABLE)):
        waiting = "no service digits in namespace default yet: waiting for its occupancy"
        await eventually(lambda: waiting in printed.err)
    await apply.apply_manifests(broker, [DIGITS], "")
    async with background(events.follow_occupancy(broker, "digits", "default", Format.TABLE)):
        await eventually(lambda: "digits has no spec.edgeWorker.occupancy yet" in printed.err)


async def test_ctrl_c_ends_following_at_whatever_moment_of_the_start_it_comes(broker: BrokerAddress) -> None:
    async def show() -> None:
        async for _ in follow(broker, topics.OCCUPANCY.filter(ns="default", service="yard")):
            pass

    drawn = random.Random(1)
    for _ in range(200):
        task = asyncio.create_task(show())
        for _ in range(drawn.randrange(1, 40)):
            await asyncio.sleep(drawn.choice((0, 0, 0.0005)))
        task.cancel()
        ended, _ = await asyncio.wait({task}, timeout=patience(5))
        assert ended, f"still runs {task.get_stack()}"


def test_a_number_of_occupancy_events_is_refused() -> None:
    done = CliRunner().invoke(app, ["events", "--occupancy", "yard", "--limit", "5"], env={"COLUMNS": "400"})
    assert done.exit_code == 2
    assert "without --about, --since, --type and --limit" in done.output


async def test_events_are_chosen_by_type_and_time(
    mosquitto: MosquittoProcess, broker: BrokerAddress, tmp_path: Path, capsys: Output
) -> None:
    async with manager(mosquitto.url, tmp_path / "gm.db") as cluster:
        await cluster.record("Warning", "R", "node/a", "old")
        await asyncio.sleep(0.05)
        start = datetime.now(UTC)
        await asyncio.sleep(0.05)
        for kind, text in (("Warning", "one"), ("Normal", "two"), ("Warning", "three")):
            await cluster.record(kind, "R", "node/a", text)  # type: ignore[arg-type]
        for choice, texts in (
            (events.EventSelection(type="Warning", since=start, limit=1), ["three"]),
            (events.EventSelection(since=start), ["one", "two", "three"]),
        ):
            await events.show_events(broker, choice, Format.JSON, follow=False)
            assert [e["message"] for e in json.loads(capsys.readouterr().out)] == texts


async def test_a_followed_service_is_followed_to_the_node_to_which_it_moves(  # noqa: PLR0917 - fixtures
    mosquitto: MosquittoProcess,
    broker: BrokerAddress,
    client: Client,
    nodes: Any,
    digits_running: None,
    printed: Printed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "SEARCH_S", 0.3)
    monkeypatch.setattr(logs, "POLL_S", 0.1)
    nodes["edge0"].logs["digits-edge-edge0"] = "here\n"
    nodes["cloud0"].logs["digits-cloud-cloud0"] = ""
    async with background(logs.show_logs(broker, logs.LogSelection("digits", "default"), follow=True)):
        await eventually(lambda: "digits-edge-edge0  here\n" in printed.out, 30)
        async with connected("lc-edge1", mosquitto) as bus:
            moved = Node(bus, "edge1")
            moved.logs["digits-edge-edge1"] = "from its first line on\n"
            await moved.start()
            await client.drain("edge0")
            await eventually(lambda: "digits-edge-edge1  from its first line on\n" in printed.out, 30)
            nodes["edge0"].logs["digits-edge-edge0"] = "n\n"  # rotated: shorter than what was read
            await eventually(lambda: "digits-edge-edge0  n\n" in printed.out, 30)
    assert printed.out.count("digits-edge-edge0  here\n") == 1


async def test_what_is_recorded_can_be_played(
    broker: BrokerAddress, reader: Reader, tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    folder = str(tmp_path / "rec")
    recording = asyncio.create_task(
        record.record_frames(broker, folder, "cam0", "default", RecordLimits(0.0, 5, 10**6))
    )
    await eventually((tmp_path / "rec" / "index.jsonl").exists, 30)
    await asyncio.sleep(0.5)
    await publish.publish_pictures(broker, plan(str(tmp_path / "a.png"), fps=20, rounds=5))
    async with asyncio.timeout(patience(30)):
        await recording
    assert "5 frames" in capsys.readouterr().out
    first = await reader.frames(5)
    assert await replay.replay_frames(broker, ReplayPlan(folder, "cam0", "default", fps=100.0)) == 0
    frames = await reader.frames(10)
    assert [frame.sequence for frame in frames[5:]] == list(range(5))
    assert {bytes(frame.data) for frame in frames} == {PNG}
    assert not {bytes(f.id) for f in first} & {bytes(f.id) for f in frames[5:]}
    assert "5 frames sent to default/sedna/frames/cam0" in capsys.readouterr().out


async def test_a_recording_ends_before_it_is_too_large_and_says_when_nothing_came(
    broker: BrokerAddress, reader: Reader, tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    limits = RecordLimits(0.0, 100, 2000)
    endless = publish.publish_pictures(broker, plan(str(tmp_path / "a.png"), fps=50, rounds=0))
    async with background(endless), asyncio.timeout(patience(30)):
        await record.record_frames(broker, str(tmp_path / "rec"), "cam0", "default", limits)
    assert sum(p.stat().st_size for p in (tmp_path / "rec").glob("*.png")) <= 2000
    assert "would exceed --max-bytes 2000" in capsys.readouterr().out
    await record.record_frames(broker, str(tmp_path / "none"), "cam9", "default", RecordLimits(0.3, 100, 2000))
    assert "no frame arrived: camera cam9" in capsys.readouterr().err


async def test_replay_waits_for_somebody_and_tells_what_reached_nobody(
    broker: BrokerAddress, bus: MqttBus, tmp_path: Path, capsys: Output
) -> None:
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(PNG)
    recorded = ReplayPlan(str(tmp_path), "cam0", "default", fps=100.0)
    assert await replay.replay_frames(broker, recorded) == 1
    assert "3 of them had no subscriber" in capsys.readouterr().err
    listening = Reader()
    waiting = asyncio.create_task(replay.replay_frames(broker, replace(recorded, wait_s=60.0)))
    await asyncio.sleep(1.0)
    assert not waiting.done()
    await bus.subscribe(topics.CAMERA_FRAME.filter(camera="cam0"), listening)
    assert [frame.sequence for frame in await listening.frames(3)] == [0, 1, 2]
    assert await waiting == 0
    assert "reached nobody" not in capsys.readouterr().err
