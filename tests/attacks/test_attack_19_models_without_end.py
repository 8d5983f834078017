"""Attack 19: an ONNX file of a few hundred bytes that wants all memory, or all time. It is tried before it serves.

The trial is a process of its own with limits. The others live on, nothing of it is left, and the reason is told.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from halimede.models.model_trial import TrialLimits, TrialReason, try_model
from tests.hostile_models import endless, huge
from tests.simulated import eventually

MEGABYTE = 1024**2
MEMORY = TrialLimits(memory_bytes=256 * MEGABYTE, seconds=30)


#: tries a model in a process that has had no other children: the largest of them all is the trial
TRY = """
import asyncio, json, resource, sys
from pathlib import Path
from halimede.models.model_trial import TrialLimits, try_model

trial = asyncio.run(try_model(Path(sys.argv[1]), "{}", TrialLimits(memory_bytes=int(sys.argv[2]), seconds=30)))
print(json.dumps([trial.ok, trial.reason, trial.message, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]))
"""


def trials() -> list[psutil.Process]:
    """Return the trials that run as children of this process."""
    children = psutil.process_iter(["ppid", "cmdline"])
    own = [child for child in children if child.info["ppid"] == os.getpid()]
    return [child for child in own if "halimede.inference.trial" in " ".join(child.info["cmdline"] or ())]


@pytest.mark.parametrize("folded", [True, False], ids=["when it is loaded", "when it answers"])
async def test_attack_19_a_huge_tensor_ends_the_trial_and_nothing_else(tmp_path: Path, folded: bool) -> None:
    model = huge(tmp_path / "m.onnx", folded=folded)
    arguments = ("-c", TRY, str(model), str(MEMORY.memory_bytes))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), 120)
    ok, reason, message, most_kilobytes = json.loads(output.splitlines()[-1])
    assert (ok, reason) == (False, TrialReason.MEMORY)
    assert "more than 256 MiB" in message
    assert most_kilobytes < 1024 * 1024, "it had its gigabyte"


async def test_attack_19_an_endless_loop_ends_at_the_limit(tmp_path: Path) -> None:
    began = time.monotonic()
    trial = await try_model(endless(tmp_path / "m.onnx"), "{}", TrialLimits(seconds=2))
    assert (trial.ok, trial.reason) == (False, TrialReason.SLOW)
    assert "within 2 s" in trial.message
    assert time.monotonic() - began >= 2
    assert trials() == []


async def test_attack_19_nobody_who_gives_up_leaves_it_running(tmp_path: Path) -> None:
    trying = asyncio.create_task(try_model(endless(tmp_path / "m.onnx"), "{}"))
    await eventually(lambda: len(trials()) == 1, 30)
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying
    assert trials() == []
