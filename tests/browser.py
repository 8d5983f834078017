"""A real Chromium without a window, over its own debugging protocol: looks at a page, presses keys, takes pictures."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.waiting import eventually, patience

PATIENCE = 30.0
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-extensions",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--no-proxy-server", "--remote-debugging-port=0",
)  # fmt: skip


def chromium() -> str:
    """Return the browser's path; without one the tests of the page cannot say anything, so they fail."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "chromium is missing: scripts/setup.sh browser installs it"
    return found


class Tab:
    """One open page. ``said``: what its console and its uncaught errors said."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.said: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(patience(PATIENCE)):
            reply = await answer
        assert "error" not in reply, reply
        result: dict[str, Any] = reply["result"]
        return result

    async def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)

    async def evaluate(self, script: str) -> Any:
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until a script gives something true, and return it."""
        return await eventually(lambda: self.evaluate(script), PATIENCE, 0.1)

    async def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = key if kind == "keyDown" and len(key) == 1 else ""
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text)

    async def resize(self, width: int, height: int, *, mobile: bool = False, dark: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )
        scheme = "dark" if dark else "light"
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def picture(self, path: Path) -> bytes:
        taken = await self.call("Page.captureScreenshot", format="png")
        data = base64.b64decode(taken["data"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return data

    async def listen(self) -> None:
        async for message in self._socket:
            heard = json.loads(message.data)
            if heard.get("id") in self._answers:
                self._answers.pop(heard["id"]).set_result(heard)
            elif heard.get("method") == "Runtime.exceptionThrown":
                self.said.append(json.dumps(heard["params"]["exceptionDetails"]))
            elif heard.get("method") in {"Log.entryAdded", "Runtime.consoleAPICalled"}:
                self.said.append(json.dumps(heard["params"]))


@contextlib.asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Tab]:
    """Start a browser with a profile in ``folder``, yield its one tab, end it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "chromium.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            chromium(), *FLAGS, f"--user-data-dir={folder}", "about:blank", stdout=log, stderr=log
        )
    ports = folder / "DevToolsActivePort"
    try:
        port = (await eventually(lambda: ports.exists() and ports.read_text().split(), PATIENCE))[0]
        async with aiohttp.ClientSession(trust_env=False) as session:
            tabs = await (await session.get(f"http://127.0.0.1:{port}/json/list")).json(content_type=None)
            address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as socket:
                tab = Tab(socket)
                listening = asyncio.create_task(tab.listen())
                try:
                    yield tab
                finally:
                    listening.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
