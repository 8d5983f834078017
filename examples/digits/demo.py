"""The whole system on real images, from nothing to a report: what `make demo` runs.

    halimede demo [--fps 120] [--out halimede-demo] [--tls | --insecure]
    halimede demo --files digits

Trains the two models if they are not there, starts broker, GM and three nodes as separate processes, applies the YAML
beside this file, publishes the test half of the digits from two cameras, and writes report.json and report.html.
With --files it writes the example's manifests, models and pictures into a folder, to be used with `halimede up`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from examples.demo_command import add_security, end, errors_in_a_line, make_folder, security, write_report
from examples.digits import data, page, report, train
from halimede import home_folder, log, programs, topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cli.client import Client
from halimede.cli.manifests import load as load_manifests
from halimede.errors import HalimedeError
from halimede.frames.payloads import new_id, pack
from halimede.inference import open_model
from halimede.messages import Frame, Result, StatusDocument
from halimede.tracing import origin

HERE = Path(__file__).parent
NAMESPACE, SERVICE = "default", "digits"
CAMERAS = ("cam0", "cam1")
NODES = "edge0,edge1,cloud0"
#: seconds: for the system to come up, and for the last answers after the last frame
START, FINISH = 150.0, 30.0


class Demo:
    """What has been sent and what came back."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.split = data.load()
        self.pictures = [data.to_png(image) for image in self.split.test_x]
        #: by id: which picture, and when it was published; the result, when it came, and its bytes
        self.sent: dict[str, tuple[int, float]] = {}
        self.results: dict[str, tuple[Result, float, int]] = {}
        self.status: StatusDocument | None = None
        self.changed = asyncio.Event()
        self._started = time.monotonic()
        #: seconds until the first answer of both models
        self.first_joint: float | None = None

    async def on_result(self, delivery: Delivery[Result]) -> None:
        """Keep the first result of each frame; consumers drop repeated ids."""
        if self.first_joint is None and delivery.body.by == "cloud":
            self.first_joint = time.monotonic() - self._started
        self.results.setdefault(delivery.body.id, (delivery.body, time.monotonic(), len(delivery.packet.payload)))
        self.changed.set()

    async def on_status(self, delivery: Delivery[StatusDocument]) -> None:
        """Keep the newest status document."""
        self.status = delivery.body
        self.changed.set()

    async def until(self, what: str, seconds: float, done: Any) -> None:
        """Wait until ``done()`` holds, looking again at every message."""
        try:
            async with asyncio.timeout(seconds):
                while not done():
                    self.changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.2):
                            await self.changed.wait()
        except TimeoutError:
            phase = self.status.status if self.status else "no status yet"
            raise HalimedeError(f"{what} did not happen within {seconds:.0f} s; last status: {phase}") from None

    def metric(self, key: str) -> int:
        """Return a count of the status document."""
        metrics = self.status.status.metrics if self.status else []
        return next((int(float(m.value)) for m in metrics if m.key == key), 0)

    async def publish(self, bus: MqttBus, fps: float) -> None:
        """Publish every picture once, from the cameras in turn, at ``fps`` frames a second in all."""
        start = asyncio.get_running_loop().time()
        for i, picture in enumerate(self.pictures):
            camera = CAMERAS[i % len(CAMERAS)]
            frame = Frame(id=new_id(), camera=camera, sequence=i, encoding="png", data=memoryview(picture))
            self.sent[frame.id.hex()] = i, time.monotonic()
            address = topics.CAMERA_FRAME.at(ns=NAMESPACE, camera=camera)
            await bus.publish(address, pack(frame), properties=origin(frame.id))
            await asyncio.sleep(start + (i + 1) / fps - asyncio.get_running_loop().time())

    def view(self, progress: Progress) -> Group:
        """Return the live view."""
        counts = Table(box=None, show_header=False, padding=(0, 2))
        answers = [(self.results[k][0], i) for k, (i, _) in list(self.sent.items()) if k in self.results]
        right = sum(r.label == str(self.split.test_y[i]) for r, i in answers)
        hard = sum(r.hard for r, _ in answers)
        share = f"{right / len(answers):.4f}" if answers else "-"
        counts.add_row("accuracy so far", share, "sent to the cloud", f"{hard} ({hard / max(len(answers), 1):.1%})")
        phase = self.status.status.phase if self.status else "-"
        counts.add_row("service", phase, "degraded", str(sum(r.degraded for r, _ in answers)))
        return Group(progress, counts)

    def answers(self, models: Path) -> list[report.Answer]:
        """Put pictures, truths, results and the big model's own labels side by side."""
        big = open_model(models / "big.onnx", _spec("digits-big"))
        inputs = [big.prepare(np.rint(x * 240).astype(np.uint8).reshape(8, 8)) for x in self.split.test_x]
        labels = [p.label or "" for p in big.predict(inputs)]
        truth, start = self.split.test_y, min((at for _, at in self.sent.values()), default=0.0)
        answers = []
        for key, (i, sent) in self.sent.items():
            if key in self.results:
                result, at, size = self.results[key]
                waited = (at - sent) * 1000
                answers.append(
                    report.Answer(self.pictures[i], str(truth[i]), result, labels[i], at - start, waited, size)
                )
        return answers


