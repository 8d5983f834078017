"""Models and Datasets that nodes copy from one another: real controllers, one broker, one GM, and what kills them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.messages import Status, StatusDocument
from tests.faults.control import Child, Control, control
from tests.integration.gm_world import dataset
from tests.proxy import MOST_UNDER_WAY, Proxy

ZONE = {"zone": "a"}
FILES = {f"part{n:02}/data{n}.txt": f"line {n}\n" * (n + 1) for n in range(30)}

pytestmark = pytest.mark.timeout(180)


class Fleet:
    """One node with the data, and nodes of a zone that copy it, all of them over one line."""

    def __init__(self, plane: Control, data: Path, copies: int, line: Proxy) -> None:
        self.plane, self.data, self.line = plane, data, line
        self.names = [f"edge{number}" for number in range(1, copies + 1)]
        self.nodes: dict[str, Child] = {}
        self.statuses: dict[str, Status] = {}

    async def start(self) -> None:
        for plural in ("datasets", "models"):
            await self.plane.operator.subscribe(topics.STATUS.filter(plural=plural), self._hear)
        for name in ("edge0", *self.names):
            self.node(name)

    def node(self, name: str) -> None:
        port, labels = (0, []) if name == "edge0" else (self.line.port, ["zone=a"])
        # each with a folder of its own, as on machines of their own
        self.nodes[name] = self.plane.lc_process(name, home=self.plane.folder / name, port=port, labels=labels)

    async def _hear(self, delivery: Delivery[StatusDocument]) -> None:
        self.statuses[delivery.names["name"]] = delivery.body.status

    def is_ready(self, name: str, generation: int = 1) -> bool:
        status = self.statuses.get(name)
        ready = status is not None and status.phase == "Ready" and status.observed_generation == generation
        return ready and status is not None and status.active == 1 + len(self.names)

    def copy(self, node: str) -> Path:
        return self.plane.folder / node / "nodes" / node / "copies/default/frames/data"

    def content(self, node: str) -> dict[str, str]:
        root = self.copy(node)
        return {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}

    def inodes(self, node: str) -> dict[str, int]:
        root = self.copy(node)
        return {str(p.relative_to(root)): p.stat().st_ino for p in root.rglob("*") if p.is_file()}

    def body(self, **spec: Any) -> dict[str, Any]:
        return dataset("frames", **{"url": str(self.data), "nodeName": "edge0", "syncTo": ZONE, **spec})


@asynccontextmanager
async def fleet(folder: Path, copies: int = 2, files: dict[str, str] = FILES) -> AsyncIterator[Fleet]:
    data = folder / "data"
    for name, text in files.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(text)
    async with control(folder) as plane, plane.gm(), Proxy(plane.broker.port) as line:
        made = Fleet(plane, data, copies, line)
        await made.start()
        yield made


async def test_a_dataset_is_copied_to_all_nodes_of_a_selector_and_one_changed_file_moves_alone(tmp_path: Path) -> None:
    async with fleet(tmp_path) as nodes:
        plane = nodes.plane
        await plane.apply(nodes.body())
        await plane.until(lambda: nodes.is_ready("frames"))
        assert nodes.content("edge1") == nodes.content("edge2") == FILES
        status = nodes.statuses["frames"]
        assert status.dataset
        assert (status.number_of_samples, status.dataset.size) == (465, sum(map(len, FILES.values())))
        assert status.conditions[-1].message.endswith("; 2 nodes have a copy")
        assert {node.phase for node in status.nodes} == {"Ready"}

        before = nodes.inodes("edge1")
        (nodes.data / "part07/data7.txt").write_text("changed\n")
        # a folder's files are looked through every ten minutes; an edit lets them be counted now
        await plane.apply(nodes.body(format="TXT"))
        await plane.until(lambda: nodes.is_ready("frames", 2))
        for node in ("edge1", "edge2"):
            assert nodes.content(node) == {**FILES, "part07/data7.txt": "changed\n"}
        moved = {name for name, inode in nodes.inodes("edge1").items() if before[name] != inode}
        assert moved == {"part07/data7.txt"}


async def test_a_model_is_copied_by_its_digest_and_a_service_on_another_node_runs_with_it(tmp_path: Path) -> None:
    async with fleet(tmp_path) as nodes:
        plane = nodes.plane
        plane.trained()
        small, big = plane.real_models()
        # the file is on the machine of edge0 alone, by what the resource says
        hidden = tmp_path / "only-on-edge0.onnx"
        Path(small["spec"]["url"]).rename(hidden)
        small["spec"] |= {"url": str(hidden), "nodeName": "edge0", "syncTo": ZONE}
        await plane.apply(small)
        await plane.until(lambda: nodes.is_ready("small"))
        hidden.unlink()
        service = plane.real_service(edge={}, cloud={}, source={"cameras": ["cam0"]})
        service["spec"]["edgeWorker"]["template"]["spec"]["nodeName"] = "edge1"
        service["spec"]["cloudWorker"]["template"]["spec"]["nodeName"] = "edge2"
        await plane.apply(big, service)
        await plane.running("digits")
        digest = nodes.statuses["small"].model
        assert digest
        assert (tmp_path / "edge1/nodes/edge1/models/sha256" / digest.digest).exists()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["broker", "source", "target"])
async def test_a_death_in_the_middle_costs_what_was_under_way(tmp_path: Path, victim: str) -> None:
    large = {f"{n}.txt": chr(97 + n) * 8_000_000 for n in range(12)}
    async with fleet(tmp_path, files=large) as nodes:
        plane = nodes.plane
        nodes.line.share(1_000_000, MOST_UNDER_WAY)  # the copies take minutes
        await plane.apply(nodes.body())
        await plane.until(lambda: "Copying" in str(nodes.statuses.get("frames")))
        if victim == "broker":
            await plane.broker.restart()
        else:
            name = "edge0" if victim == "source" else "edge1"
            nodes.nodes[name].kill()
            await asyncio.sleep(1)
            nodes.node(name)
        nodes.line.heal()
        try:
            await plane.until(lambda: nodes.is_ready("frames"), 90)
        except AssertionError:
            raise AssertionError(nodes.statuses) from None
        for node in ("edge1", "edge2"):
            assert nodes.content(node) == large


@pytest.mark.slow
async def test_bad_syncs_are_refused_or_said(tmp_path: Path) -> None:
    async with fleet(tmp_path, copies=1) as nodes:
        plane = nodes.plane
        body = nodes.body()
        del body["spec"]["nodeName"]
        reply = await plane.ask("apply", object=body)
        assert reply.error
        assert "spec.syncTo" in reply.error.message
        (nodes.data / "leads-out.txt").symlink_to("/etc/hostname")
        await plane.apply(nodes.body())
        await plane.until(lambda: "leads out of the folder" in str(nodes.statuses.get("frames")))
        (nodes.data / "leads-out.txt").unlink()
        await plane.until(lambda: nodes.is_ready("frames"))
        assert re.search("copied from node edge0 to .*/data", str(nodes.statuses["frames"]))


@pytest.mark.slow
async def test_a_copy_stays_when_source_gm_and_broker_are_gone_and_its_node_starts_again(tmp_path: Path) -> None:
    async with fleet(tmp_path) as nodes:
        plane = nodes.plane
        await plane.apply(nodes.body())
        await plane.until(lambda: nodes.is_ready("frames"))
        nodes.nodes["edge0"].kill()
        nodes.nodes["edge1"].kill()
        nodes.node("edge1")
        await plane.until(lambda: nodes.nodes["edge1"].says("local controller started"))
        await asyncio.sleep(2)
        assert nodes.content("edge1") == FILES
        assert not nodes.nodes["edge1"].says("dataset not copied")
