"""What `halimede calibrate` printed and what then happened live, for five services at 10 and 20 % of uploads.

    python -m bench.calibration_live                         all services
    python -m bench.calibration_live --services digits,table --samples 300 --seed 1

Each service is calibrated by the command as a user types it. Then `halimede up` runs broker, GM and two nodes, the
manifests that calibrate wrote are applied, and other samples are published to the service's camera. A row has the
accuracy that calibrate measured on its held-out samples, with the 95 % interval, that of the live answers with theirs,
and their difference with its interval. Both are of samples and independent, so the difference has the squares of both
distances (Zou and Donner 2008). Of twelve intervals of 95 %, one would be missed in every second run. So the interval
of a difference is widened to the confidence at which all rows of a run hold together with 95 % (Bonferroni). `inside`:
this interval contains 0. `--seed` draws other samples, so that a miss can be tried again.

Faces and words are those of the demos of real pairs (examples/real_pairs), which install packages with models and
pictures on demand. Where the package index cannot be reached, the service is skipped. Calibration and test draw their
frames with faces from the same people, so that they are two draws of one stream. `faces-agreement` has no truth:
there the big model's answers count as true. Ends with 1 if a difference is not inside, or a frame was not answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench import results
from bench.calibration_services import SUBJECTS, Subject
from examples.demo_command import output_of
from examples.multi_edge import live
from examples.real_pairs import packages
from examples.real_pairs.manifests import service, write
from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.calibration.measurement import RESAMPLES_OF_BOXES, SEED, bootstrap_ends, draw_times, share
from halimede.cli.client import Client
from halimede.errors import HalimedeError
from halimede.evaluation.data import LabelledSamples, read_labelled
from halimede.evaluation.detection import Detection
from halimede.evaluation.quality import has_text_labels, right, with_truth
from halimede.evaluation.service import answer_all, read_chain
from halimede.frames.payloads import new_id, pack
from halimede.messages import Frame, Prediction, Result, StatusDocument
from halimede.stats.agreement import Estimate
from halimede.stats.differences import weighted_sum, z_of
from halimede.tracing import origin

WRITTEN = results.FOLDER / "calibration_live.json"
NAMESPACE, NODES = "default", ("edge0", "cloud0")
BUDGETS = (0.1, 0.2)
#: samples to calibrate on, and as many to test on; the digits and the table have fewer
SAMPLES = 600
#: frames a second; seconds until a service runs, and without any further answer before the rest counts as lost
FPS, START_S, SILENT_S = 10.0, 300.0, 120.0
TESTS = {True: "test", False: "test.npz"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One service at one budget. Shares are 0 to 1; ``above_chance`` is what calibrate decided."""

    service: str
    truth: str
    metric: str
    budget: float
    rule: str
    above_chance: bool
    calibrated: float
    calibrated_low: float
    calibrated_high: float
    live: float
    live_low: float
    live_high: float
    calibrated_share: float
    live_share: float
    frames: int
    lost: int
    degraded: int
    held_back: int

    def difference(self, rows: int) -> Estimate:
        """Return live less calibrated, with the interval that all ``rows`` of a run have together."""
        live = Estimate(self.live, self.live_low, self.live_high)
        calibrated = Estimate(self.calibrated, self.calibrated_low, self.calibrated_high)
        value, low, high = msgspec.structs.astuple(weighted_sum([(1, live), (-1, calibrated)]))
        widening = z_of(1 - 0.05 / rows) / z_of(0.95)
        return Estimate(value, value - widening * (value - low), value + widening * (high - value))

    def is_inside(self, rows: int) -> bool:
        """Whether the interval of the difference contains 0."""
        difference = self.difference(rows)
        return difference.low <= 0 <= difference.high

    def shown(self, rows: int) -> str:
        """Return the row for people."""
        difference = self.difference(rows)
        return (
            f"{self.service:<16} {self.metric:<12} {self.budget:>5.0%}  "
            f"{self.calibrated:.3f} ({self.calibrated_low:.3f} to {self.calibrated_high:.3f})  "
            f"{self.live:.3f} ({self.live_low:.3f} to {self.live_high:.3f})  "
            f"{difference.value:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})  "
            f"{'inside' if self.is_inside(rows) else 'OUTSIDE':<8} "
            f"{self.calibrated_share:>6.1%} {self.live_share:>6.1%}  "
            f"{self.rule}{'' if self.above_chance else ' (not above chance)'}"
            f"{f', {self.lost} LOST' if self.lost else ''}{f', {self.degraded} degraded' if self.degraded else ''}"
        )