def _spec(name: str) -> Any:
    manifests = load_manifests([str(HERE)])
    return next(m.resource.spec for m in manifests if m.resource.key.name == name)


@contextlib.asynccontextmanager
async def system(home: Path, options: Sequence[str], console: Console) -> AsyncIterator[MqttSettings]:
    """Run ``halimede up`` as its user would; yield how its operator reaches the broker."""
    home_folder.clear(home)
    log = home / "services.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *programs.command("up", "--nodes", NODES, "--home", str(home), *options), stdout=out, stderr=out
        )
    try:
        run_file, deadline = home / "run.json", time.monotonic() + START
        while not run_file.exists():
            if process.returncode is not None or time.monotonic() > deadline:
                raise HalimedeError(f"the system did not start; it said:\n{log.read_text()[-2000:]}")
            await asyncio.sleep(0.05)
        run = msgspec.json.decode(run_file.read_bytes())
        console.print(f"broker, GM and nodes {NODES} run; broker at {run['broker']}")
        yield MqttSettings.from_url(run["broker"], credentials=run.get("credentials"))
    finally:
        if process.returncode is None:
            process.terminate()
            async with asyncio.timeout(START):
                await process.wait()


async def run(fps: float, out: Path, options: Sequence[str], console: Console) -> dict[str, Any]:
    """Run the demo on a system with these options and return the figures."""
    demo = Demo(console)
    example = HERE if (HERE / train.MODELS / "big.onnx").exists() else write_example(out / "digits")
    async with system(out / "home", options, console) as settings:
        bus = MqttBus(f"demo-{secrets.token_hex(4)}", settings)
        async with Client(bus) as client:
            await bus.subscribe(topics.RESULT.filter(ns=NAMESPACE, service=SERVICE), demo.on_result)
            key = {"ns": NAMESPACE, "plural": "jointinferenceservices", "name": SERVICE}
            await bus.subscribe(topics.STATUS.filter(**key), demo.on_status)
            for manifest in load_manifests([str(example)]):
                outcome, _ = await client.apply(manifest.resource.body)
                console.print(f"{manifest.resource.key} {outcome}")
            await demo.until("Running", START, lambda: demo.status and demo.status.status.phase == "Running")
            await _answer_all(demo, bus, fps, console)
            if demo.first_joint is not None:
                console.print(f"first answer of both models after {demo.first_joint:.1f} s")
            total = len(demo.pictures)
            await demo.until("the final count", FINISH, lambda: demo.metric("inferenceNumber") >= total)
    status = msgspec.to_builtins(demo.status)
    return _write(demo, example / train.MODELS, out, status, console)


def write_example(folder: Path) -> Path:
    """Write the manifests, the trained models and the pictures into a folder; return it. Raises HalimedeError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for manifest in HERE.glob("*.yaml"):
            (folder / manifest.name).write_bytes(manifest.read_bytes())
        train.main(folder)
    except OSError as error:
        raise HalimedeError(f"{error.filename or folder} cannot be written ({error.strerror})") from error
    return folder


async def _answer_all(demo: Demo, bus: MqttBus, fps: float, console: Console) -> None:
    total = len(demo.pictures)
    progress = Progress(TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), console=console)
    sent, answered = progress.add_task("published", total=total), progress.add_task("answered", total=total)
    with Live(console=console, refresh_per_second=8, transient=True, get_renderable=lambda: demo.view(progress)):
        publishing = asyncio.create_task(demo.publish(bus, fps))

        def done() -> bool:
            progress.update(sent, completed=len(demo.sent))
            progress.update(answered, completed=len(demo.results))
            return len(demo.results) >= total

        try:
            with contextlib.suppress(HalimedeError):  # what is missing is in the report, as lost
                await demo.until("the last answer", total / fps + FINISH, done)
        finally:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)


def _write(demo: Demo, models: Path, out: Path, status: dict[str, Any], console: Console) -> dict[str, Any]:
    answers = demo.answers(models)
    target = _spec(SERVICE).edge_worker.target_upload_ratio
    found = report.figures(answers, len(demo.pictures), status, target)
    title = "joint inference of handwritten digits"
    write_report(out, found, page.page(found, answers), report.table(found), title=title, console=console)
    return found


EXAMPLES = """\
Examples:
  halimede demo
  halimede demo --fps 300 --out build/demo --tls
  halimede demo --files digits
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line's definition."""
    made = argparse.ArgumentParser(
        prog="halimede demo",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--fps", type=float, default=120.0, help="frames a second, both cameras together")
    made.add_argument(
        "--out", type=Path, default=Path("halimede-demo"), help="folder of the report (default: %(default)s)"
    )
    made.add_argument("--files", type=Path, metavar="FOLDER", help="only write the example's files into this folder")
    add_security(made)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demo; exit 1 with one line if it fails, or if a sample was lost."""
    options = parser().parse_args(arguments)
    console = Console()
    log.configure("ERROR")
    with errors_in_a_line():
        make_folder(*(("--files", options.files) if options.files else ("--out", options.out)))
        if options.files:
            console.print(f"next: halimede apply -f {write_example(options.files)}")
            return
        found = asyncio.run(run(options.fps, options.out, security(options), console))
    end([f"{found['lost']} samples were not answered"] if found["lost"] else [])
