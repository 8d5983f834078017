"""Runs the joint of an application in a worker: its thread, its server, and the transfer of its state.

Of the workers that run a joint, the eldest one decides. The others follow its decisions and can take over. The eldest
sends its state to each of them once: when that worker connects, or when this worker becomes the eldest, because the
eldest before may have ended in the middle of a transfer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from halimede.inference.model import WrappedModel
from halimede.messages import Load, Peer
from halimede.multiedge.application import Application
from halimede.multiedge.joint_server import JointServer
from halimede.multiedge.peer_offload import JOIN
from halimede.multiedge.settings import MemberSettings
from halimede.multiedge.stage import JointTools
from halimede.offload.channel import hop
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import ModelSlot
from halimede.worker.membership import Membership
from halimede.worker.roles import WorkerContext

#: the joint's folder, inside the worker's own
FOLDER = "joint"
#: seconds until the state is sent again to workers that did not receive all of it
RESEND_S = 5.0
P = ParamSpec("P")
T = TypeVar("T")


class JointRunner:
    """Runs the joint of an application, which has one. Call ``start`` once, ``drain`` and ``cancel`` at the end.

    ``peers``: the other workers of the service.
    """

    def __init__(
        self, settings: MemberSettings, application: Application, context: WorkerContext, peers: Membership
    ) -> None:
        self._settings = settings
        self._application = application
        self._context = context
        self._peers = peers
        self._server: JointServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        #: workers that have received the whole state from this worker, each with the life (process) that received it
        self._receivers: set[tuple[str, str]] = set()
        #: sends the state to the new workers; None: none has needed it yet
        self._transfers: asyncio.Task[None] | None = None

    async def start(self, group: asyncio.TaskGroup) -> None:
        """Make the joint and run it in a task of ``group``. Raises InvalidFieldError for invalid parameters."""
        worker = self._settings.worker
        assert self._application.joint is not None  # noqa: S101  # callers check it
        folder = Path(worker.state) / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        thread, models = ModelThread("joint"), {}
        if worker.role == "cloud" and worker.model_path:
            thread = holding = HoldingThread("joint", self._context.slot)
            models = {"model": holding.model}
        tools = JointTools(self._settings.parameters, folder, models, self._settings.members, self._settings.cameras)
        joint = self._application.joint(tools)
        self._group = group
        server = self._server = JointServer(
            self._context.bus,
            joint,
            hop(worker.namespace, worker.service, JOIN, worker.worker),
            thread,
            decides=lambda: self._peers.eldest() == worker.worker,
            changed=self._peers.touch,
            node_of=self._node_of,
            limit_s=worker.model_timeout_s,
        )
        self._context.metrics.collectors.append(server.metrics)

        async def run() -> None:
            async with thread:
                await server.run()

        self._task = group.create_task(run(), name="joint")

    def load(self) -> Load:
        """Return the joint's load, for the other workers. ``credits``: findings that it can accept now."""
        return self._server.load() if self._server else Load(credits=0)

    def changed(self, worker: str, peer: Peer | None, orderly: bool) -> None:  # noqa: ARG002, FBT001  # a hook of ``Membership``
        """Send the state to all workers that need it from this one, as after a new worker or the end of the eldest."""
        is_running = self._transfers is not None and not self._transfers.done()
        if self._server and self._group and not is_running and self._new_workers():
            self._transfers = self._group.create_task(self._send_states(self._server), name="joint state")

    async def drain(self, timeout_s: float) -> bool:
        """Answer the pending findings; return whether that was done within ``timeout_s`` seconds."""
        return await self._server.drain(timeout_s) if self._server else True

    def cancel(self) -> None:
        """Cancel all tasks; the joint stores its state as they end."""
        for task in filter(None, (self._transfers, self._task)):
            task.cancel()

    def _new_workers(self) -> set[tuple[str, str]]:
        """Return the workers, with their lives, that need the state from this one; none unless this one decides now."""
        if self._peers.eldest() != self._settings.worker.worker:
            return set()
        peers = self._peers.others.items()
        workers = {(name, peer.life) for name, peer in peers if peer.join is not None and not peer.leaving}
        self._receivers &= workers
        return workers - self._receivers

    async def _send_states(self, server: JointServer) -> None:
        """Send the state to one new worker after the other, and again to those that lost a part, until all have it."""
        while workers := self._new_workers():
            for worker, life in workers:
                if await server.send_state(worker):
                    self._receivers.add((worker, life))
            if not workers <= self._receivers:
                await asyncio.sleep(RESEND_S)

    def _node_of(self, worker: str) -> str:
        """Return the node of a worker; this worker's own node if it is not connected."""
        peer = self._peers.others.get(worker)
        return peer.node if peer else self._settings.worker.node


class SlotModel(WrappedModel):
    """A ``Model`` that stands for the model in a slot. A rollout replaces that between two calls of a joint only."""

    def close(self) -> None:
        """Do nothing: the slot closes its model."""


class HoldingThread(ModelThread):
    """A ``ModelThread`` whose calls may use ``model``: the model that is in the slot when a call begins."""

    def __init__(self, name: str, slot: ModelSlot) -> None:
        super().__init__(name)
        self._slot = slot
        self.model = SlotModel(slot.current.model)

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` in the thread and return its result; the slot's present model stays open until then."""
        loaded = self._slot.current

        def run() -> T:
            self.model.model = loaded.model
            return work(*args, **kwargs)

        with loaded.lease():
            return await super().call(run)
