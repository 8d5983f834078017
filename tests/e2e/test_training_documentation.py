"""docs/training.md, its commands typed in: the example trains, and its Model gets a version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.running import ROOT, digits, running
from tests.e2e.test_training_model import until
from tests.e2e.test_tutorial import NOT_TYPED, typed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def commands() -> list[str]:
    [block] = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "training.md").read_text(), re.DOTALL | re.MULTILINE)
    return [line for line in block.splitlines() if not line.startswith(NOT_TYPED)]


async def test_the_commands_of_the_page_train_the_example(tmp_path: Path) -> None:
    digits()  # what `make train` makes
    async with running(tmp_path / "home", "edge0,edge1,edge2,cloud0") as system:
        said = {line: await typed(line, ROOT, tmp_path / "home") for line in commands()}
        assert "digits-small" in said["halimede get tm"]
        assert "node2" in said["halimede describe tm digits"]
        found = await until(system.client, "digits", lambda s: s.get("phase") == "Done")
        assert found["conditions"][-1]["reason"] in {"TargetReached", "RoundsDone"}
        accuracy = next(float(each["value"]) for each in found["training"]["metrics"] if each["key"] == "accuracy")
        assert accuracy > 0.9
        model = await system.client.get("models", "digits-small")
        assert model["spec"]["targetVersion"] == found["training"]["version"]