HEADING = (
    f"{'SERVICE':<16} {'METRIC':<12} BUDGET CALIBRATE              LIVE                   DIFFERENCE                 "
    f"{'':<8} SHARES: CALIBRATE, LIVE; RULE"
)


async def calibrate(subject: Subject, folder: Path, budget: float) -> dict[str, Any]:
    """Run the command for a service of its own name; return what it prints as JSON. Raises HalimedeError."""
    data = folder / TESTS[(folder / "calibrate").is_dir()].replace("test", "calibrate")
    files = ("--service", str(folder / f"{named(subject, budget)}.yaml"), "--data", str(data))
    words = (*files, "--target-upload", str(budget), "--accept", "--json", "--out", str(folder))
    report: dict[str, Any] = json.loads(await output_of("calibrate", *words))
    return report


def named(subject: Subject, budget: float) -> str:
    """Return the name of a subject's service with a budget."""
    return f"{subject.name}-{budget * 100:.0f}"


class LiveService:
    """One service of the running system: its status, and the first result of each frame."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.results: dict[str, Result] = {}
        self.phase = ""
        self.changed = asyncio.Event()

    async def on_result(self, delivery: Delivery[Result]) -> None:
        """Keep the first result of a frame."""
        self.results.setdefault(delivery.body.id, delivery.body)
        self.changed.set()

    async def on_status(self, delivery: Delivery[StatusDocument]) -> None:
        """Keep the phase."""
        self.phase = delivery.body.status.phase
        self.changed.set()

    async def answer(self, client: Client, bus: MqttBus, bodies: Sequence[Any], frames: Sequence[Frame]) -> None:
        """Apply the service, publish the frames, wait for the answers, and delete it. Raises TimeoutError."""
        key = {"ns": NAMESPACE, "plural": "jointinferenceservices", "name": self.name}
        await bus.subscribe(topics.RESULT.filter(ns=NAMESPACE, service=self.name), self.on_result)
        await bus.subscribe(topics.STATUS.filter(**key), self.on_status)
        for body in bodies:
            await client.apply(body)
        async with asyncio.timeout(START_S):
            while self.phase != "Running":
                self.changed.clear()
                await self.changed.wait()
        start = time.monotonic()
        for i, frame in enumerate(frames):
            address = topics.CAMERA_FRAME.at(ns=NAMESPACE, camera=self.name)
            await bus.publish(address, pack(frame), properties=origin(frame.id))
            await asyncio.sleep(start + (i + 1) / FPS - time.monotonic())
        while len(self.results) < len(frames):
            self.changed.clear()
            try:
                async with asyncio.timeout(SILENT_S):
                    await self.changed.wait()
            except TimeoutError:
                return  # what is missing is counted as lost


def frames_of(folder: Path, data: LabelledSamples, camera: str) -> list[Frame]:
    """Return a frame for each sample: a picture as its file has it, a row of a table as raw numbers."""
    frames = []
    for i, (name, image) in enumerate(zip(data.names, data.images, strict=True)):
        frame = {"id": new_id(), "camera": camera, "sequence": i}
        if (folder / "test").is_dir():
            contents = (folder / "test" / name).read_bytes()
            encoding = "jpeg" if name.endswith(".jpg") else "png"
            frames.append(Frame(**frame, encoding=encoding, data=memoryview(contents)))
        else:
            row = np.ascontiguousarray(image, np.float32)
            pixels = memoryview(row.tobytes())
            frames.append(Frame(**frame, encoding="raw", dtype="float32", shape=list(row.shape), data=pixels))
    return frames


def accuracy(data: LabelledSamples, final: Sequence[Prediction]) -> tuple[float, float, float]:
    """Return the accuracy of final answers, and its interval."""
    blocks = np.arange(len(data))  # frames are in a random order
    if data.boxes is None:
        return share(right(data.truths or [], final), blocks)
    measured, chance = Detection(data.boxes, final, final), np.random.default_rng(SEED)
    nothing = np.zeros(len(data), bool)
    drawn = [measured.measure(nothing, draw_times(blocks, chance))[0] for _ in range(RESAMPLES_OF_BOXES)]
    return measured.measure(nothing)[0], *bootstrap_ends(drawn, blocks)


async def measure(subject: Subject, budget: float, folder: Path, client: Client, bus: MqttBus) -> Row:
    """Calibrate a service, run it live, and compare."""
    report = await calibrate(subject, folder, budget)
    chain = read_chain([folder / f"{named(subject, budget)}.calibration.yaml"])
    labelled = read_labelled(folder / TESTS[(folder / "test").is_dir()], chain.cloud.spec.labels)
    frames = frames_of(folder, labelled, named(subject, budget))
    running = LiveService(named(subject, budget))
    bodies = [resource.body for resource in (*chain.models, chain.service)]  # type: ignore[attr-defined]
    try:
        order = np.random.default_rng(SEED).permutation(len(frames))
        await running.answer(client, bus, bodies, [frames[i] for i in order])
    finally:
        await client.delete("jointinferenceservices", running.name, NAMESPACE)
    results = [running.results.get(frame.id.hex()) for frame in frames]
    teacher = [] if labelled.truths or labelled.boxes else await asyncio.to_thread(answer_all, chain.cloud, labelled)
    data = with_truth(labelled, teacher, is_text=has_text_labels(chain.cloud.spec, teacher)) if teacher else labelled
    final = [result.prediction if result else Prediction() for result in results]
    live_accuracy, low, high = accuracy(data, final)
    answered, figures = [result for result in results if result], report["figures"]
    return Row(
        service=subject.name, truth=subject.truth, metric=report["metric"], budget=budget,
        rule=f"{report['rule']} {' '.join(f'{key}={value:.8}' for key, value in report['parameters'].items())}".strip(),
        above_chance=report["aboveChance"], calibrated=figures["joint"], calibrated_low=figures["joint.low"],
        calibrated_high=figures["joint.high"], live=live_accuracy, live_low=low, live_high=high,
        calibrated_share=figures["upload_ratio"],
        live_share=float(np.mean([result.by != "edge" or result.audit for result in answered])),
        frames=len(frames), lost=len(frames) - len(answered), degraded=sum(result.degraded for result in answered),
        held_back=sum(result.hard and result.reason == "budget" for result in answered),
    )  # fmt: skip


async def run(subjects: Sequence[Subject], samples: int, seed: int, out: Path) -> list[Row]:
    """Measure all services on one running system."""
    rows: list[Row] = []
    for subject in subjects:
        models = subject.write(out / subject.name, samples, seed)
        small, big = (body["metadata"]["name"] for body in models)
        for budget in BUDGETS:
            name = named(subject, budget)
            body = service(name, small, big, subject.rule)
            write(out / subject.name / f"{name}.yaml", [*models, body])
    print(HEADING, flush=True)
    async with live.system(out / "home", ("--insecure",), NODES) as where:
        bus = MqttBus(f"bench-{secrets.token_hex(4)}", where.settings)
        async with Client(bus) as client:
            for subject in subjects:
                for budget in BUDGETS:
                    rows.append(await measure(subject, budget, out / subject.name, client, bus))
                    print(rows[-1].shown(len(subjects) * len(BUDGETS)), flush=True)
    return rows


def has_packages(subject: Subject) -> bool:
    """Install a subject's packages, and return whether they are there."""
    try:
        packages.install(subject.packages, report=print)
    except HalimedeError as error:
        print(f"{subject.name:<16} skipped: {error}")
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m bench.calibration_live", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--services", default=",".join(subject.name for subject in SUBJECTS))
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--seed", type=int, default=0, help="draws other samples of each service")
    chosen = parser.parse_args()
    subjects = [subject for subject in SUBJECTS if subject.name in chosen.services.split(",")]
    ready = [subject for subject in subjects if has_packages(subject)]
    with tempfile.TemporaryDirectory(prefix="halimede-bench-") as name:
        rows = asyncio.run(run(ready, chosen.samples, chosen.seed, Path(name)))
    results.write(WRITTEN, [{**asdict(row), "inside": row.is_inside(len(rows))} for row in rows])
    missed = [f"{row.service} at {row.budget:.0%}" for row in rows if not row.is_inside(len(rows)) or row.lost]
    print(f"missed: {', '.join(missed)}" if missed else "every difference is inside of its interval")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
