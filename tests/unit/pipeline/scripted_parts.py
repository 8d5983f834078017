"""Parts around a pipeline that behave as a test's script says: models and threads, a broker, a next tier, peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.memory.connection import MemoryTransport
from halimede.bus.message import Packet
from halimede.bus.transport import Transport
from halimede.inference import Array, SampleError
from halimede.messages import Frame, Load, Prediction, Reply
from halimede.offload.errors import OffloadError, OffloadReason
from halimede.pipeline.escalation import SampleClient
from halimede.tracing import FrameRecord
from tests.simulated import SimulatedLoop
from tests.unit.frames.clouds import NS, SERVICE, Brightness, cloud_bus

T = TypeVar("T")

#: pixel values: what is at least as bright is hard, a model fails on it, a canary alone does, nobody can write it
HARD, BAD, BAD_FOR_CANARY, UNWRITABLE = 50, 66, 67, 68
#: what the broker answers while it refuses publishes
NOT_AUTHORIZED = 0x87


@dataclass
class ThreadPace:
    """Simulated seconds that each call of a thread takes; ``stall_s``: those that the next one takes besides."""

    call_s: float = 0.01
    stall_s: float = 0.0


class ScriptedExecutor(Executor):
    """One thread whose calls take simulated time: each is made at its end, after those before it."""

    def __init__(self, pace: ThreadPace) -> None:
        self._pace = pace
        self._free_at = 0.0

    def start(self, loop: asyncio.AbstractEventLoop, work: Callable[[], T]) -> asyncio.Future[T]:
        took, self._pace.stall_s = self._pace.call_s + self._pace.stall_s, 0.0
        self._free_at = max(self._free_at, loop.time()) + took
        future: asyncio.Future[T] = loop.create_future()
        loop.call_at(self._free_at, self._end, future, work, took)
        return future

    def _end(self, future: asyncio.Future[Any], work: Callable[[], Any], took: float) -> None:
        if future.cancelled():
            return
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whoever waits for the future gets it
            future.set_exception(error)
            return
        if isinstance(result, tuple):  # of a model: outcomes, and milliseconds of CPU time
            for outcome in result[0]:
                outcome.ms = took * 1000
        future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        return


class ScriptedLoop(SimulatedLoop):
    """A simulated loop without threads."""

    def run_in_executor(  # type: ignore[override]  # as its base
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        assert isinstance(executor, ScriptedExecutor)
        return executor.start(self, partial(func, *args))


@dataclass
class ModelScript:
    """How all models behave from now on. ``misuses``: what was done to a model that it must never see."""

    fails: bool = False
    breaks_batches: bool = False
    misuses: list[str] = field(default_factory=list)


class ScriptedModel(Brightness):
    """A model that counts how often it was closed. ``canary``: it fails where the others do not; ``blind``: on all."""

    ours = True

    def __init__(self, script: ModelScript, *, canary: bool = False, blind: bool = False) -> None:
        super().__init__()
        self.closes = 0
        self._script, self._canary, self._blind = script, canary, blind

    def prepare(self, image: Array) -> Array:
        if self._blind and image.flat[0] % 2:
            raise SampleError("the canary wants another shape")
        return super().prepare(image)

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        if self.closes:
            self._script.misuses.append("a closed model was called")
        values = [int(sample.flat[0]) for sample in batch]
        broken = self._script.fails or (self._script.breaks_batches and len(batch) > 1)
        if broken or BAD in values or (self._canary and (self._blind or BAD_FOR_CANARY in values)):
            raise RuntimeError("the model fails")
        return [_prediction(value) for value in values]

    def close(self) -> None:
        self.closes += 1


def _prediction(value: int) -> Prediction:
    """Return the answer to a picture of that value; low scores are hard."""
    content = object() if value == UNWRITABLE else None
    return Prediction(label=str(value), score=0.2 if value >= HARD else 0.9, value=content)


class Foresight:
    """Judges pictures before a model has seen them."""

    def __call__(self, prediction: Prediction) -> bool:
        raise AssertionError("it judges pictures")

    def foresee(self, image: Array) -> bool:
        return bool(image.flat[0] >= HARD)


class ScriptedBroker(MemoryBroker):
    """A broker that may refuse what is published at QoS 1."""

    refuses = False

    def route(self, packet: Packet) -> int:
        if self.refuses and packet.qos and not packet.retain:
            return NOT_AUTHORIZED
        return super().route(packet)


class MutableBus(MemoryBus):
    """A connection whose broker takes publishes and, while ``mute``, acknowledges none of them."""

    mute = False

    async def _open(self, *args: Any) -> Transport:
        link = await super()._open(*args)
        assert isinstance(link, MemoryTransport)
        publish = link._receive_publish

        def published(key: int, packet: Packet, *, answered: bool) -> None:
            if self.mute:
                self._broker.route(packet)
            else:
                publish(key, packet, answered=answered)

        link._receive_publish = published  # type: ignore[method-assign]
        return link


class NextTier:
    """Two workers that answer by ``mode``, and whether asking itself is broken (``defect``).

    Modes: good, late, busy, error, expired, silent, forged, dead.
    """

    def __init__(self, broker: MemoryBroker, tier: str) -> None:
        self.mode = "good"
        self.names = ("n0", "n1")
        #: requests that came
        self.requests = 0
        self.buses: dict[str, MemoryBus] = {}
        self._broker, self._tier = broker, tier

    async def run(self) -> None:
        """Advertise and answer until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name in self.names:
                group.create_task(self._work(name))

    async def _work(self, name: str) -> None:
        async with cloud_bus(self._broker, name) as bus:
            self.buses[name] = bus

            async def take(delivery: Delivery[Frame]) -> None:
                if reply := await self._answer(name, delivery.body):
                    await bus.reply(delivery, topics.REPLY, reply)

            await bus.subscribe(topics.REQUEST_TO.filter(ns=NS, service=SERVICE, worker=name), take)
            address = topics.LOAD.at(ns=NS, service=SERVICE, worker=name)
            while True:
                if bus.connected:
                    await bus.publish(address, Load(credits=2, service_ms=5.0, tier=self._tier))
                await asyncio.sleep(5)

    async def _answer(self, name: str, frame: Frame) -> Reply | None:
        self.requests += 1
        await asyncio.sleep(0.005)
        prediction = Prediction(label="next", score=1.0)
        match self.mode:
            case "silent" | "dead":
                return None
            case "late":
                await asyncio.sleep(3)
            case "busy":
                return Reply(id=frame.id, worker=name, error="overloaded")
            case "error" | "expired":
                return Reply(id=frame.id, worker=name, error={"error": "failed"}.get(self.mode, self.mode))
            case "forged":
                return Reply(id=b"x" * 16, worker=name, prediction=prediction)
        return Reply(id=frame.id, worker=name, prediction=prediction)

    def change(self, mode: str) -> None:
        self.mode = mode
        for bus in self.buses.values():
            if mode == "dead":
                bus.cut()
            else:
                bus.heal()


