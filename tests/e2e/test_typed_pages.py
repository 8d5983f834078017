"""Pages whose lines are typed in as they stand there: docs/calibration.md, commands.md, serving.md, training.md."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.running import digits, running
from tests.e2e.shell import begin, blocks, end_of, environment, halimede, type_line
from tests.e2e.test_documentation import commands
from tests.e2e.test_training_model import until
from tests.e2e.test_tutorial import NOT_TYPED
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
SERVERS = ("halimede serve", "halimede router")


async def test_the_page_of_calibration_ends_with_a_service_that_takes_what_came_of_it(tmp_path: Path) -> None:
    lines = [line.replace("build/digits", str(tmp_path / "digits")) for line in commands("docs/calibration.md")]
    assert [line.split()[1] for line in lines] == ["-m", "calibrate", "evaluate", "apply", "publish", "describe"]
    digits()
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        await system.follow("digits")
        for line in lines:
            if line.startswith("halimede publish"):
                await system.until_running()
            if line.startswith("halimede describe"):
                await system.until("answers", lambda: len(system.results) == 450)
            shown = await type_line(line, environment(system.home))
        assert "digits" in shown
        report = json.loads((tmp_path / "digits" / "evaluation.json").read_text())
        assert {"Margin", "Learned"} <= set(report["curves"])
        assert report["edge_only"] < report["operating_point"]["accuracy"]
        assert report["operating_point"]["target_upload_ratio"] == 0.15
        # the calibrated rule decides: it says how hard each sample is, and about the budget goes up
        assert all(result.hardness is not None for result in system.results.values())
        assert 0.05 < sum(result.hard for result in system.results.values()) / 450 < 0.3


async def test_the_lines_of_the_operators_commands(tmp_path: Path) -> None:
    lines = [line for line in commands("docs/commands.md") if line.startswith("halimede")]
    assert len(lines) >= 15
    digits()
    async with running(tmp_path / "home") as system:
        await system.run_digits()
        for line in lines:
            await halimede(system.home, *shlex.split(line.replace("$REC", str(tmp_path / "recording")))[1:])
        await system.until("answers", lambda: len(system.results) >= 100)


@pytest.mark.timeout(400)
async def test_the_page_of_training_trains_the_example_and_its_model_gets_a_version(tmp_path: Path) -> None:
    digits()  # what `make train` makes
    async with running(tmp_path / "home", "edge0,edge1,edge2,cloud0") as system:
        (block,) = blocks("docs/training.md", "sh")
        lines = [line for line in block.splitlines() if not line.startswith(NOT_TYPED)]
        outputs = {line: await type_line(line, environment(system.home)) for line in lines}
        assert "digits-small" in outputs["halimede get tm"]
        assert "node2" in outputs["halimede describe tm digits"]
        status = await until(system.client, "digits", lambda s: s.get("phase") == "Done")
        assert status["conditions"][-1]["reason"] in {"TargetReached", "RoundsDone"}
        accuracy = next(
            float(metric["value"]) for metric in status["training"]["metrics"] if metric["key"] == "accuracy"
        )
        assert accuracy > 0.9
        model = await system.client.get("models", "digits-small")
        assert model["spec"]["targetVersion"] == status["training"]["version"]


async def test_the_lines_of_the_servers(tmp_path: Path) -> None:
    lines = commands("docs/serving.md")
    assert sum(line.startswith(SERVERS) for line in lines) == 3
    assert sum(line.startswith("curl") for line in lines) == 4
    digits()
    variables = environment("", HOME=str(tmp_path), REQUEST=str(tmp_path / "request.json"))
    servers: list[asyncio.subprocess.Process] = []
    try:
        for line in lines:
            process = await begin(f"exec {line}", variables)
            if line.startswith(SERVERS):
                servers.append(process)
                await ready(line.rpartition("--http ")[2].split()[0], process)
                continue
            output = await end_of(line, process)
            if "18504" in line:
                assert '"by"' in output, output
        for process in servers:
            process.terminate()
            await end_of("server", process)
    finally:
        for process in servers:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def ready(address: str, process: asyncio.subprocess.Process) -> None:
    async with aiohttp.ClientSession() as session:

        async def is_ready() -> bool:
            assert process.returncode is None, (await process.stdout.read()).decode() if process.stdout else ""
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://{address}/readyz") as answer:
                    return answer.status == 200
            return False

        await eventually(is_ready, 60, 0.1)
