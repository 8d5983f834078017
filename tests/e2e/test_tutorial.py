"""docs/tutorial.md, typed in from top to bottom: its files are written, its commands run, its systems start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from PIL import Image, ImageColor

from halimede import topics
from halimede.frames.drawing import EDGE_COLOUR, FINAL_COLOUR
from halimede.messages import Result
from tests.e2e.running import ROOT, System, digits, running
from tests.e2e.shell import environment, type_line
from tests.inbox import Inbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TEXT = (ROOT / "docs" / "tutorial.md").read_text()
#: the command needs a service that has its present generation
AFTER_RUNNING = ("halimede publish", "halimede camera")
#: the environment of the tests has both
NOT_TYPED = (". .venv", "make train")


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Yield files to save (their path and text) and lines to type ("" and the line), in the order of a page."""
    for language, body in re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language in {"yaml", "python"}:
            yield body.splitlines()[0].removeprefix("# "), body
        elif language == "sh":
            yield from (("", line) for line in body.splitlines() if not line.startswith(NOT_TYPED))


async def runs_as_applied(system: System) -> None:
    """Wait until the service runs with the generation that was applied last."""
    body = await system.client.get("jointinferenceservices", "mine")
    generation = body["metadata"]["generation"]

    def done() -> bool:
        return system.phase == "Running" and system.status.status.observed_generation == generation

    await system.until("Running", done)


async def answers(system: System, before: set[str], number: int) -> list[Result]:
    """Wait for a number of results that were not there before; return them."""
    await system.until(f"{number} answers", lambda: len(set(system.results) - before) >= number)
    return [system.results[name] for name in set(system.results) - before]


async def drawn_photo(system: System, line: str, folder: Path, home: Path) -> None:
    """Type the line that publishes the photo; its digits are in the answer, and both models' boxes in the drawing."""
    inbox: Inbox[Result] = Inbox()
    await system.bus.subscribe(topics.RESULT.filter(ns="default", service="yard"), inbox)
    assert "1 answer drawn" in await type_line(line, environment(home), folder)
    (path,) = (folder / "my" / "boxes").iterdir()
    assert f"`my/boxes/{path.name}`" in TEXT
    with Image.open(path) as picture:
        shown = {pixel for _, pixel in picture.convert("RGB").getcolors(picture.width * picture.height) or []}
    for colour in map(ImageColor.getrgb, (EDGE_COLOUR, FINAL_COLOUR)):
        assert any(max(abs(a - b) for a, b in zip(colour, pixel, strict=True)) < 8 for pixel in shown), colour
    await system.until("the answer to the photo", lambda: inbox.deliveries)
    result = inbox.deliveries[0].body
    assert result.by == "cloud"
    assert {box.label for box in result.prediction.boxes or () if box.score > 0.6} == {"0", "1", "2"}


async def test_the_tutorial_from_two_files_to_a_budget_on_two_nodes(tmp_path: Path) -> None:
    digits()
    home, folder = tmp_path / "home", tmp_path / "clone"
    folder.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    found = list(steps(TEXT))
    assert sum(bool(path) for path, _ in found) == 4
    assert len(found) >= 25
    answered, uploads = [], {}
    async with AsyncExitStack() as stack:
        system: System | None = None
        for path, text in found:
            if path:
                (folder / path).write_text(text)
            elif "--camera yard" in text:
                assert system
                await drawn_photo(system, text, folder, home)
            elif start := re.fullmatch(r'make up ARGS="--nodes (\S+)"', text):
                await stack.aclose()
                system = await stack.enter_async_context(running(home, start[1]))
                await system.follow("mine")
            else:
                assert system, "the page starts the system before it types a command"
                if text.startswith(AFTER_RUNNING):
                    await runs_as_applied(system)
                before = set(system.results)
                shown = await type_line(text, environment(home), folder)
                if text.startswith(AFTER_RUNNING):
                    said = re.search(r"(\d+) frames sent", shown)
                    sent = int(said[1]) if said else len(list((ROOT / "examples/digits/pictures").iterdir()))
                    fresh = await answers(system, before, sent)
                    uploads[len(answered)] = sum(result.by == "cloud" for result in fresh) / len(fresh)
                    answered.append((text, {result.worker for result in fresh}))
        assert system
        await system.until("the page deletes its service", lambda: system.status is None)
    assert len(answered) == 5
    assert any("door" in text for text, _ in answered)
    # a budget of 15 %, then of 5 %, held by two nodes
    assert 0.08 < uploads[1] < 0.25
    assert uploads[4] < 0.6 * uploads[1]
    assert {worker for _, workers in answered[3:] for worker in workers} >= {"mine-edge-edge0", "mine-edge-edge1"}
