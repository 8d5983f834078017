"""Three cameras, three nodes, one job, from nothing to a report: what `make demo-multi-edge` runs.

    python -m examples.multi_edge.demo [--seconds 24] [--out build/demo-multi-edge] [--tls | --insecure]

Trains the models if they are not there, films three scenes, starts broker, GM and three nodes as separate processes,
applies the YAML beside this file, plays the films to three cameras each, kills a node in the middle of the last one,
and writes report.json and report.html. Every figure is measured in that run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from PIL import Image
from rich.console import Console

from examples.demo_command import add_security, end, errors_in_a_line, security, write_report
from examples.multi_edge import boards, films, live, measure, page, pictures, report, train
from examples.multi_edge.films import Film
from examples.multi_edge.live import Cameras, System
from examples.multi_edge.measure import Run
from examples.multi_edge.record import SERVICES, Recorder
from halimede import log
from halimede.bus.mqtt import MqttBus
from halimede.cli.client import Client
from halimede.cli.manifests import load as load_manifests
from halimede.errors import HalimedeError
from halimede.inference import open_model

HERE = Path(__file__).parent
MODELS = ("embedder.onnx", "digits.onnx", "belt.onnx")
#: frames a second of each camera of the belt: as many as all nodes can do together, then as many as two can
FULL_FPS, CALM_FPS = 14.2, 5.5
#: milliseconds that a frame takes each node (4-belt.yaml)
WAIT_MS = {"edge0": 40.0, "edge1": 80.0, "edge2": 160.0}
#: who is killed: the strongest and the eldest; and how much of the film is played by then
VICTIM, VICTIMS_CAMERA, KILLED_AT = "edge0", "belt-west", 0.4
#: whose photograph is shown to the system
ASKED_FOR = "portrait"
#: seconds for the last answers after the last frame
FINISH = 30.0


@dataclass
class Films:
    """All films of a run."""

    seconds: float
    shown: boards.Shown
    street: list[Film] = field(default_factory=list)
    board: list[Film] = field(default_factory=list)
    full: list[Film] = field(default_factory=list)
    calm: list[Film] = field(default_factory=list)

    @classmethod
    def make(cls, folder: Path, seconds: float) -> Films:
        """Film everything; the other scenes take a part of the time that the street does."""
        made = cls(seconds, boards.show(round(seconds * films.BOARD_FPS * 0.75)))
        made.street = films.street(folder, seconds)
        made.board = films.board(folder, made.shown)
        made.full = films.belt(folder, round(seconds * 0.5 * FULL_FPS), FULL_FPS, "full")
        made.calm = films.belt(folder, round(seconds * 0.65 * CALM_FPS), CALM_FPS, "calm")
        return made


class Demo:
    """One run."""

    def __init__(self, made: Films, where: System, recorder: Recorder, console: Console) -> None:
        self.made = made
        self.runs: dict[str, Run] = {}
        self.killed_ns = 0
        self.killed: list[int] = []
        self.asked = ""
        self._where = where
        self._recorder = recorder
        self._console = console

    async def run(self) -> None:
        """Play one scene after the other."""
        await self._play("street", "street", self.made.street)
        self.asked = await self._ask()
        await self._play("board", "board", self.made.board)
        await self._play("full", "belt", self.made.full)
        killing = asyncio.create_task(self._kill(live.LEAD + KILLED_AT * 0.65 * self.made.seconds))
        try:
            await self._play("calm", "belt", self.made.calm)
            await killing
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)

    async def _play(self, name: str, service: str, chosen: Sequence[Film]) -> None:
        """Play the films of one scene and wait for the answers; what is missing then is lost."""
        recorder = self._recorder
        before = set(recorder.sent)
        cameras = Cameras(service, chosen, self._where)
        self._console.print(f"[bold]{name}[/]: three cameras, {chosen[0].fps:g} frames a second each")
        await cameras.play()
        with contextlib.suppress(HalimedeError):
            await recorder.until("the last answer", FINISH, lambda: not recorder.waiting(service))
        sent = {k: s for k, s in recorder.sent.items() if k not in before and s.camera.startswith(service)}
        answers = {k: recorder.answers[k] for k in sent if k in recorder.answers}
        self.runs[name] = Run(sent, answers, cameras.start_ns, chosen[0].fps)
        self._console.print(f"  {len(sent)} frames, {len(answers)} answered")

    async def _ask(self) -> str:
        """Show the system a photograph, and ask where that object was seen."""
        photograph = self._where.home.parent / f"{ASKED_FOR}.png"
        Image.fromarray(dict(pictures.objects())[ASKED_FOR]).save(photograph)
        self._console.print(f"asking who looks like {photograph}")
        model = str(HERE / "1-embedder.yaml")
        return await live.ask(
            self._where, "seen", "street", "--picture", str(photograph), "--model", model, "--limit", "3"
        )

    async def _kill(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self.killed = await asyncio.to_thread(live.processes_of, self._where.home, VICTIM)
        with contextlib.suppress(HalimedeError):  # at the worst moment: when it has a frame in its hands
            await self._recorder.until("a frame on its way", 2.0, lambda: self._recorder.waiting(VICTIMS_CAMERA))
        self.killed_ns = time.time_ns()
        live.kill(self.killed)
        self._console.print(f"  [bold red]killed[/] {VICTIM}: its controller and workers, {len(self.killed)} processes")


async def run(seconds: float, out: Path, options: Sequence[str], console: Console) -> dict[str, Any]:
    """Run the demo on a system with these options and return the figures."""
    if not all((train.FOLDER / name).exists() for name in MODELS):
        train.main()
    console.print(f"filming three scenes of up to {seconds:g} s")
    made = await asyncio.to_thread(Films.make, out / "films", seconds)
    recorder = Recorder()
    async with live.system(out / "home", options) as where:
        console.print(f"broker, GM and nodes {', '.join(live.NODES)} run; broker at {where.broker}")
        async with Client(MqttBus(f"demo-{secrets.token_hex(4)}", where.settings)) as client:
            await recorder.listen(client.bus)
            for manifest in load_manifests([str(HERE)]):
                outcome, _ = await client.apply(manifest.resource.body)
                console.print(f"{manifest.resource.key} {outcome}")
            await recorder.until("Running", live.START, recorder.running)
            demo = Demo(made, where, recorder, console)
            await demo.run()
            with contextlib.suppress(HalimedeError):  # the page says whether the node came back
                await recorder.until("Running again", FINISH, recorder.running)
    return _write(demo, recorder, out, console)


def _write(demo: Demo, recorder: Recorder, out: Path, console: Console) -> dict[str, Any]:
    things = [name for name, _ in pictures.objects()]
    spec = next(m.resource.spec for m in load_manifests([str(HERE)]) if m.resource.key.name == "street-features")
    with open_model(train.FOLDER / "embedder.onnx", spec) as model:
        street = measure.street(demo.runs["street"], demo.made.seconds, model, things)
    told = report.Told(
        seconds=demo.made.seconds,
        runs=demo.runs,
        street=street,
        board=measure.board(demo.runs["board"], recorder.fused, demo.made.shown),
        shown=demo.made.shown,
        share=measure.shares(demo.runs["full"], live.NODES),
        wait_ms=WAIT_MS,
        killed=measure.takeover(demo.runs["calm"], demo.killed_ns, VICTIM, VICTIMS_CAMERA),
        killed_ns=demo.killed_ns,
        victim=VICTIM,
        processes=len(demo.killed),
        skipped=sum(status.skipped for status in recorder.cameras.values())
        + sum(recorder.metric(name, "skipped") for name in SERVICES),
        repeated=recorder.repeated,
        asked=(ASKED_FOR, demo.asked),
        status={name: msgspec.to_builtins(document) for name, document in recorder.services.items()},
    )
    found = report.figures(told)
    title = "multi-edge inference"
    write_report(out, found, page.page(told, found), report.table(found), title=title, console=console)
    return found


def main() -> None:
    """Run the demo; exit 1 with one line if it fails, or if what it shows is not what it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=24.0, help="length of the longest film, 8 at least")
    parser.add_argument("--out", type=Path, default=Path("build/demo-multi-edge"), help="folder of the report")
    add_security(parser)
    options = parser.parse_args()
    if options.seconds < 8:
        parser.error("--seconds must be 8 at least: objects need time to cross the plane")
    log.configure("ERROR")
    with errors_in_a_line():
        found = asyncio.run(run(options.seconds, options.out, security(options), Console()))
    end(report.missed(found))


if __name__ == "__main__":
    main()
