"""Scripts of a model in its trial: what a hostile or a broken one does there ends there, and is named."""

from __future__ import annotations

import json
import socket
import textwrap
from pathlib import Path
from typing import Any

import pytest

from halimede.models.model_trial import Trial, TrialLimits, TrialReason, try_model
from tests.hostile_models import harmless

LIMITS = TrialLimits(memory_bytes=512 * 1024**2)
#: only for scripts that hang: a busy machine may not give the others a second of processor time within 4 s
SHORT_LIMITS = TrialLimits(memory_bytes=512 * 1024**2, seconds=1)
POST: dict[str, Any] = {"postprocess": {"script": {"file": "post.py"}}}
PRE: dict[str, Any] = {"preprocess": [{"op": "script", "file": "post.py"}], "postprocess": {"activation": "softmax"}}
FIELD = "spec.postprocess.script: postprocess of post.py"


async def tried(folder: Path, code: str, spec: dict[str, Any] = POST, limits: TrialLimits = LIMITS) -> Trial:
    model = harmless(folder / "model.onnx")
    (folder / "post.py").write_text(textwrap.dedent(code))
    return await try_model(model, json.dumps(spec), limits)


def body(*lines: str) -> str:
    return "import os, pathlib, socket, subprocess, sys\ndef postprocess(outputs, size):\n" + "".join(
        f"    {line}\n" for line in lines
    )


async def test_a_script_that_works_stands_its_trial(tmp_path: Path) -> None:
    trial = await tried(tmp_path, body("print('x' * 10_000)", "return outputs['y'][0].max()"))
    assert (trial.ok, trial.reason, trial.message) == (True, "", "")
    assert [info.name for info in trial.outputs] == ["y"]


async def test_a_script_that_waits_for_the_processor_has_more_time_by_the_clock(tmp_path: Path) -> None:
    """The limit is of processor time: on a busy machine others have the processor meanwhile, as in this sleep."""
    limits = TrialLimits(seconds=2.5)  # 7 s by the clock are left for the start of a busy machine
    for _ in range(5):  # a very busy one may take all of them
        trial = await tried(tmp_path, body("__import__('time').sleep(2.6)", "return 1.0"), limits=limits)
        if trial.reason != TrialReason.SLOW:
            break
    assert (trial.ok, trial.reason, trial.message) == (True, "", "")


@pytest.mark.parametrize(
    ("code", "spec", "says"),
    [
        (body("while True: pass"), POST, f"{FIELD} was not ready within 1 s"),
        ("while True: pass\n", POST, "spec.postprocess.script: post.py was not ready within 1 s"),
        ("def preprocess(image):\n    while 1: pass\n", PRE, "spec.preprocess[0]: preprocess of post.py was not ready"),
        (body("while True:", "    try: print('x' * 100_000)", "    except BaseException: pass"), POST, FIELD),
    ],
    ids=["when it is called", "when it is loaded", "before the model", "and writes without end"],
)
async def test_a_script_that_hangs_is_named(tmp_path: Path, code: str, spec: dict[str, Any], says: str) -> None:
    for _ in range(5):  # on a busy machine, the time may be over before the script is reached
        trial = await tried(tmp_path, code, spec, SHORT_LIMITS)
        if not trial.message.startswith("the model"):
            break
    assert (trial.ok, trial.reason) == (False, TrialReason.SLOW)
    assert trial.message.startswith(says)


@pytest.mark.parametrize("code", [0, 3])
async def test_a_script_that_ends_the_process_is_named(tmp_path: Path, code: int) -> None:
    trial = await tried(tmp_path, body(f"os._exit({code})"))
    assert (trial.ok, trial.reason) == (False, TrialReason.CRASHED)
    assert trial.message.startswith(f"{FIELD} ended its process (exit code {code})")


async def test_a_script_that_takes_all_memory_is_named(tmp_path: Path) -> None:
    trial = await tried(tmp_path, body("return bytes(4 << 30)"))
    assert (trial.ok, trial.reason) == (False, TrialReason.MEMORY)


@pytest.mark.parametrize(
    "action",
    [
        "open('{0}', 'w').write('x')",
        "open('{0}', 'a').write('x')",
        "os.remove('{0}')",
        "os.rename('{0}', '{0}2')",
        "os.truncate('{0}', 0)",
        "os.mkdir('{0}.d')",
        "os.symlink('/etc', '{0}.l')",
        "subprocess.run(['rm', '{0}'], check=True)",
    ],
)
async def test_a_script_that_writes_where_it_must_not_is_refused_and_nothing_is_written(
    tmp_path: Path, action: str
) -> None:
    precious = tmp_path / "elsewhere" / "precious.txt"
    precious.parent.mkdir()
    precious.write_text("all of it")
    trial = await tried(tmp_path, body(action.format(precious), "return 'x'"))
    assert (trial.ok, trial.reason) == (False, TrialReason.SCRIPT)
    assert trial.message.startswith(f"{FIELD} raised ")
    assert [(each.name, each.read_text()) for each in precious.parent.iterdir()] == [("precious.txt", "all of it")]


async def test_a_script_cannot_connect_in_its_trial(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        trial = await tried(tmp_path, body(f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]}))"))
    assert (trial.ok, trial.reason) == (False, TrialReason.SCRIPT)
    assert "PermissionError" in trial.message
