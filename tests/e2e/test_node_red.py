"""examples/integrator/flow.json in a real Node-RED: pictures in, results and events out, and what a user sees fail."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from PIL import Image

from halimede import topics
from tests.browser import browser
from tests.e2e.running import ROOT, digits, running
from tests.e2e.test_documentation import HOME
from tests.npm import npm_package
from tests.password_broker import PasswordBroker, password_broker
from tests.ports import free_port
from tests.programs import run_program, started
from tests.waiting import eventually

EXAMPLE = ROOT / "examples" / "integrator"
FLOW = json.loads((EXAMPLE / "flow.json").read_text())
NODE_RED = "node-red@4.1.15"
DOCUMENT = (EXAMPLE / "README.md").read_text()
#: of the document: one that serves a picture, and one that shows why a connection fails
COMMANDS = re.findall(r"^```sh\n(.*?)\n```", DOCUMENT, re.DOTALL | re.MULTILINE)
#: users of the flow's two brokers, by the name of their folder in a site
USERS = {"camera.cam0": "cameras/cam0", "consumer.viewer": "consumers/viewer"}
#: what Node-RED logs when all nodes of a flow run
STARTED = "Started flows"
#: nodes that show the state of a connection
CONNECTED = ("frames", "results", "occupancy")


def by_id(name: str) -> dict[str, Any]:
    """Return a node of the flow by the last part of its id."""
    (node,) = (node for node in FLOW if node["id"] == f"halimede.{name}")
    return node


def without_positions(nodes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return nodes in the order of their ids, as Node-RED gives them: no positions, no credentials."""
    hidden = ("x", "y", "credentials")
    return sorted(
        ({key: node[key] for key in node if key not in hidden} for node in nodes), key=lambda node: node["id"]
    )


class NodeRed:
    """A running Node-RED, and what its editor shows: the status under each node, and the lines of the debug sidebar."""

    def __init__(self, address: str, session: aiohttp.ClientSession, log: Path) -> None:
        self.address, self._session, self._log = address, session, log
        #: by the last part of a node's id
        self.statuses: dict[str, str] = {}
        self._lines: defaultdict[str, list[Any]] = defaultdict(list)

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def deploy(self, port: int | str, passwords: dict[str, str], **changes: dict[str, str]) -> None:
        """Deploy the flow as the editor does, after its user has typed port, passwords and ``changes`` of nodes."""
        nodes = [node | changes.get(node["id"].removeprefix("halimede."), {}) for node in FLOW]
        for node in nodes:
            if node["type"] == "mqtt-broker":
                user = node["credentials"]["user"]
                node |= {"port": int(port), "credentials": {"user": user, "password": passwords[user]}}
        deployed = self.log.count(STARTED)
        self.statuses.clear()
        async with self._session.post("/flows", json=nodes) as reply:
            assert reply.status == 204, await reply.text()
        await self.until(lambda: self.log.count(STARTED) > deployed)

    async def flow(self) -> list[dict[str, Any]]:
        """Return the nodes of the flow that runs, without the positions, which the editor rounds."""
        async with self._session.get("/flows") as reply:
            return without_positions(node for node in await reply.json() if node["id"].startswith("halimede."))

    async def press(self, button: str) -> None:
        async with self._session.post(f"/inject/halimede.{button}") as reply:
            assert reply.status == 200, await reply.text()

    def lines(self, node: str) -> list[Any]:
        """Return what the debug sidebar shows of a node."""
        return self._lines[node]

    async def until_all_are(self, status: str) -> None:
        """Wait until this stands under each node that has a connection to the broker."""
        await self.until(lambda: {self.statuses.get(node) for node in CONNECTED} == {status})

    async def until(self, what: Any) -> None:
        await eventually(what, 30, 0.05, lambda: f"{self.statuses} {dict(self._lines)} {self.log}")

    async def listen(self) -> None:
        async with self._session.ws_connect("/comms") as socket:
            for topic in ("status/#", "debug"):
                await socket.send_json({"subscribe": topic})
            async for message in socket:
                for item in json.loads(message.data):
                    kind, _, sender = item["topic"].partition("/halimede.")
                    data = item["data"]
                    if kind == "status":
                        # the editor has a word for the name of a common text
                        self.statuses[sender] = data.get("text", "").removeprefix("node-red:common.status.")
                    elif kind == "debug":
                        line = json.loads(data["msg"]) if data["format"] == "Object" else data["msg"]
                        self._lines[data["id"].removeprefix("halimede.")].append(line)


