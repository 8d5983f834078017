"""What ``top`` makes of what it hears, and how much of it a terminal gets to see."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from halimede import codec, topics
from halimede import messages as m
from halimede.bus import Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.cli.commands.top import WINDOW_S, TopState, listen, milliseconds, screen
from tests.simulated import eventually


def document(
    frames: int, *, name: str = "helmet", uid: str = "u1", phase: str = "Running", ratio: float = 0.5
) -> m.StatusDocument:
    info = m.TaskInfo(inference_number=frames, upload_cloud_ratio=ratio, queued=3)
    metrics = {"inferenceNumber": str(frames), "uploadCloudRatio": str(ratio), "lost": "1", "modelErrors": "4"}
    metrics |= {"edgeLatencyP99Ms": "12.5", "skipped": "7"}
    status = m.Status(
        phase=phase,
        conditions=[m.Condition(type=phase, reason="Because")],
        metrics=[m.Metric(key=key, value=value) for key, value in metrics.items()],
        nodes=[m.NodeSummary(node="edge0", online=True, task_info=info)],
    )
    return m.StatusDocument(
        api_version="sedna.io/v1alpha1", kind="JointInferenceService", namespace="default", name=name, uid=uid,
        generation=1, status=status,
    )  # fmt: skip


def after(*documents: tuple[float, m.StatusDocument]) -> TopState:
    state = TopState()
    for at, status in documents:
        state.take(at, status)
    return state


def row(state: TopState, now: float, sort: str = "phase") -> dict[str, object]:
    return state.view(now, sort)["services"][0]  # type: ignore[no-any-return]


def test_rates_are_taken_from_what_was_counted_in_between() -> None:
    shown = row(after((0.0, document(100)), (1.0, document(120)), (2.0, document(140))), 2.0)
    assert (shown["framesPerSecond"], shown["uploadsPerSecond"]) == (20.0, 10.0)
    assert (shown["queued"], shown["lost"], shown["edgeP99Ms"], shown["edgeP50Ms"]) == (3, 1, 12.5, None)
    assert (shown["modelErrors"], shown["skipped"]) == (4, 7)


def test_who_says_nothing_new_has_counted_nothing() -> None:
    state = after((0.0, document(0)), (1.0, document(100)))
    assert row(state, 2.0)["framesPerSecond"] == 50.0
    assert row(state, 1.0 + WINDOW_S)["framesPerSecond"] == 0.0
    state.take(10.0, document(200))  # and a burst after a silence is spread over the window alone
    assert row(state, 10.0)["framesPerSecond"] == 100 / WINDOW_S


def test_another_service_of_the_same_name_begins_anew() -> None:
    shown = row(after((0.0, document(1000)), (1.0, document(5, uid="u2"))), 2.0)
    assert (shown["framesPerSecond"], shown["frames"]) == (0.0, 5)


@pytest.mark.parametrize(
    ("sort", "first"), [("phase", "broken"), ("name", "broken"), ("rate", "fast"), ("upload", "fast")]
)
def test_services_are_sorted(sort: str, first: str) -> None:
    fast = (0.0, document(0, name="fast")), (1.0, document(50, name="fast"))
    state = after(*fast, (0.0, document(0, name="broken", phase="Failed")))
    assert row(state, 2.0, sort)["name"] == first


def view(services: int = 1) -> dict[str, object]:
    state = TopState(gm=m.GmPresence(epoch=7, online=True, version="1.2.3"))
    for i in range(services):
        state.take(0.0, document(i, name=f"helmet{i:02}", phase="Degraded"))
    state.loads["default", "helmet", "helmet-cloud-cloud0"] = m.Load(credits=9, service_ms=2.5)
    state.presences["edge0"] = m.Presence(node="edge0", epoch=1, online=True, version="1.2.3")
    state.infos["edge0"] = m.NodeInfo(name="edge0", online=True, drained=True, workers=2)
    state.infos["edge1"] = m.NodeInfo(name="edge1", online=False)
    return {"broker": {"address": "b:1", "connected": True}, **state.view(1.0, "phase")}


def printed(width: int, rows: int, services: int = 1) -> list[str]:
    out = Console(width=width, file=io.StringIO(), highlight=False)
    out.print(screen(view(services), width, rows=rows))
    assert isinstance(out.file, io.StringIO)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.1234, "0.123"), (39.84, "39.8"), (999.7, "1000"), (1210.4, "1210")]
)
def test_times_of_a_second_and_more_have_no_exponent(value: float | None, text: str) -> None:
    assert milliseconds(value) == text


def test_a_wide_terminal_shows_everything() -> None:
    text = "\n".join(printed(200, 0))
    for part in ("default/helmet00", "Degraded", "-/12.5", "QUEUE", "SKIPPED", "LOST", "MODEL ERRORS", "Because",
                 "helmet-cloud-cloud0", "2.5", "online,drained", "offline", "gm 1.2.3 epoch 7",
                 "nodes 1/2"):  # fmt: skip
        assert part in text


@pytest.mark.simulated
async def test_a_birth_that_the_broker_has_retained_counts_less_than_gms_answer() -> None:
    broker, state, address = MemoryBroker(), TopState(), topics.PRESENCE.at(node="edge0")
    payload = codec.encode(topics.PRESENCE, m.Presence(node="edge0", epoch=1, online=True))

    def status() -> object:
        return state.view(0.0, "phase")["nodes"][0]["status"]

    broker.route(Packet(address.text, payload, retain=True))
    async with MemoryBus("top", broker) as bus:
        await bus.wait_connected(1)
        await listen(bus, state)
        await eventually(lambda: state.presences)
        assert status() == "online", "GM has not answered"
        state.infos = {"edge0": m.NodeInfo(name="edge0", online=False)}
        assert status() == "offline"
        broker.route(Packet(address.text, payload, retain=True))
        await eventually(lambda: status() == "online")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_narrow_terminal_folds_no_line(width: int) -> None:
    lines = printed(width, 24, services=50)
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= 24
    text = "\n".join(lines)
    for part in ("helmet00", "more", "edge0"):
        assert part in text
