"""An edge worker's way to where findings come together: whoever decides now, and what it found without the pixels."""

from __future__ import annotations

import msgspec

from halimede.bus import Bus
from halimede.messages import Frame, Load, Peer, Reply
from halimede.multiedge.membership import Membership
from halimede.offload import OffloadClient
from halimede.offload.channel import hop
from halimede.offload.load_balancer import LoadBalancer
from halimede.tracing import FrameRecord

HOP = "join"
#: findings under way at a time: they wait for others' of the same instant, and are small
WINDOW, WAITERS = 256, 64
NOTHING = memoryview(b"\0")


class EldestPeerBalancer(LoadBalancer):
    """Picks the eldest peer that can take findings: the one where they come together."""

    def __init__(self, peers: Membership) -> None:
        super().__init__()
        self._peers = peers

    def pick(self, now: float) -> str | None:
        """Return the eldest, if it can take one more."""
        eldest = self._peers.eldest()
        return eldest if eldest and self.left(now).get(eldest, 0) > 0 else None

    def known(self, now: float) -> bool:  # noqa: ARG002  # peers know whether one is there
        """Whether anybody decides."""
        return self._peers.eldest() is not None


class JointClient:
    """Asks the worker that decides about one worker's findings. Call ``start`` once before."""

    def __init__(self, bus: Bus, namespace: str, service: str, worker: str, peers: Membership) -> None:
        channel, balancer = hop(namespace, service, HOP, worker), EldestPeerBalancer(peers)
        self.client = OffloadClient(bus, channel, window=WINDOW, waiters=WAITERS, credits_=balancer)

    async def start(self) -> None:
        """Subscribe to the answers."""
        await self.client.start()

    def changed(self, worker: str, peer: Peer | None, orderly: bool) -> None:  # noqa: FBT001  # a hook of ``Membership``
        """Take note of what a worker says of itself; None: it is gone, in order or not."""
        if peer is not None and peer.join and not peer.leaving:
            self.client.advertised(worker, peer.join)
            return
        if peer is not None or orderly:
            self.client.advertised(worker, Load(credits=0, leaving=True))
        if peer is None:
            self.client.gone(worker)

    async def ask(self, frame: Frame, deadline_s: float, trace: FrameRecord | None = None) -> Reply:
        """Return what all say together of a frame. Raises OffloadError."""
        slim = msgspec.structs.replace(frame, encoding="raw", dtype="uint8", shape=[1], data=NOTHING)
        return await self.client.ask(slim, deadline_s, trace)

    def abandon(self) -> None:
        """Let every finding run out of time, now and from now on."""
        self.client.abandon()
