"""Whatever goes wrong on the way, in the end every node holds exactly what it should: no more, no less, no older."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from halimede.names import Key
from tests.integration.gm_world import MODELS, SERVICES, FakeNode, World, model, service, world
from tests.simulated import eventually, simulate

NODES = ("n0", "n1", "n2")
SITES = ("north", "south")


class Script:
    """Random edits and mishaps from one seed; what users want in the end is known without asking GM."""

    def __init__(self, seed: int, w: World, nodes: dict[str, FakeNode]) -> None:
        self.chance = random.Random(seed)
        self.w = w
        self.nodes = nodes
        self.services: dict[str, dict[str, Any]] = {}
        self.models: set[str] = set()

    async def step(self) -> None:
        await self.chance.choice(
            (self.apply, self.apply, self.delete, self.model, self.cut, self.relabel, self.broker)
        )()
        await asyncio.sleep(self.chance.choice((0.0, 0.1, 1.0, 5.0)))

    async def apply(self) -> None:
        name = self.chance.choice(("s0", "s1"))
        more = {"deadlineMs": self.chance.randrange(1, 1000)}
        body = service(name, edge=self._place(), cloud=self._place(), edge_worker=more)
        reply = await self.w.ask("apply", object=body)
        if reply.error is None:
            self.services[name] = reply.object
        else:
            assert reply.error.reason == "Conflict", reply.error

    async def delete(self) -> None:
        if self.services:
            name = self.chance.choice(sorted(self.services))
            await self.w.ask("delete", plural=SERVICES, name=name)
            del self.services[name]

    async def model(self) -> None:
        name = self.chance.choice(("small", "big"))
        if name in self.models and self.chance.random() < 0.3:
            await self.w.ask("delete", plural=MODELS, name=name)
            self.models.discard(name)
        elif (await self.w.ask("apply", object=model(name, labels=[str(self.chance.random())]))).error is None:
            self.models.add(name)

    async def cut(self) -> None:
        node = self.nodes[self.chance.choice(NODES)]
        node.bus.cut()
        await asyncio.sleep(self.chance.choice((0.0, 1.0, 20.0)))
        node.bus.heal()

    async def relabel(self) -> None:
        node = self.nodes[self.chance.choice(NODES)]
        node.labels = {"site": self.chance.choice(SITES)}
        await self.cut()
        node.bus.cut()
        node.bus.heal()

    async def broker(self) -> None:
        self.w.broker.restart()

    def _place(self) -> Any:
        return self.chance.choice(NODES) if self.chance.random() < 0.5 else {"site": self.chance.choice(SITES)}

    def wanted(self, node: FakeNode) -> dict[Key, tuple[str, int]]:
        """What a node should hold, said without GM's own code."""
        wanted: dict[Key, tuple[str, int]] = {}
        for name, body in self.services.items():
            complete, placed = True, False
            for role, reference in (("edgeWorker", "small"), ("cloudWorker", "big")):
                pod = body["spec"][role]["template"]["spec"]
                site = pod.get("nodeSelector", {}).get("site")
                if pod.get("nodeName") == node.name or site == node.labels.get("site", "-"):
                    placed = True
                    complete = complete and reference in self.models
                    if reference in self.models:
                        wanted[Key(MODELS, "default", reference)] = ("", 0)
            if placed:
                meta = body["metadata"]
                wanted[Key(SERVICES, "default", name)] = (meta["uid"], meta["generation"] if complete else -1)
        return wanted

    def settled(self) -> bool:
        return all(self._settled(node) for node in self.nodes.values())

    def _settled(self, node: FakeNode) -> bool:
        wanted = self.wanted(node)
        if not node.holds.keys() <= wanted.keys():
            return False
        for key, (uid, generation) in wanted.items():
            held = node.holds.get(key)
            if generation == -1:
                continue  # its model is missing: it keeps what it has, if it has any
            if held is None or (uid and held[:2] != (uid, generation)):
                return False
        return True


async def run(seed: int, folder: Path) -> None:
    async with world(folder) as w, AsyncExitStack() as stack:
        w.broker.chance.seed(seed)
        nodes = {name: w.node(name, site=SITES[i % 2]) for i, name in enumerate(NODES)}
        for node in nodes.values():
            await stack.enter_async_context(node)
        script = Script(seed, w, nodes)
        faults = w.broker.faults
        for _ in range(3):  # three lives of GM
            async with w.gm():
                faults.loss, faults.duplicate, faults.reorder, faults.delay_s = 0.1, 0.1, 0.1, (0.0, 0.05)
                for _ in range(12):
                    await script.step()
            faults.loss = 0.0
            await script.cut()
        faults.loss = faults.duplicate = faults.reorder = 0.0
        async with w.gm():
            for node in nodes.values():  # a birth that was lost on its way is not sent again on the same connection
                node.bus.cut()
                node.bus.heal()
            try:
                await eventually(script.settled, 60)
            except AssertionError:
                held = {n.name: {k: h[:2] for k, h in n.holds.items()} for n in nodes.values()}
                said = {n.name: (n.labels, script.wanted(n), held[n.name]) for n in nodes.values()}
                raise AssertionError(f"seed {seed}: not as wanted: {said}") from None
            await asyncio.sleep(60)
            assert script.settled(), "and stays so"
            for name in ("s0", "s1"):
                assert (w.status(name) is not None) == (name in script.services)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_after_loss_duplicates_reordering_cuts_and_restarts_all_nodes_hold_what_they_should(
    seed: int, tmp_path: Path
) -> None:
    simulate(run(seed, tmp_path))
