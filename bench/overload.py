"""A next tier that takes less than what is hard: when answers go out, and who gives them, in simulated time.

    python -m bench.overload                    0.5, 1 and 3 times what the cloud can take, then 1.3 s a sample
    python -m bench.overload --seconds 60       shorter

An edge worker answers 20 frames a second in 50 ms each, with an upload budget of 20 %: 4 frames a second are hard. One
cloud worker takes so long for each sample that this is the given multiple of what it can answer. ``marked`` is the
share of frames that are marked hard, ``right`` the share of right answers: the edge is right by chance, the less so
the harder the frame, and the cloud always.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from halimede import log, topics
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.frames import new_frame, pack
from halimede.messages import Prediction, Result
from halimede.mining import Verdict
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.pipeline.escalation import Escalation, NextTier
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.inference import InferenceOutcome
from halimede.pipeline.model_slot import Infer, ModelSlot
from halimede.pipeline.responders import Origin, ResultResponder, result_outbox
from halimede.pipeline.sample import Sample
from halimede.pipeline.upload_policy.budget import Budget
from halimede.pipeline.upload_policy.policy import UploadPolicy
from halimede.pipeline.workers import EdgeWorker, RequestWorker
from halimede.stats.ledger import Ledger
from tests.integration.test_shares_by_credits import Timed
from tests.simulated import simulate
from tests.unit.frames.clouds import NS, SERVICE, cloud_bus

FPS, EDGE_MS, TARGET, DEADLINE_S = 20.0, 50.0, 0.2, 5.0
#: milliseconds of the cloud for a sample, by what they are: multiples of what the cloud can take, and the slow one
CLOUDS = {f"{load:g}x": load * 1000 / (FPS * TARGET) for load in (0.5, 1.0, 3.0)} | {"1.3 s": 1300.0}
#: seconds at the beginning that do not count: nothing is known of the cloud, and the budget settles
WARM_S = 20.0


class HardOrEasy(Timed):
    """A model that takes ``EDGE_MS`` for a batch; it is right by chance, and mining knows the chance."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(EDGE_MS)
        self._chance = chance

    async def run(self, infer: Infer, samples: Sequence[Sample]) -> list[InferenceOutcome]:  # noqa: ARG002
        """Answer a batch, each sample with its hardness."""
        await asyncio.sleep(EDGE_MS / 1000)
        outcomes = []
        for _ in samples:
            hardness = self._chance.random()
            label = "x" if self._chance.random() > hardness * hardness else "wrong"
            verdict = Verdict(hard=hardness > 1 - TARGET, hardness=hardness, cut=1 - TARGET)
            outcomes.append(InferenceOutcome(Prediction(label=label), verdict=verdict, batch=len(samples), ms=EDGE_MS))
        return outcomes


async def play(cloud_ms: float, seconds: float, folder: Path) -> dict[str, Any]:
    """Run edge and cloud; return the figures of the answers."""
    broker, results, loop = MemoryBroker(), list[Result](), asyncio.get_running_loop()

    async def receive(delivery: Delivery[Result]) -> None:
        if loop.time() > WARM_S:
            results.append(delivery.body)

    async with (
        cloud_bus(broker, "c0") as cloud,
        MemoryBus("edge", broker) as bus,
        MemoryBus("consumer", broker) as consumer,
        ModelThread("decode") as decoder,
        asyncio.TaskGroup() as group,
    ):
        await asyncio.gather(bus.wait_connected(1), consumer.wait_connected(1))
        await consumer.subscribe(topics.RESULT.filter(), receive)
        with Ledger(folder, "u-1") as ledger:
            client = OffloadClient(bus, inference(NS, SERVICE, "e0"))
            tier = NextTier(deadline_s=DEADLINE_S)
            policy = UploadPolicy(budget=Budget(TARGET, 1 - TARGET))
            responder = ResultResponder(
                Origin(SERVICE, "e0", "node"),
                result_outbox(bus),
                topics.RESULT.at(ns=NS, service=SERVICE),
                ledger,
                tier=tier,
            )
            escalation = Escalation(client, ledger, tier=tier, policy=policy)
            edge = EdgeWorker(
                ModelSlot(HardOrEasy(random.Random(7))), responder, ledger, decoder, escalation=escalation
            )
            serving = RequestWorker(cloud, ModelSlot(Timed(cloud_ms)), inference(NS, SERVICE, "c0"))
            tasks = [group.create_task(work) for work in (serving.run(), edge.run())]
            await client.start()
            await asyncio.sleep(0.5)
            picture = np.zeros((2, 2), np.uint8)
            for _ in range(round(seconds * FPS)):
                await edge.intake.offer(pack(new_frame(picture)), "cam0")
                await asyncio.sleep(1 / FPS)
            await edge.drain(30)
            for task in tasks:
                task.cancel()
    return report(results)


def report(results: Sequence[Result]) -> dict[str, Any]:
    """Return the figures of answers."""
    total_ms = np.array([result.total_ms for result in results])
    degraded_ms = np.array([result.total_ms for result in results if result.degraded] or [0.0])
    count = len(results)
    return {
        "answers": count,
        "ms": {f"p{q}": round(float(np.percentile(total_ms, q)), 1) for q in (50, 90, 99)},
        "degraded_ms": {f"p{q}": round(float(np.percentile(degraded_ms, q)), 1) for q in (50, 90, 99)},
        "degraded": round(sum(result.degraded for result in results) / count, 3),
        "marked": round(sum(result.hard for result in results) / count, 3),
        "by_cloud": round(sum(result.by == "cloud" for result in results) / count, 3),
        "right": round(sum(result.label == "x" for result in results) / count, 3),
        "reasons": dict(sorted(Counter(str(result.reason) for result in results if result.degraded).items())),
    }


def main() -> int:
    """Run all clouds; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.overload", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=200.0, metavar="S", help="of each cloud (default: %(default)g)"
    )
    seconds = parser.parse_args().seconds
    log.configure("ERROR")
    for name, cloud_ms in CLOUDS.items():
        with tempfile.TemporaryDirectory(prefix="halimede-overload-") as folder:
            print(name, json.dumps(simulate(play(cloud_ms, seconds, Path(folder)))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
