"""``make test-homeassistant``: run the bridge with a real Home Assistant; end with a table, and 1 if a step fails.

``HOMEASSISTANT=folder`` names a virtual environment with ``homeassistant`` (docs/home-assistant.md). It is all on
loopback: a Mosquitto, the core, the bridge as a program, and a system that consists of its messages; for commands, a
real global manager. Each step is a fact about entities, before, during and after a restart of each side. Writes
build/homeassistant.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from halimede import programs, topics
from halimede.bridges.homeassistant.system_listener import REMOVE_S
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.contract.examples import SERVICE
from halimede.errors import HalimedeError
from services.broker import MosquittoProcess
from services.gm.app import GlobalManager
from services.gm.cluster.local import LocalCluster
from tests.homeassistant.core import HomeAssistantCore, find_core
from tests.homeassistant.stand_in import StandInSystem, hard_sample, occupancy_event, presence, status_document
from tests.integration.test_occupancy_over_mosquitto import EMPTY, PERSON, RULES, Quick, Site
from tests.integration.test_occupancy_over_mosquitto import SERVICE as SERVICE_NAME
from tests.ports import free_port
from tests.programs import run_program
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "homeassistant.json"
#: seconds that a step may take on a quiet machine
STEP_S = 30.0
#: occupancy events whose delay is measured
EVENTS = 20
#: visits of a person whose delay from the first frame is measured
VISITS = 6
#: events a second, and for how many seconds
RATE, RATE_S = 200, 5
#: labels and zones of a model or user that mean harm
LABELS = ("<script>alert(1)</script>", "{{ states('sun.sun') }}", "a\nb", "\u202exe.png", "\U0001f98a" * 60, "\0", "")
PICTURE = b"\xff\xd8\xff\xe0a picture"

States = dict[str, dict[str, Any]]


@dataclass
class Step:
    """A fact that was waited for, and what it took. ``entities``: how many there were, and how many unavailable."""

    name: str
    is_good: bool
    seconds: float
    entities: int = 0
    unavailable: int = 0
    note: str = ""


@dataclass
class Run:
    """One run: its steps, and the entities before and after all restarts."""

    core: HomeAssistantCore
    steps: list[Step] = field(default_factory=list)

    async def step(
        self, name: str, is_true: Callable[[States], Any], note: str = "", within_s: float = STEP_S
    ) -> States:
        """Wait until a condition on the entities is true, and record the step."""
        began, is_good = time.monotonic(), True

        async def check() -> bool:
            return bool(is_true(await self.core.states()))

        try:
            await eventually(check, within_s, 0.2)
        except AssertionError:
            is_good = False
        states = await self.core.states()
        unavailable = sum(state["state"] == "unavailable" for state in states.values())
        self.record(Step(name, is_good, round(time.monotonic() - began, 2), len(states), unavailable, note))
        return states

    def record(self, step: Step) -> None:
        self.steps.append(step)
        outcome = "ok" if step.is_good else "FAILED"
        count = f"{step.entities} entities, {step.unavailable} unavailable"
        print(f"{outcome:7}{step.seconds:7.2f} s  {step.name}: {count} {step.note}", flush=True)


class BridgeProgram:
    """``halimede bridge homeassistant`` as a process."""

    def __init__(self, folder: Path, port: int) -> None:
        self._log = folder / "bridge.log"
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        command = programs.command("bridge", "homeassistant", "--broker", f"127.0.0.1:{self._port}", *options)
        environment = {**os.environ, **programs.child_variables()}
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)

    def stop(self, *, kill: bool = False) -> None:
        if self._process:
            (self._process.kill if kill else self._process.terminate)()
            self._process.wait(60)
            self._process = None


def state(states: States, entity: str) -> str:
    return str(states.get(entity, {}).get("state", ""))


def are_available(states: States) -> bool:
    return len(states) > 10 and all(value["state"] != "unavailable" for value in states.values())


async def run(program: Path, folder: Path) -> Run:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(MosquittoProcess(folder / "broker", port=free_port()))
        bus = await stack.enter_async_context(MqttBus("system", MqttSettings("127.0.0.1", broker.port)))
        await bus.wait_connected(STEP_S)
        system, bridge = StandInSystem(bus), BridgeProgram(folder, broker.port)
        stack.callback(bridge.stop)
        await system.start()
        core = HomeAssistantCore(program, folder / "core", broker.port)
        outcome = Run(core)
        await stack.enter_async_context(core)
        bridge.start()
        await show_system(outcome, system)
        await restart_each_side(outcome, system, bridge)
        await measure_events(outcome, system)
        await measure_frames(outcome, broker, folder)
        await try_bad_input(outcome, system)
        await remove_service(outcome, system)
        await control(outcome, system, bridge, folder, broker)
        dropped = [line for line in core.log.splitlines() if "mqtt" in line.lower()]
        outcome.record(Step("nothing in the log of the core about MQTT", not dropped, 0.0, note="; ".join(dropped[:3])))
    return outcome


async def show_system(outcome: Run, system: StandInSystem) -> None:
    """The devices of the system with their states, pictures and occupancy."""
    await outcome.step("the system appears", are_available)
    await outcome.step("its states are right", lambda s: state(s, "sensor.service_digits_upload_share") == "12.5")
    await system.status(status_document(phase="Degraded", message="node edge0 is offline"))
    await outcome.step("a problem is shown", lambda s: state(s, "binary_sensor.service_digits_problem") == "on")
    await system.picture(hard_sample(data=PICTURE))
    image = "image.service_digits_last_hard_sample"
    await outcome.step("the hard sample has a time", lambda s: state(s, image) not in {"", "unknown"})
    is_same = await outcome.core.picture(image) == PICTURE
    outcome.record(Step("the core serves the bytes of the hard sample", is_same, 0.0))
    await system.occupancy(occupancy_event(1))
    await outcome.step("a person is there", lambda s: state(s, "binary_sensor.camera_cam0_person_in_door") == "on")
    await outcome.step(
        "and is an event", lambda s: state(s, "event.camera_cam0_events_of_digits") not in {"", "unknown"}
    )


async def restart_each_side(outcome: Run, system: StandInSystem, bridge: BridgeProgram) -> None:
    """Kill the bridge, restart the core, and compare the entities."""
    before = await outcome.core.states()
    bridge.stop(kill=True)
    await outcome.step("the bridge is killed", lambda s: all(value["state"] == "unavailable" for value in s.values()))
    bridge.start()
    after = await outcome.step("the bridge runs again", are_available)
    outcome.record(Step("with the same entities", after.keys() == before.keys(), 0.0, len(after)))
    await outcome.core.stop()
    await system.status(status_document(metrics={"queued": "7"}))
    await outcome.core.start()
    after = await outcome.step("the core runs again", are_available)
    outcome.record(Step("with the same entities", after.keys() == before.keys(), 0.0, len(after)))
    await outcome.step("and the latest states", lambda s: state(s, "sensor.service_digits_queue") == "7")


async def measure_events(outcome: Run, system: StandInSystem) -> None:
    """Measure from the message of a worker to the event in the core."""
    delays = []
    for number in range(2, 2 + EVENTS):
        kind = "left" if number % 2 == 0 else "entered"
        began = time.monotonic()
        await system.occupancy(occupancy_event(number, kind, before=number))

        async def has_arrived(number: int = number) -> bool:
            attributes = (await outcome.core.states())["event.camera_cam0_events_of_digits"]["attributes"]
            return bool(attributes.get("before") == number)

        await eventually(has_arrived, STEP_S, 0.01)
        delays.append(time.monotonic() - began)
    note = f"{EVENTS} events, each s: " + ", ".join(f"{delay:.2f}" for delay in sorted(delays))
    outcome.record(Step("events arrive", len(delays) == EVENTS, round(max(delays), 2), note=note))


async def measure_frames(outcome: Run, broker: MosquittoProcess, folder: Path) -> None:
    """Measure from the first frame that shows a person to the event in the core, with a real edge worker."""
    delays: list[float] = []
    entity = f"event.camera_gate_events_of_{SERVICE_NAME.replace('-', '_')}"

    async def last_type() -> str:
        states = await outcome.core.states()
        return str(states.get(entity, {}).get("attributes", {}).get("event_type"))

    async def send(site: Site, value: int, expected: str) -> float:
        """Send ten frames a second until the core has an event of this type; return the seconds since the first."""
        began = time.monotonic()
        while await last_type() != expected:
            assert time.monotonic() - began < STEP_S
            await site.show(value, 1)
            await asyncio.sleep(0.02)
        return time.monotonic() - began

    async with MqttBus("gate", broker.url) as bus:
        site = Site(broker, bus, folder)
        await site.listen()
        async with site.worker("quick", Quick):
            for _ in range(VISITS):
                delays.append(await send(site, PERSON, "entered"))
                await send(site, EMPTY, "left")
        await bus.clear(topics.OCCUPANCY.at(ns="default", service=SERVICE_NAME, camera="gate"))
    await outcome.step("the entities of that camera go", lambda s: not any("camera_gate" in entity for entity in s))
    note = f"minFrames {RULES.min_frames}; the first one with its discovery: " + ", ".join(f"{d:.2f}" for d in delays)
    outcome.record(Step("from frame to event", len(delays) == VISITS, round(max(delays[1:]), 2), note=note))


async def try_bad_input(outcome: Run, system: StandInSystem) -> None:
    """Labels, names and rates that a system may have: each gives an entity, and the core drops no document."""
    before = len(await outcome.core.states())
    for number, label in enumerate(LABELS, 1000):
        await system.occupancy(occupancy_event(number, label=label, zone=label, camera="cam1"))
    # of each label a sensor, and one entity for the events
    await outcome.step("labels of any text are sensors", lambda s: len(s) == before + len(LABELS) + 1)
    long_name = "x" * 200
    await system.status(status_document(long_name, message="<b>bold</b> {{ now() }}"))
    await outcome.step("a long name is a device", lambda s: sum("xxxx" in entity for entity in s) > 5)
    await system.remove(status_document(long_name))
    await system.no_occupancy(occupancy_event(camera="cam1"))
    await outcome.step("both go", lambda s: len(s) == before)
    began = time.monotonic()
    for number in range(2000, 2000 + RATE * RATE_S):
        await system.occupancy(occupancy_event(number, "entered" if number % 2 else "left", before=number))
        await asyncio.sleep(max(0.0, began + (number - 1999) / RATE - time.monotonic()))
    rate = RATE * RATE_S / (time.monotonic() - began)

    def has_last(states: States) -> bool:
        event = states["event.camera_cam0_events_of_digits"]["attributes"]
        return bool(event.get("before") == 1999 + RATE * RATE_S)

    states = await outcome.step("many events a second arrive", has_last, f"{rate:.0f} a second for {RATE_S} s")
    undelivered = state(states, "sensor.halimede_undelivered_messages")
    outcome.record(Step("and none is lost", undelivered == "0", 0.0, note=f"undelivered {undelivered}"))


async def remove_service(outcome: Run, system: StandInSystem) -> None:
    await system.remove(status_document())
    await system.no_occupancy(occupancy_event())
    await outcome.step("the service is gone", lambda s: not any(".service_digits" in entity for entity in s))
    await outcome.step("and its events", lambda s: not any("person_in_door" in e or "events_of" in e for e in s))


async def control(
    outcome: Run, system: StandInSystem, bridge: BridgeProgram, folder: Path, broker: MosquittoProcess
) -> None:
    """Set a budget and drain a node from the core, with a real global manager."""
    bridge.stop()
    settings = MqttSettings("127.0.0.1", broker.port)
    async with LocalCluster(folder / "gm.db") as cluster, asyncio.TaskGroup() as group:
        manager = group.create_task(GlobalManager(MqttBus("gm", settings), cluster, cluster).run())
        async with Client.to(BrokerAddress(settings, "this run"), patience_s=STEP_S) as client:
            spec = {"apiVersion": SERVICE["apiVersion"], "kind": SERVICE["kind"], "spec": SERVICE["spec"]}
            await client.apply({**spec, "metadata": {"name": "digits", "namespace": "default"}})
            await system.node(presence())
            bridge.start("--control")
            await outcome.step("with --control: a budget", lambda s: "number.service_digits_upload_budget" in s)
            await outcome.step("and a switch", lambda s: state(s, "switch.node_edge0_drained") == "off")
            budget = "number.service_digits_upload_budget"
            await outcome.core.call("number", "set_value", entity_id=budget, value=30)
            await outcome.step("the budget is set", lambda s: state(s, budget) in {"30", "30.0"})
            body = await client.get("jointinferenceservices", "digits")
            share = body["spec"]["edgeWorker"].get("targetUploadRatio")
            outcome.record(Step("in the resource", share == 0.3, 0.0, note=f"targetUploadRatio {share}"))
            await outcome.core.call("switch", "turn_on", entity_id="switch.node_edge0_drained")
            await outcome.step("the node is drained", lambda s: state(s, "switch.node_edge0_drained") == "on")
            nodes = await client.nodes("edge0")
            outcome.record(Step("in the global manager", nodes[0].drained, 0.0))
            bridge.stop()
            bridge.start()
            entities = {budget, "switch.node_edge0_drained"}
            await outcome.step(
                "without --control: neither",
                lambda s: are_available(s) and not entities & s.keys(),
                within_s=REMOVE_S + STEP_S,
            )
        manager.cancel()


def main() -> int:
    """Return the exit code: 2 without a core."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.homeassistant", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--homeassistant", default=os.environ.get("HOMEASSISTANT") or None, metavar="FOLDER")
    options = parser.parse_args()
    try:
        program = find_core(Path(options.homeassistant).absolute() if options.homeassistant else None)
    except HalimedeError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    version = run_program(program, "--version", check=True, timeout_s=120)
    with tempfile.TemporaryDirectory(prefix="halimede-homeassistant-", ignore_cleanup_errors=True) as folder:
        outcome = asyncio.run(run(program, Path(folder)))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"core": version.stdout.strip(), "steps": [asdict(s) for s in outcome.steps]}, indent=1))
    print(f"\nHome Assistant {version.stdout.strip()}; written to {OUT.relative_to(ROOT)}")
    return 0 if all(step.is_good for step in outcome.steps) else 1


if __name__ == "__main__":
    sys.exit(main())
