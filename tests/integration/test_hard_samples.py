"""Kept hard samples over a real broker: `halimede hard` lists, shows and exports what a worker's disk holds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import Result

from services.broker import MosquittoProcess
from tests.digits import ALL_HARD, Digits
from tests.e2e.test_documentation import commands
from tests.integration.workers import Site
from tests.typed import typed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

KEEP = json.dumps({"maxMegabytes": 10, "maxSamples": 5})


async def run(broker: MosquittoProcess, *command: str, code: int = 0) -> Result:
    """Run ``halimede hard`` in a thread: its answers come from this loop or another process."""
    return await asyncio.to_thread(typed, "hard", *command, "--broker", broker.url, code=code)


async def test_kept_samples_are_listed_shown_and_exported_after_a_restart(
    s: Site, tmp_path: Path, digits: Digits
) -> None:
    async def hard(*command: str) -> str:
        return (await run(s.broker, *command)).stdout

    edge, _ = await s.run_both(digits, KEEP_HARD_SAMPLES=KEEP, **ALL_HARD)
    await s.send_all(digits.pictures[:8], fps=50)
    await edge.terminate()
    await s.run_edge(digits.small, KEEP_HARD_SAMPLES=KEEP, **ALL_HARD)

    listed = [json.loads(line) for line in (await hard("list", s.service, "-o", "json")).splitlines()]
    assert len(listed) == 5  # the oldest of eight have made room
    for each in listed:
        result = s.results[each["id"]]
        assert result.edge is not None
        row = [each[key] for key in ("worker", "label", "by", "camera", "edgeLabel")]
        assert row == [s.edge, result.label, "cloud", s.service, result.edge.label]
    assert len((await hard("list", s.service, "--limit", "2", "-o", "json")).splitlines()) == 2
    assert listed[0]["id"] in await hard("list", s.service)
    assert not await hard("list", s.service, "--label", "nothing", "-o", "json")

    one = listed[0]["id"]
    shown = json.loads(await hard("show", one, "--out", str(tmp_path / "one.png")))
    assert (shown["final"]["label"], shown["final"]["worker"]) == (s.results[one].label, s.cloud)
    assert (tmp_path / "one.png").read_bytes() in digits.pictures

    for by, label in (("cloud", "label"), ("edge", "edgeLabel")):
        out = tmp_path / by
        assert f"5 samples in {out}" in await hard("export", str(out), "-s", s.service, "--by", by)
        manifest = [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]
        assert {each["id"]: each["file"] for each in manifest} == {
            each["id"]: f"{each[label]}/{each['id']}.png" for each in listed
        }
        assert all((out / each["file"]).read_bytes() in digits.pictures for each in manifest)

    labelled = tmp_path / "cloud"
    assert "5 of 5 labels stored, by anna" in await hard("label", "--folder", str(labelled), "--by", "anna")
    assert "1 of 1 labels stored, by ben" in await hard("label", one, "7", "--by", "ben")
    found = json.loads(await hard("show", one))["labels"]
    assert found == [{"label": listed[0]["label"], "by": "anna"}, {"label": "7", "by": "ben"}]
    refused = await run(s.broker, "label", one, "x", code=1)
    assert "label 'x' is no class of the model: use one of 0, 1" in refused.stderr

    # the lines of docs/hard-samples.md, as they stand there; a classifier's samples have no boxes to export
    elsewhere = ("--format coco", "--folder")
    lines = [line for line in commands("docs/hard-samples.md") if not any(option in line for option in elsewhere)]
    assert len(lines) == 7
    for line in lines:
        words = line.replace("digits", s.service).replace("0123456789abcdef" * 2, one).split()[2:]
        path = {"hard/": str(tmp_path / line.replace("/", "")), "hard.png": str(tmp_path / "hard.png")}
        await hard(*(path.get(word, word) for word in words))


async def test_what_is_not_kept_is_said(mosquitto: MosquittoProcess, tmp_path: Path) -> None:
    async def refusal(*command: str) -> str:
        return (await run(mosquitto, *command, code=1)).stderr

    for command in (["list"], ["show", "0" * 32], ["export", str(tmp_path / "out")]):
        assert "set keepHardSamples in the service's edgeWorker" in await refusal(*command)
    assert "write 32 hexadecimal digits" in await refusal("show", "mine")
    assert "give an ID and a LABEL, or --folder" in await refusal("label")
    assert "make it with `halimede hard export`" in await refusal("label", "--folder", str(tmp_path))