class Defective:
    """A client that raises what nobody expects while ``broken``."""

    def __init__(self, client: SampleClient) -> None:
        self.broken = False
        self._client = client

    async def ask(self, frame: Frame, deadline_s: float, trace: FrameRecord | None = None) -> Reply:
        if self.broken:
            raise RuntimeError("a defect in asking")
        return await self._client.ask(frame, deadline_s, trace)

    def abandon(self) -> None:
        self._client.abandon()


class ScriptedPeers:
    """Peers that answer by ``mode``: away, good, late, error, shed, fatal, defect."""

    def __init__(self) -> None:
        self.mode = "away"
        self._abandoned = asyncio.Event()

    def reserve_peer(self) -> str | None:
        return None if self.mode == "away" or self._abandoned.is_set() else "peer"

    async def ask(self, frame: Frame, deadline_s: float, trace: FrameRecord | None = None) -> Reply:
        mode = self.mode
        try:
            async with asyncio.timeout(1.0 if mode == "late" else 0.02):
                await self._abandoned.wait()
        except TimeoutError:
            pass
        if mode == "defect":
            raise RuntimeError("a defect in sharing")
        if mode in {"good", "late"} and not self._abandoned.is_set():
            prediction = Prediction(label="peer", score=0.2)
            return Reply(id=frame.id, worker="p1", prediction=prediction, batch=1, model="v-peer")
        error = OffloadError(OffloadReason.ERROR if mode == "error" else OffloadReason.SHED)
        error.fatal = mode == "fatal"
        raise error

    def abandon(self) -> None:
        self._abandoned.set()
