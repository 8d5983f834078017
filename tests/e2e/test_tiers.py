"""Device, gate and cloud over real Mosquitto, as docs/tiers.md has them, against device and cloud without the gate.

Models and margins come from the half of the digits that is not sent here. The device has the same model and rule in
both; without a gate nearby its margin is the one that sends half of the samples up instead of three quarters.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.digits import data
from examples.tiers import train
from halimede.cli.manifests import load as load_manifests
from halimede.messages import Result
from tests.e2e.running import ROOT, System, running
from tests.e2e.shell import environment, type_line
from tests.e2e.test_documentation import commands
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SERVICE, DOCUMENT = "tiers", "docs/tiers.md"
NODES = "device0,edge0,cloud0"
GATE = "worker:tiers.gate-tier-edge0"
#: the device's margin without a gate, as train.py prints it
ALONE = "0.38"


@dataclass(frozen=True)
class Run:
    """What came of all test digits: share answered rightly, bytes that reached the cloud, and who answered how many."""

    accuracy: float
    cloud_bytes: int
    tiers: dict[str, int]


async def answers(system: System, pictures: list[bytes], fps: float = 150) -> list[Result]:
    """Send pictures; return their answers in order, each the only one."""
    system.sent.clear()
    await system.send(pictures, fps=fps)
    sent = dict(system.sent)
    await system.until("all answers", lambda: sent.keys() <= system.results.keys())
    assert {system.copies[key] for key in sent} == {1}
    return [system.results[key] for key in sent]


async def settled(system: System, *metrics: str) -> dict[str, int]:
    """Return metrics once they have stood still for longer than reports take."""
    known: list[float] = []
    while known != (known := [system.metric(key) for key in metrics]):
        await asyncio.sleep(patience(1))  # reports come once a second
    return dict(zip(metrics, map(round, known), strict=True))


async def measured(system: System, pictures: list[bytes], last_hop: str) -> tuple[Run, dict[str, int]]:
    """Send all test digits; ``last_hop`` counts the bytes to the cloud. Return the tiers' own counts as well."""
    keys = ("inferenceNumber", last_hop, "served.gate", "deferred.gate", "served.cloud")
    for _ in range(100):  # running is not yet being known to those who ask
        if "cloud" in {last_tier(result) for result in await answers(system, pictures[:20])}:
            break
    await system.until("earlier counts", lambda: system.metric("inferenceNumber") >= len(system.results))
    before = await settled(system, *keys)
    results = await answers(system, pictures)
    uploaded = sum(len(p) for p, r in zip(pictures, results, strict=True) if last_tier(r) == "cloud")
    tiers = Counter(map(last_tier, results))
    least = {"inferenceNumber": len(pictures), last_hop: uploaded}
    if tiers["gate"]:
        served = tiers["gate"] + tiers["cloud"]
        least |= {"served.gate": served, "deferred.gate": tiers["cloud"], "served.cloud": tiers["cloud"]}
    await system.until(
        "the counts", lambda: all(system.metric(key) >= before[key] + number for key, number in least.items())
    )
    after = await settled(system, *keys)
    counts = {key: after[key] - before[key] for key in keys}
    assert [(result.degraded, result.reason) for result in results if result.degraded or result.reason] == []
    assert counts["inferenceNumber"] == len(pictures), "counted once, at the edge"
    assert counts[last_hop] == uploaded
    right = sum(r.label == str(truth) for r, truth in zip(results, data.load().test_y, strict=True))
    return Run(right / len(results), counts[last_hop], dict(tiers)), counts


def last_tier(result: Result) -> str:
    """Return who answered; of a service without tiers, its role."""
    return result.tier or result.by


async def test_three_tiers_are_as_good_as_two_and_send_less_to_the_cloud(tmp_path: Path) -> None:
    split = data.load()
    if not (train.FOLDER / "cloud.onnx").exists():
        train.train(split)
    pictures = [data.to_png(image) for image in split.test_x]
    lines = [line for line in commands(DOCUMENT) if line.startswith("halimede") and "halimede up" not in line]
    apply, *looks = lines
    async with running(tmp_path / "home", NODES) as system:
        await system.follow(SERVICE)
        await type_line(apply, environment(system.home))
        await system.until_running()

        three, counts = await measured(system, pictures, "uploadedBytes.gate")
        assert counts["served.gate"] == three.tiers["gate"] + three.tiers["cloud"]
        assert counts["served.cloud"] == counts["deferred.gate"] == three.tiers["cloud"]
        shown = [await type_line(line, environment(system.home)) for line in looks]
        assert "1 edge, 1 gate, 1 cloud" in "".join(shown)
        assert f"{round(system.metric('deferred.gate'))} " in shown[-1]

        # a gate that dies: everything is answered, by the device where need be, and then by the gate again
        gate = system.processes()[GATE]
        gate.kill()
        results = await answers(system, pictures[:100], fps=100)
        assert all(result.reason for result in results if result.degraded)
        await system.until("the gate", lambda: GATE in system.processes() and system.phase == "Running")
        for _ in range(100):
            if "gate" in {result.tier for result in await answers(system, pictures[:20])}:
                break
            await asyncio.sleep(0.2)
        else:
            raise AssertionError("the gate answers no more")

        # taking the tier away is an edit like any other
        (service,) = [m for m in load_manifests([str(ROOT / "examples" / "tiers")]) if m.resource.key.name == SERVICE]
        spec = {key: value for key, value in service.resource.body["spec"].items() if key != "tiers"}
        mining = {"name": "Margin", "parameters": [{"key": "threshold_margin", "value": ALONE}]}
        spec["edgeWorker"] = {**spec["edgeWorker"], "hardExampleMining": mining}
        await system.client.apply({**service.resource.body, "spec": spec})
        await system.until("two tiers", lambda: system.status and system.status.status.observed_generation == 2
                           and system.phase == "Running" and GATE not in system.processes())  # fmt: skip
        two, _ = await measured(system, pictures, "uploadedBytes")
        assert set(two.tiers) == {"edge", "cloud"}
        await system.client.delete("jointinferenceservices", SERVICE, "default")
        await system.until("the end of all workers", lambda: not [p for p in system.processes() if "worker" in p])
    print(f"\n{len(pictures)} unseen digits: three tiers {three}, two tiers {two}")
    assert three.accuracy >= two.accuracy
    assert three.cloud_bytes < two.cloud_bytes
