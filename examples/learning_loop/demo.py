"""A service learns a stream that has drifted, from nothing to a report: what `make demo-loop` runs.

    python -m examples.learning_loop.demo [--seconds 25] [--out build/demo-loop] [--tls | --insecure]

Trains the models if they are not there, calibrates the service, starts broker, GM and two nodes as processes, applies
the YAML beside this file, and sends frames all the time. Then the cameras see mirror images. When the loop has rolled
out a version, its trainer is replaced by one that makes worse models, and the next candidate is refused. It writes
report.json and report.html. Every figure is measured in that run.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from examples.demo_command import add_security, end, errors_in_a_line, output_of, security, write_report
from examples.learning_loop import page, report, train
from examples.learning_loop.report import ROLLED_OUT, FinishedRun
from examples.learning_loop.stream import Stream
from examples.multi_edge import live
from halimede import log
from halimede.bus.mqtt import MqttBus
from halimede.cli.client import Client
from halimede.cli.manifests import load as load_manifests
from halimede.errors import HalimedeError

HERE = Path(__file__).parent
NODES = ("edge0", "cloud0")
FILES = ("small.onnx", "big.onnx", train.CALIBRATE, train.BEFORE)
MODELS, SERVICE, TRAINING = (str(HERE / name) for name in ("1-models.yaml", "2-service.yaml", "3-training.yaml"))
UPLOADS = 0.2
#: seconds: for the service to run; of the stream before the drift, of which the first do not count; for a step of a
#: round, whose trainer gets little of a busy machine; without a further one of the last answers
START_S, BEFORE_S, WARM_S, STEP_S, FINISH_S = 90.0, 25.0, 3.0, 600.0, 30.0


class Demo:
    """One run."""

    def __init__(self, client: Client, seconds: float, console: Console) -> None:
        self.stream = Stream()
        self._seconds = seconds
        self._client = client
        self._console = console

    async def run(self, calibrated: str) -> FinishedRun:
        """Let the stream drift, wait for the loop, hand it a bad trainer. Raises HalimedeError."""
        stream = self.stream
        await stream.listen(self._client.bus)
        await self._apply(calibrated)
        if not await stream.until(self._serves, START_S):
            raise HalimedeError(f"the service does not run after {START_S:.0f} s: {stream.service}")
        sending = asyncio.create_task(stream.send(self._client.bus), name="cameras")
        try:
            return await self._parts(sending)
        finally:
            sending.cancel()

    async def _parts(self, sending: asyncio.Task[None]) -> FinishedRun:
        stream = self.stream
        await self._apply(TRAINING)
        self._note(f"the stream as it was, {self._seconds:.0f} s")
        await asyncio.sleep(self._seconds)
        stream.drift = True
        stream.mark("drift")
        drift_s = stream.now
        self._note("the cameras see mirror images: the loop waits for workers that report drift")
        await self._round(1, sending)
        canary_s = next((mark.at_s for mark in stream.marks if mark.state == "Canary"), stream.now)
        await self._settled()
        await self._client.apply(worse(command=0))
        after_s = stream.now
        self._note(f"the stream with the new version, {self._seconds:.0f} s")
        await asyncio.sleep(self._seconds)
        worse_s = stream.now
        self._note("a command begins a round, with a trainer that has wrong labels")
        await self._client.apply(worse(command=1))
        stream.mark("bad trainer")
        await self._round(2, sending)
        sending.cancel()
        self._note("the last answers")
        waiting = -1
        while stream.waiting != waiting:
            waiting = stream.waiting
            await stream.until(lambda: not stream.waiting, FINISH_S)
        frames = sorted(stream.frames.values(), key=lambda frame: frame.at_s)
        return FinishedRun(frames, stream.marks, stream.loop, WARM_S, drift_s, canary_s, after_s, worse_s)

    async def _round(self, number: int, sending: asyncio.Task[None]) -> None:
        """Wait for the end of a round. Raises HalimedeError."""

        def over() -> bool:
            if sending.done():
                sending.result()
            return len(self.stream.loop.get("history", [])) >= number

        known = len(self.stream.marks)
        begin_s = self.stream.now
        while not over():
            if self.stream.now > max(begin_s, self.stream.changed_s) + STEP_S:
                loop = {key: self.stream.loop.get(key) for key in ("state", "reason", "message", "round")}
                raise HalimedeError(f"round {number} did not go on for {STEP_S:.0f} s: {loop}")
            await self.stream.until(over, 1.0)
            for mark in self.stream.marks[known:]:
                self._console.print(f"  {mark.at_s:5.0f} s  {mark.text}")
            known = len(self.stream.marks)
        record = self.stream.loop["history"][-1]
        words = [str(record.get(key)) for key in ("version", "outcome", "reason", "message") if record.get(key)]
        self._note(f"round {number}: {', '.join(words)}")

    async def _settled(self) -> None:
        """Wait until the version that was rolled out answers, and the loop waits for its next trigger."""
        record = self.stream.loop["history"][-1]
        version = str(record.get("version")) if record.get("outcome") == ROLLED_OUT else self.stream.version

        def is_settled() -> bool:
            return self.stream.loop.get("state") in {ROLLED_OUT, "Collecting"} and self.stream.version == version

        await self.stream.until(is_settled, STEP_S)

    def _serves(self) -> bool:
        return self.stream.service is not None and self.stream.service.status.phase == "Running"

    def _note(self, text: str) -> None:
        self._console.print(f"[bold]{self.stream.now:5.0f} s[/]  {text}")

    async def _apply(self, file: str) -> None:
        for manifest in load_manifests([file]):
            body = manifest.resource.body
            # without a budget, the drift shows in the uploads as well
            body["spec"].get("edgeWorker", {}).pop("targetUploadRatio", None)
            outcome, _ = await self._client.apply(body)
            self._console.print(f"{manifest.resource.key} {outcome}")


def worse(command: int) -> dict[str, Any]:
    """Return the training with a trainer that makes worse models, in a loop that only waits for a command."""
    *_, manifest = load_manifests([TRAINING])
    body: dict[str, Any] = copy.deepcopy(manifest.resource.body)
    body["spec"]["trainer"] |= {"entry": "worse.py:Worse", "archive": {"name": "loop-worse"}}
    body["spec"]["loop"] |= {"command": command, "triggers": {"pauseS": 0, "drift": False}}
    return body


async def calibrate(out: Path) -> Path:
    """Run ``halimede calibrate`` for the service; return the manifests that it writes. Raises HalimedeError."""
    files = ("--service", SERVICE, "--service", MODELS, "--data", str(train.FOLDER / train.CALIBRATE))
    await output_of("calibrate", *files, "--target-upload", str(UPLOADS), "--rule", "Margin", "--out", str(out))
    return out / "loop.calibration.yaml"


async def run(seconds: float, out: Path, options: Sequence[str], console: Console) -> dict[str, Any]:
    """Run the demo on a system with these options and return the figures."""
    out.mkdir(parents=True, exist_ok=True)
    if not all((train.FOLDER / name).exists() for name in FILES):
        console.print("training the models that the loop begins with")
        await asyncio.to_thread(train.main)
    console.print(f"calibrating the service for {UPLOADS:.0%} of uploads")
    calibrated = await calibrate(out)
    async with live.system(out / "home", options, NODES) as where:
        console.print(f"broker, GM and nodes {', '.join(NODES)} run; broker at {where.broker}")
        async with Client(MqttBus(f"demo-{secrets.token_hex(4)}", where.settings)) as client:
            finished = await Demo(client, seconds, console).run(str(calibrated))
    found = report.figures(finished)
    shown = page.page(found, finished)
    write_report(out, found, shown, report.table(found), title="a learning loop", console=console)
    return found


def main() -> None:
    """Run the demo; exit 1 with one line if it fails, or breaks a promise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=BEFORE_S, help="of the stream before the drift, 8 at least")
    parser.add_argument("--out", type=Path, default=Path("build/demo-loop"), help="folder of the report")
    add_security(parser)
    options = parser.parse_args()
    if options.seconds < 8:
        parser.error("--seconds must be 8 at least: the figures are means over that time")
    log.configure("ERROR")
    with errors_in_a_line():
        found = asyncio.run(run(options.seconds, options.out, security(options), Console()))
    end(report.missed(found))


if __name__ == "__main__":
    main()