@contextlib.asynccontextmanager
async def node_red(folder: Path) -> AsyncIterator[NodeRed]:
    """Start Node-RED without flows in a folder, yield it, end it."""
    port = free_port()
    program = npm_package(NODE_RED) / "node-red" / "red.js"
    # nothing goes to the Internet, and no tour lies over the editor
    away = ("telemetry.enabled=false", "externalModules.palette.allowInstall=false", "editorTheme.tours=false")
    settings = ("uiHost=127.0.0.1", "mqttReconnectTime=500", *away)
    options = ["-u", folder, "-p", str(port), *(f"--define={setting}" for setting in settings)]
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    folder.mkdir()
    log, address = folder / "node-red.log", f"http://127.0.0.1:{port}"
    with started("node", program, *options, log=log, env=environment) as process:
        async with aiohttp.ClientSession(address, trust_env=False) as session:
            await eventually(lambda: STARTED in log.read_text() or process.poll(), 60, 0.1, log.read_text)
            assert process.poll() is None, log.read_text()
            shown = NodeRed(address, session, log)
            listening = asyncio.create_task(shown.listen())
            try:
                yield shown
            finally:
                listening.cancel()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[PasswordBroker]:
    """A broker that has the users of ``make up``."""
    with password_broker(tmp_path) as broker:
        yield broker


@contextlib.asynccontextmanager
async def camera(folder: Path) -> AsyncIterator[str]:
    """Serve the example's picture with the document's command; yield the address that the flow has for it."""
    port, pictures = str(free_port()), folder / "examples" / "digits" / "pictures"
    pictures.mkdir(parents=True)
    Image.open(io.BytesIO(digits()[0])).save(pictures / "camera.jpg")
    command, log = [sys.executable, "-u", *shlex.split(COMMANDS[0])[1:-1], port], folder / "camera.log"
    with started(*command, log=log, cwd=folder):
        await eventually(lambda: "Serving HTTP" in log.read_text(), shown=log.read_text)
        yield by_id("camera")["url"].replace(":8000/", f":{port}/")


def reason_of_failure(home: Path, port: int) -> str:
    """Type the document's command as the user with this home; return what it prints."""
    command = COMMANDS[1].replace(" 1883 ", f" {port} ")
    return run_program("bash", "-c", command, env=os.environ | {"HOME": str(home)}).stderr


def passwords(site: Path) -> dict[str, str]:
    return {user: (site / folder / "password").read_text().strip() for user, folder in USERS.items()}


def test_its_picture_has_all_nodes() -> None:
    names = re.findall(r"<text[^>]*>(.*?)</text>", (EXAMPLE / "flow.svg").read_text())
    assert sorted(names) == sorted(node["name"] for node in FLOW if "wires" in node)


def test_the_flow_needs_no_other_nodes_and_holds_no_password() -> None:
    core = {"tab", "mqtt-broker", "mqtt in", "mqtt out", "inject", "http request", "switch", "function", "debug"}
    assert {node["type"] for node in FLOW} <= core
    assert {node["credentials"].get("password") for node in FLOW if "credentials" in node} == {None}
    assert {node["credentials"]["user"] for node in FLOW if "credentials" in node} == USERS.keys()
    ids = [node["id"] for node in FLOW]
    assert len(ids) == len(set(ids))
    assert {target for node in FLOW for wire in node.get("wires", []) for target in wire} <= set(ids)


