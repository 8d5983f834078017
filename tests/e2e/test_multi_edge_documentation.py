"""docs/multi-edge.md: every line is typed in as it stands there, its resource is one, its application runs."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from halimede import api, codec, topics
from halimede.messages import Box, Fused, Prediction, Result
from halimede.multiedge import Finding, Item, JointTools, Tools
from halimede.multiedge.stage import Parameters
from tests.e2e.running import digits, running
from tests.e2e.shell import begin, blocks, end_of, environment, type_line
from tests.e2e.test_documentation import NOT_RUN, commands
from tests.inbox import Inbox
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
DOCUMENT = "docs/multi-edge.md"


def labelled(folder: Path) -> dict[str, str]:
    """Write what the lines about calibration read: two cameras that are sure of themselves, one of them rightly."""
    random = np.random.default_rng(1)
    rows, results, truth = ["instant,camera,truth,a,b"], [], ["camera,sequence,truth"]
    for i in range(60):
        known = "ab"[i % 2]
        for camera, right in (("cam0", 0.95), ("cam1", 0.6)):
            said = known if random.random() < right else "ba"[i % 2]
            p = [0.9, 0.1] if said == "a" else [0.1, 0.9]
            rows.append(f"{i},{camera},{known},{p[0]},{p[1]}")
            truth.append(f"{camera},{i},{known}")
            own = Prediction(label=said, score=0.9, probabilities=p, value={"labels": ["a", "b"]})
            joint = Prediction(label=said, value={"instant": float(i)})
            result = Result(id=f"{len(results):032x}", service="views", camera=camera, sequence=i, by="joint",
                            prediction=joint, edge=own, worker="w")  # fmt: skip
            results.append(codec.encode(topics.MULTI_RESULT, result).decode())
    files = {"LABELLED": rows, "RESULTS": results, "TRUTH": truth}
    for name, content in files.items():
        (folder / f"{name}.csv").write_text("\n".join(content))
    return {name: str(folder / f"{name}.csv") for name in files}


async def test_the_lines_that_need_no_system(tmp_path: Path) -> None:
    lines = [line for line in commands(DOCUMENT) if "python -m" in line]
    assert sum("multiedge.show" in line for line in lines) >= 4
    env = environment(tmp_path, **labelled(tmp_path))
    outputs = [await type_line(line, env) for line in lines]
    assert any('key: "weight.cam1"' in output for output in outputs)
    votes = json.loads(next(output for output in outputs if output.startswith("{")))["parameters"]
    assert float(votes["weight.cam0"]) > 2 * float(votes["weight.cam1"])
    assert any("source -> motion -> crop -> classify -> count => total -> sink" in output for output in outputs)


def test_the_resource_is_one() -> None:
    (block,) = blocks(DOCUMENT, "yaml")
    for text in (block, re.sub(r"^  # ", "  ", block, flags=re.MULTILINE)):
        resource = api.parse(yaml.safe_load(text))
        assert [worker.name for worker in resource.spec.edge_workers] == ["left", "right"]
    assert resource.spec.cloud_worker.model.name == "big"


def test_the_application_runs(tmp_path: Path) -> None:
    names: dict[str, object] = {}
    (program,) = blocks(DOCUMENT, "python")
    exec(compile(program, DOCUMENT, "exec"), names)  # it is ours
    application = names["application"](Parameters({}))  # type: ignore[operator]
    stage = application.stages[1](Tools({}, Parameters({})))
    joint = application.joint(JointTools(Parameters({}), tmp_path))
    for count in (1, 3, 2):
        item = Item(np.zeros((4, 4), np.uint8), prediction=Prediction(boxes=[Box(0, 0, 1, 1, 1.0)] * count))
        stage.run([item])
        assert joint.take([Finding(b"k", "cam0", "w", "n", 0, 1, item.prediction)], 0.0).answers == {b"k": None}
    assert joint.metrics() == {"most": 3}


async def test_the_lines_of_a_running_system(tmp_path: Path) -> None:
    lines = [line for line in commands(DOCUMENT) if line.startswith("halimede") and not line.startswith(tuple(NOT_RUN))]
    assert len(lines) >= 6
    digits()
    async with running(tmp_path / "home") as system:
        env = environment(system.home)
        together: Inbox[Fused] = Inbox()
        await system.bus.subscribe(topics.FUSED.filter(), together)
        beside: list[tuple[str, asyncio.subprocess.Process]] = []
        for line in lines:
            if line.startswith("halimede publish") and not beside:
                await until_running(env)
            process = await begin(line.removesuffix("&"), env)
            if line.endswith("&"):
                beside.append((line, process))
                continue
            output = await end_of(line, process)
            if line.startswith("halimede results"):
                assert "joint" in output
            if line.startswith("halimede describe"):
                for background in beside:
                    await end_of(*background)
        assert sum(number == 2 for number in together.read(lambda body: len(body.sources))) >= 10


async def until_running(env: dict[str, str]) -> None:
    async def runs() -> bool:
        document = await type_line("halimede get mei views -o json", env)
        return bool(json.loads(document).get("status", {}).get("phase") == "Running")

    await eventually(runs, 60, 0.3)
