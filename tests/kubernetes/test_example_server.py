"""The file server of examples/kubernetes: it serves the models, and ends as soon as Kubernetes asks it to."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import aiohttp

from tests.kubernetes.world import documents
from tests.ports import free_port
from tests.waiting import patience

MODELS = Path(__file__).parents[2] / "examples" / "kubernetes" / "models.yaml"


async def test_it_serves_files_and_ends_by_itself_at_sigterm(tmp_path: Path) -> None:
    """As the first process of a container it gets no signal that it does not handle: an exit code of 0 shows it."""
    (deployment,) = (body for body in documents(MODELS) if body["kind"] == "Deployment")
    command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    port = free_port()
    (tmp_path / "small.onnx").write_bytes(b"model")
    assert command[0] == "python"
    told = [part.replace("8080", str(port)).replace("/models", str(tmp_path)) for part in command[1:]]
    server = await asyncio.create_subprocess_exec(sys.executable, *told, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(patience(30)), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(f"http://127.0.0.1:{port}/small.onnx") as answer:
                        assert await answer.read() == b"model"
                    break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.1)
            server.send_signal(signal.SIGTERM)
            assert await server.wait() == 0
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