def test_its_topics_are_those_of_the_contract() -> None:
    assert by_id("frames")["topic"] == topics.CAMERA_FRAME.at(ns="default", camera="cam0").text
    assert by_id("results")["topic"] == topics.RESULT.filter(ns="default").text
    assert by_id("occupancy")["topic"] == topics.OCCUPANCY.filter(ns="default").text


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_the_editor_imports_and_deploys_it_as_it_is(tmp_path: Path) -> None:
    async with node_red(tmp_path / "node-red") as editor, browser(tmp_path / "browser") as tab:
        await tab.open(editor.address)
        types = json.dumps(sorted({node["type"] for node in FLOW} - {"tab"}))
        # an editor that still loads its flows, behind its loading screen, would forget what is imported
        has_types = f"{types}.every((type) => window.RED?.nodes?.getType?.(type))"
        await tab.until(f"{has_types} && $('#red-ui-loading-progress').is(':hidden')")
        await tab.evaluate(f"RED.view.importNodes({json.dumps(json.dumps(FLOW))}, {{addFlow: false}}) && 0")
        await tab.evaluate("RED.actions.invoke('core:deploy-flows') && 0")
        await editor.until(editor.flow)
        assert await editor.flow() == without_positions(FLOW)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_picture_goes_in_and_its_result_and_event_come_out(tmp_path: Path) -> None:
    async with node_red(tmp_path / "node-red") as editor, running(tmp_path / "home", "edge0,cloud0") as system:
        await system.run_digits(occupancy={})
        users = passwords(system.home / "site")
        async with camera(tmp_path) as picture:
            await editor.deploy(system.port, users, camera={"url": picture})
            await editor.until_all_are("connected")

            async def event_after_a_picture() -> bool:
                await editor.press("take")
                return bool(editor.lines("event"))

            # three pictures in a row, unless the service sets another number
            await eventually(event_after_a_picture, every_s=1, shown=lambda: editor.log)
            await editor.until(lambda: editor.lines("result"))
        # on a busy machine more pictures are taken, so there may be more events
        event = editor.lines("event")[0]

        def cause() -> dict[str, Any]:
            return next((line for line in editor.lines("result") if line["id"] == event["frame"]), {})

        await editor.until(cause)
        assert (cause()["service"], cause()["camera"]) == ("digits", "cam0")
        assert (event["type"], event["label"]) == ("entered", cause()["label"])

        def shows_the_last() -> bool:
            result, last = editor.lines("result")[-1], editor.lines("event")[-1]
            shown = {
                "result": f"digits: {result['label']} by {result['by']}",
                "event": f"cam0: {last['label']} {last['type']}",
            }
            return shown.items() <= editor.statuses.items()

        await editor.until(shows_the_last)
        # with each connection the broker sends the last event again, which is no news
        assert not editor.lines("state")
        await editor.deploy(system.port, users)
        await editor.until(lambda: editor.lines("state"))
        (state,) = editor.lines("state")
        assert state == editor.lines("event")[-1]
        assert len({line["id"] for line in editor.lines("event")}) == len(editor.lines("event"))
        # the empty message that clears it
        await system.client.delete("jointinferenceservices", "digits")
        await editor.until(lambda: editor.lines("state") == [state, ""])


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_what_the_editor_shows_if_something_fails(tmp_path: Path, broker: PasswordBroker) -> None:
    site, away, failed = tmp_path / "home" / "site", free_port(), "Connection failed to broker: mqtt://127.0.0.1:{}"
    users = passwords(site)
    (site / "consumers" / "viewer" / "password").write_text("wrong")
    (tmp_path / HOME).parent.mkdir(parents=True)
    (tmp_path / HOME).symlink_to(tmp_path / "home")
    async with node_red(tmp_path / "node-red") as editor:
        # the same in the editor, and told apart by the document's command
        for port, typed, reason in ((away, users, "refused"), (broker.port, passwords(site), "not authorised")):
            await editor.deploy(port, typed)
            await editor.until(lambda port=port: editor.log.count(failed.format(port)) > len(USERS))
            await editor.until(lambda: editor.statuses.get("results") == "connecting")
            assert reason in await asyncio.to_thread(reason_of_failure, tmp_path, port)
        await editor.deploy(broker.port, users, camera={"url": f"http://127.0.0.1:{away}"})
        await editor.until_all_are("connected")
        await editor.press("take")
        await editor.until(lambda: "ECONNREFUSED" in str(editor.lines("camera")))
        async with camera(tmp_path) as picture:
            topic = {"topic": topics.CAMERA_FRAME.at(ns="default", camera="cam1").text}
            await editor.deploy(broker.port, users, camera={"url": picture}, frames=topic)
            await editor.until_all_are("connected")
            await editor.press("take")
            await editor.until(lambda: "Not authorized" in str(editor.lines("frames")))
