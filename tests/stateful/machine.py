"""What may happen to a system, in any order, and what holds after every step and once it was left in peace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from halimede.cli.client import ApiRefusedError
from tests.stateful.expected import MODELS, SERVICES, Applied, Expected, agreed, leftover, model, service
from tests.stateful.peace import MANY_FAULTS_S, ONE_FAULT_S, POLL_S, Record, be_quiet, converge, mend
from tests.stateful.world import NODES, SITES, World

RECORD = Record()

names = st.sampled_from(("s0", "s1"))
nodes = st.sampled_from(NODES)
models = st.sampled_from(("small", "big"))
numbers = st.integers(0, 3)
places = st.sampled_from((*NODES, *({"site": site} for site in SITES)))
shares = st.sampled_from((0.0, 0.1, 0.3))
#: seconds that pass after a step
pauses = st.sampled_from((0.0, 0.0, 0.01, 0.3, 1.1, 3.0))


class Machine(RuleBasedStateMachine):
    """One system and one operator."""

    @initialize(
        seed=st.integers(0, 2**16 - 1),
        edge=places,
        cloud=places,
        stubborn=st.sampled_from((None, *NODES)),
        pause=pauses,
    )
    def begin(self, *, seed: int, edge: Any, cloud: Any, stubborn: str | None, pause: float) -> None:
        self.world = World(seed)
        for name, node in self.world.nodes.items():
            node.workers.stubborn = name == stubborn
        self.expected = Expected()
        self.expected.watch(self.world)
        self.run("begin", self._apply(MODELS, model("small", 0)), 0.0)
        self.run("begin", self._apply(MODELS, model("big", 0)), 0.0)
        self.run("begin", self._apply(SERVICES, service("s0", edge, cloud, 0)), pause)
        RECORD.examples += 1

    def run(self, name: str, work: Coroutine[Any, Any, Any], pause: float) -> Any:
        RECORD.rules[name] += 1
        result = self.world.run(work)
        self.world.pass_(pause)
        return result

    def do(self, name: str, work: Callable[[], object], pause: float) -> None:
        async def inside() -> None:
            work()

        self.run(name, inside(), pause)

    # --- the operator -----------------------------------------------------------------------------------------

    async def _reachable(self) -> None:
        """Bring GM back where an operator needs it: without that most steps would have nothing to act on."""
        world = self.world
        world.broker.running or world.broker.start()
        world.gm.heal() if world.gm.cut_off else None
        if not world.gm.running:
            await world.gm.start()

    @rule(name=names, edge=places, cloud=places, revision=numbers, crash=st.booleans(), pause=pauses)
    def apply_service(self, *, name: str, edge: Any, cloud: Any, revision: int, crash: bool, pause: float) -> None:
        body = service(name, edge, cloud, revision)
        self.run("apply a service", self._apply(SERVICES, body, crash=crash), pause)

    @precondition(lambda self: self.expected.services)
    @rule(data=st.data(), revision=numbers, pause=pauses)
    def edit_service(self, data: st.DataObject, revision: int, pause: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.expected.services)))
        spec = self.expected.services[name].body["spec"]
        pods = [spec[f"{role}Worker"]["template"]["spec"] for role in ("edge", "cloud")]
        edge, cloud = (pod.get("nodeName") or pod["nodeSelector"] for pod in pods)
        self.run("edit a service", self._apply(SERVICES, service(name, edge, cloud, revision)), pause)

    @rule(name=models, version=numbers, crash=st.booleans(), pause=pauses)
    def apply_model(self, name: str, version: int, crash: bool, pause: float) -> None:
        self.run("apply a model", self._apply(MODELS, model(name, version), crash=crash), pause)

    @precondition(lambda self: self.expected.services)
    @rule(data=st.data(), again=st.booleans(), crash=st.booleans(), pause=pauses)
    def delete_service(self, data: st.DataObject, again: bool, crash: bool, pause: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.expected.services)))
        body = self.expected.services[name].body
        self.run("delete a service", self._delete(SERVICES, name, crash=crash), pause)
        if again:
            self.run("create it again", self._apply(SERVICES, body), pause)

    @precondition(lambda self: self.expected.models)
    @rule(data=st.data(), again=st.booleans(), pause=pauses)
    def delete_model(self, data: st.DataObject, again: bool, pause: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.expected.models)))
        body = self.expected.models[name].body
        self.run("delete a model", self._delete(MODELS, name), pause)
        if again:
            self.run("create it again", self._apply(MODELS, body), pause)

    async def _apply(self, plural: str, body: dict[str, Any], *, crash: bool = False) -> None:
        world, known = self.world, self.expected.of(plural)
        name = body["metadata"]["name"]
        reply = await self._ask(lambda client: client.apply(body), crash=crash)
        before = known.get(name)
        if isinstance(reply, ApiRefusedError):
            assert reply.reason == "Conflict", reply
            assert before is None, f"{name} was applied and is {reply}"
            return
        meta = reply[1]["metadata"]
        uid, generation = meta["uid"], meta["generation"]
        if before is None:
            assert uid not in self.expected.deleted, f"{name} came back as {uid}"
            assert generation == 1, reply
        else:
            assert uid == before.uid, f"{name} was {before.uid} and is {uid}"
            assert generation == before.generation + (body["spec"] != before.body["spec"]), reply
        known[name] = Applied(body, uid, generation)
        assert world.gm.running

    async def _delete(self, plural: str, name: str, *, crash: bool = False) -> None:
        reply = await self._ask(lambda client: client.delete(plural, name), crash=crash)
        # one whose answer was lost and that was asked for again may have found it gone
        assert not isinstance(reply, ApiRefusedError) or reply.reason == "NotFound", reply
        self.expected.deleted.add(self.expected.of(plural).pop(name).uid)

    async def _ask(self, call: Any, *, crash: bool) -> Any:
        """Ask GM; ``crash``: it dies somewhere on the way, and comes back."""
        await self._reachable()
        asked = asyncio.create_task(self.world.ask(call))
        if crash:
            await asyncio.sleep(self.world.chance.choice((0.0, 0.001, 0.1)))
            await self.world.gm.kill()
            await self.world.gm.start()
        return await asked

    # --- what fails -------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.gm.running)
    @rule(killed=st.booleans(), late_will=st.booleans(), pause=pauses)
    def stop_gm(self, killed: bool, late_will: bool, pause: float) -> None:
        gm = self.world.gm
        will = self.run("stop GM", gm.kill(late_will=late_will) if killed else gm.stop(), pause)
        if will:
            self.world.wills.append(will)

    @precondition(lambda self: not self.world.gm.running)
    @rule(pause=pauses)
    def start_gm(self, pause: float) -> None:
        self.run("start GM", self.world.gm.start(), pause)

    @precondition(lambda self: sum(node.running for node in self.world.nodes.values()) > 1)
    @rule(data=st.data(), how=st.sampled_from(("killed", "late will", "stopped", "power")), pause=pauses)
    def stop_lc(self, data: st.DataObject, how: str, pause: float) -> None:
        running = [name for name, node in self.world.nodes.items() if node.running]
        at = self.world.nodes[data.draw(st.sampled_from(running))]
        if how == "stopped":
            self.run("stop an LC", at.stop(), pause)
            return
        if will := self.run(f"LC: {how}", at.kill(late_will=how == "late will"), 0.0):
            self.world.wills.append(will)
        if how == "power":
            self.do("power cut", lambda: [process.end(-9) for process in at.workers.alive], 0.0)
        self.world.pass_(pause)

    @precondition(lambda self: not all(node.running for node in self.world.nodes.values()))
    @rule(data=st.data(), site=st.sampled_from((None, *SITES)), pause=pauses)
    def start_lc(self, data: st.DataObject, site: str | None, pause: float) -> None:
        stopped = [name for name, node in self.world.nodes.items() if not node.running]
        node = self.world.nodes[data.draw(st.sampled_from(stopped))]
        node.site = site or node.site
        self.do("start an LC", node.start, pause)

    @precondition(lambda self: any(node.workers.alive for node in self.world.nodes.values()))
    @rule(number=st.integers(0, 5), code=st.sampled_from((-9, 1, 0)), pause=pauses)
    def kill_worker(self, number: int, code: int, pause: float) -> None:
        alive = [process for node in self.world.nodes.values() for process in node.workers.alive]
        self.do("kill a worker", lambda: alive[number % len(alive)].end(code), pause)

    @precondition(lambda self: not any(part.cut_off for part in self.world.parts))
    @rule(number=st.integers(0, len(NODES)), pause=pauses)
    def cut(self, number: int, pause: float) -> None:
        self.do("cut off", self.world.parts[number].cut, pause)

    @precondition(lambda self: any(part.cut_off for part in self.world.parts))
    @rule(pause=pauses)
    def heal(self, pause: float) -> None:
        self.do("heal", next(part.heal for part in self.world.parts if part.cut_off), pause)

    @rule(away=st.booleans(), pause=pauses)
    def restart_broker(self, away: bool, pause: float) -> None:
        broker = self.world.broker
        if not broker.running:
            self.do("start the broker", broker.start, pause)
        else:
            self.do("kill the broker", broker.stop if away else broker.restart, pause)

    @rule(loss=shares, duplicate=shares, reorder=shares, delay=st.sampled_from((0.0, 0.05, 1.0)), pause=pauses)
    def disturb(self, loss: float, duplicate: float, reorder: float, delay: float, pause: float) -> None:
        def change() -> None:
            faults = self.world.broker.faults
            faults.loss, faults.duplicate, faults.reorder = loss, duplicate, reorder
            faults.delay_s, faults.reorder_s = (0.0, delay), 0.05 + 2 * delay

        self.do("disturb", change, pause)

    @precondition(lambda self: self.world.broker.running and self.world.broker.downstream)
    @rule(number=st.integers(0, 50), pause=pauses)
    def repeat_an_old_message(self, number: int, pause: float) -> None:
        broker = self.world.broker
        packet = broker.downstream[-1 - number % len(broker.downstream)]
        self.do("old message", lambda: broker.route(packet), pause)

    @precondition(lambda self: self.world.wills)
    @rule(pause=pauses)
    def late_will(self, pause: float) -> None:
        if self.world.broker.running:
            will = self.world.wills.pop(0)
            self.do("late will", lambda: self.world.broker.route(will), pause)

    @rule(seconds=st.sampled_from((0.1, 1.0, 4.0, 16.0, 40.0, 310.0)))
    def wait(self, seconds: float) -> None:
        self.do("wait", lambda: None, seconds)

    # --- what holds -------------------------------------------------------------------------------------------

    @invariant()
    def nothing_breaks(self) -> None:
        self.world.check()
        assert not self.expected.revived, self.expected.revived

    @invariant()
    def what_was_acknowledged_is_kept(self) -> None:
        if self.world.gm.running:
            text = agreed(self.expected, self.world)
            assert not text, text

    @rule(
        rare=st.integers(0, 3),
        node=nodes,
        fault=st.sampled_from(("none", "gm", "lc", "power", "cut", "worker", "broker", "late will")),
    )
    def leave_in_peace(self, rare: int, node: str, fault: str) -> None:
        if rare:
            return
        self.settle()
        if fault == "none":
            return
        world, at = self.world, self.world.nodes[node]

        async def strike() -> None:
            if fault == "gm":
                await world.gm.kill()
                await world.gm.start()
            elif fault in {"lc", "power", "late will"}:
                will = await at.kill(late_will=fault == "late will")
                for process in at.workers.alive if fault == "power" else ():
                    process.end(-9)
                at.start()
                if will:
                    await asyncio.sleep(1)
                    world.broker.route(will)
            elif fault == "cut":
                at.cut()
                await asyncio.sleep(3)
                at.heal()
            elif fault == "broker":
                world.broker.restart()
            elif at.workers.alive:
                at.workers.alive[0].end(-9)

        self.run(f"one fault: {fault}", strike(), 0.0)
        RECORD.one.append(converge(self.world, self.expected, ONE_FAULT_S))

    def settle(self) -> None:
        """Mend everything; then the system has to become, by itself, what was asked for, and be quiet."""
        self.run("settle", mend(self.world), 0.0)
        for name in ("small", "big"):
            began = self.world.now
            while name not in self.expected.models and not self.expected.complete:
                assert self.world.now < began + MANY_FAULTS_S, f"{leftover(self.world)} does not go"
                self.run("settle", self._apply(MODELS, model(name, 0)), POLL_S)
        RECORD.many.append(converge(self.world, self.expected, MANY_FAULTS_S))
        be_quiet(self.world, self.expected)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.nothing_breaks()
            self.settle()
        finally:
            RECORD.messages += self.world.broker.count
            RECORD.simulated_s += self.world.now
            self.world.close()
