"""Kept hard samples over a real broker: `halimede hard` lists, shows and exports what a worker's disk holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from halimede.cli.app import app
from services.broker import MosquittoProcess
from tests.digits import ALL_HARD, Digits
from tests.e2e.test_documentation import commands
from tests.integration.workers import site
from tests.simulated import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

KEEP = json.dumps({"maxMegabytes": 10, "maxSamples": 5})


def run(mosquitto: MosquittoProcess, *command: str) -> str:
    done = CliRunner().invoke(app, ["hard", *command, "--broker", mosquitto.url])
    assert done.exit_code == 0, done.output
    return done.stdout


async def test_kept_samples_are_listed_shown_and_exported_after_a_restart(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, digits: Digits
) -> None:
    import asyncio

    async def typed(*command: str) -> str:
        return await asyncio.to_thread(run, mosquitto, *command)

    async with site(mosquitto, unique, tmp_path) as s:
        s.start("cloud", f"{unique}-c", digits.big)
        edge = s.start("edge", f"{unique}-e", digits.small, KEEP_HARD_SAMPLES=KEEP, **ALL_HARD)
        await s.running(f"{unique}-c", f"{unique}-e")
        await s.send(digits.pictures[:8], fps=50)
        await eventually(lambda: len(s.results) == 8)
        await edge.terminate()
        s.start("edge", f"{unique}-e", digits.small, KEEP_HARD_SAMPLES=KEEP, **ALL_HARD)
        await s.running(f"{unique}-e")

        listed = [json.loads(line) for line in (await typed("list", unique, "-o", "json")).splitlines()]
        assert len(listed) == 5  # the oldest of eight have made room
        assert {each["worker"] for each in listed} == {f"{unique}-e"}
        for each in listed:
            result = s.results[each["id"]]
            assert (each["label"], each["by"], each["camera"]) == (result.label, "cloud", unique)
            assert result.edge is not None
            assert each["edgeLabel"] == result.edge.label
        assert len((await typed("list", unique, "--limit", "2", "-o", "json")).splitlines()) == 2
        assert listed[0]["id"] in await typed("list", unique)
        assert not await typed("list", unique, "--label", "nothing", "-o", "json")

        one = listed[0]["id"]
        shown = json.loads(await typed("show", one, "--out", str(tmp_path / "one.png")))
        assert (shown["final"]["label"], shown["final"]["worker"]) == (s.results[one].label, f"{unique}-c")
        assert (tmp_path / "one.png").read_bytes() in digits.pictures

        for by, label in (("cloud", "label"), ("edge", "edgeLabel")):
            out = tmp_path / by
            assert f"5 samples in {out}" in await typed("export", str(out), "-s", unique, "--by", by)
            manifest = [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]
            assert {each["id"]: each["file"] for each in manifest} == {
                each["id"]: f"{each[label]}/{each['id']}.png" for each in listed
            }
            assert all((out / each["file"]).read_bytes() in digits.pictures for each in manifest)

        labelled = tmp_path / "cloud"
        assert "5 of 5 labels stored, by anna" in await typed("label", "--folder", str(labelled), "--by", "anna")
        assert "1 of 1 labels stored, by ben" in await typed("label", one, "7", "--by", "ben")
        found = json.loads(await typed("show", one))["labels"]
        assert found == [{"label": listed[0]["label"], "by": "anna"}, {"label": "7", "by": "ben"}]
        refused = await asyncio.to_thread(
            CliRunner().invoke, app, ["hard", "label", one, "x", "--broker", mosquitto.url]
        )
        assert refused.exit_code == 1
        assert "label 'x' is no class of the model: use one of 0, 1" in refused.stderr

        # the lines of docs/hard-samples.md, as they stand there; a classifier's samples have no boxes to export
        lines = [
            line for line in commands("docs/hard-samples.md") if "--format coco" not in line and "--folder" not in line
        ]
        assert len(lines) == 7
        for line in lines:
            words = line.replace("digits", unique).replace("0123456789abcdef" * 2, one).split()[2:]
            path = {"hard/": str(tmp_path / line.replace("/", "")), "hard.png": str(tmp_path / "hard.png")}
            await typed(*(path.get(word, word) for word in words))


async def test_what_is_not_kept_is_said(mosquitto: MosquittoProcess, tmp_path: Path) -> None:
    import asyncio

    def refused(*command: str) -> str:
        done = CliRunner().invoke(app, ["hard", *command, "--broker", mosquitto.url])
        assert done.exit_code == 1
        return done.stderr

    for command in (["list"], ["show", "0" * 32], ["export", str(tmp_path / "out")]):
        assert "set keepHardSamples in the service's edgeWorker" in await asyncio.to_thread(refused, *command)
    assert "write 32 hexadecimal digits" in await asyncio.to_thread(refused, "show", "mine")
    assert "give an ID and a LABEL, or --folder" in await asyncio.to_thread(refused, "label")
    assert "make it with `halimede hard export`" in await asyncio.to_thread(refused, "label", "--folder", str(tmp_path))
