"""``halimede trace`` over a real broker and real workers: what a user sees, and what is said when there is nothing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from halimede.bus.mqtt import MqttSettings
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.commands.trace import LONGEST_S, QUIET_S, SETTLE_S, FrameQuery, trace_frame
from halimede.cli.options import Format
from halimede.errors import HalimedeError, InvalidFieldError
from services.broker import MosquittoProcess
from tests.digits import Digits
from tests.integration.workers import Site
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.usefixtures("quiet")]

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers reply as late as on a busy machine."""
    for name, seconds in (("QUIET_S", QUIET_S), ("LONGEST_S", LONGEST_S), ("SETTLE_S", SETTLE_S)):
        monkeypatch.setattr(f"halimede.cli.commands.trace.{name}", patience(seconds))


@pytest.fixture
def broker(mosquitto: MosquittoProcess) -> BrokerAddress:
    return BrokerAddress(MqttSettings("127.0.0.1", mosquitto.port), "the test")


async def test_a_frame_is_shown_with_every_step_at_its_place(
    s: Site, broker: BrokerAddress, digits: Digits, capsys: Output
) -> None:
    await s.run_both(digits)
    sending = asyncio.create_task(s.send(digits.pictures[:400], fps=50))
    coming = FrameQuery(service=s.service, namespace="default", hard=True, next_s=patience(30))
    await trace_frame(broker, coming, Format.TABLE)
    shown = capsys.readouterr().out
    for step in ("receive", "decode", "wait", "model", "mine", "offload", "request", "queue", "compute", "reply"):
        assert step in shown
    assert "the cloud's steps are placed in the middle of the request" in shown
    assert f"to={s.cloud}" in shown
    sending.cancel()
    answered = next(r.id for r in s.results.values() if r.by == "cloud")
    await trace_frame(broker, FrameQuery(answered), Format.JSON)
    found = json.loads(capsys.readouterr().out)
    assert found["id"] == answered
    (timeline,) = found["timelines"]
    steps = {(row["role"], row["step"]): row for row in timeline["steps"]}
    request, compute = steps["edge", "offload.request"], steps["cloud", "compute"]
    assert request["startMs"] <= compute["startMs"]
    assert compute["startMs"] + compute["durationMs"] <= request["startMs"] + request["durationMs"]
    assert not [remark for remark in timeline["remarks"] if "the clock of" in remark]  # one machine, one clock

    with pytest.raises(HalimedeError, match=r"no worker has frame 0{32}: each worker keeps its last"):
        await trace_frame(broker, FrameQuery("0" * 32), Format.TABLE)


async def test_what_cannot_be_shown_is_said(unique: str, broker: BrokerAddress) -> None:
    with pytest.raises(InvalidFieldError, match="write 32 hexadecimal digits"):
        await trace_frame(broker, FrameQuery("xyz"), Format.TABLE)
    hard = f"hard frame of service {unique} in namespace default"
    with pytest.raises(HalimedeError, match=f"no {hard} was answered within 0.2 s"):
        await trace_frame(broker, FrameQuery(service=unique, namespace="default", hard=True, next_s=0.2), Format.TABLE)
    with pytest.raises(HalimedeError, match="no worker replies"):
        await trace_frame(broker, FrameQuery(service=unique, namespace="default", hard=True), Format.TABLE)


async def test_the_last_frame_is_found_when_no_more_come(
    s: Site, broker: BrokerAddress, digits: Digits, capsys: Output
) -> None:
    await s.run_both(digits)
    of_this = FrameQuery(service=s.service, namespace="default")
    with pytest.raises(HalimedeError, match=f"no worker has answered a frame of service {s.service}"):
        await trace_frame(broker, of_this, Format.JSON)
    await s.send_all(digits.pictures[:60])
    answers = sorted(s.results.values(), key=lambda result: result.sequence)
    assert {result.hard for result in answers} == {True, False}
    for hard in (False, True):
        newest, found = [result.id for result in answers if result.hard or not hard][-1], {}
        async with asyncio.timeout(patience(30)):
            while found.get("id") != newest:  # the worker may not yet know that the broker has its last result
                await trace_frame(broker, replace(of_this, hard=hard), Format.JSON)
                found = json.loads(capsys.readouterr().out)
        assert found["timelines"][0]["steps"]
