"""Sends frames to peers with free capacity, and advertises this worker's: ``balance`` decides.

The way to a peer is an offload like any other (``OffloadClient``, ``RequestIntake`` on the hop ``share``): a window, a
deadline, another peer when the first one dies. Only here nobody waits for room: a frame that no peer takes at once is
done at home, and so is one whose peer has not answered in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from halimede.bus import Bus
from halimede.messages import Frame, Load, Peer, Reply
from halimede.multiedge.peer_balancer import Balance, PeerChoice, spare
from halimede.offload import OffloadClient
from halimede.offload.channel import hop
from halimede.pipeline.intake import RequestLimits
from halimede.tracing import FrameRecord

HOP = "share"
#: frames under way to peers: one worker alone may have to feed all the others
WINDOW = 256
LIMITS = RequestLimits()
#: seconds of work up to which a worker takes others' frames, and how many times that much it may have with them
HORIZON_S, OVERRUN = 0.25, 1.5
#: seconds between two looks at what there is to say, and for each peer who would hear it
LOOK_S, LOOK_EACH_S = 0.1, 0.02
#: share by which the time to wait has to change before the others are told
NEWS = 0.2
#: a peer may take so many times as long as was expected, and at least so many seconds
PATIENCE, LEAST_S = 5.0, 0.5


class PeerOffload:
    """Decides for each frame whether a peer shall look at it, and asks that peer. Call ``start`` once before.

    ``home`` says what is before the next frame here.
    """

    def __init__(
        self,
        bus: Bus,
        namespace: str,
        service: str,
        worker: str,
        home: Callable[[], Load],
        *,
        balance: Balance | None = None,
        window: int = WINDOW,
    ) -> None:
        self.balance = balance or Balance()
        self.client = OffloadClient(
            bus, hop(namespace, service, HOP, worker), window=window, waiters=0, credits_=self.balance
        )
        #: frames that peers answered; that were done at home after all
        self.shared = self.returned = 0
        self._worker = worker
        self._home = home
        self._abandoned = False
        self._expected_ms = 0.0

    async def start(self) -> None:
        """Subscribe to the peers' answers."""
        await self.client.start()

    def changed(self, worker: str, peer: Peer | None, orderly: bool) -> None:  # noqa: FBT001  # a hook of ``Peers``
        """Take note of what a peer says of itself; None: it is gone, in order or not."""
        if worker == self._worker:
            return
        if peer is None:
            if orderly:
                self.client.advertised(worker, Load(credits=0, leaving=True))
            self.client.gone(worker)
        else:
            load = peer.share or Load(credits=0)
            self.client.advertised(worker, Load(credits=0, leaving=True) if peer.leaving else load)

    def elsewhere(self) -> bool:
        """Whether a peer would be done with the next frame before this worker.

        Until it is asked, in the next turn of the loop, the frame is counted as being there: frames come in bursts.
        """
        if self._abandoned:
            return False
        loop = asyncio.get_running_loop()
        choice = self.balance.elsewhere(self._home(), loop.time())
        if choice is None:
            return False
        self.balance.sent(choice.worker)
        loop.call_soon(self._dispatch, choice)
        return True

    async def ask(self, frame: Frame, deadline_s: float, trace: FrameRecord | None = None) -> Reply:
        """Return a peer's answer. Raises OffloadError; half of the time is left for doing it at home then."""
        loop = asyncio.get_running_loop()
        patience_s = max(LEAST_S, PATIENCE * self._expected_ms / 1000)
        began = loop.time()
        try:
            reply = await self.client.ask(frame, min(deadline_s / 2, patience_s), trace)
        except BaseException:
            self.returned += 1
            raise
        self.shared += 1
        self.balance.learn(reply.worker, (loop.time() - began) * 1000, reply.queue_ms + reply.compute_ms)
        return reply

    def abandon(self) -> None:
        """Let every sample run out of time, now and from now on, and send no more away."""
        self._abandoned = True
        self.client.abandon()

    def _dispatch(self, choice: PeerChoice) -> None:
        """Its turn has come: the client itself counts it from here on."""
        self.balance.answered(choice.worker)
        self.balance.prefer(choice.worker)
        self._expected_ms = choice.ms


class SpareCapacity:
    """Advertises to peers how many of their frames this worker can take: what ``home`` leaves of ``HORIZON_S`` seconds.

    Stands as the advertiser of the ``RequestIntake`` that takes them. ``said`` is called when there is news, and
    ``load`` is then asked; ``peers`` counts who hears it: with the square of them their broker's work would grow.
    """

    def __init__(self, home: Callable[[], Load], said: Callable[[], None], peers: Callable[[], int]) -> None:
        self._home = home
        self._say = said
        self._peers = peers
        self._told = Load(credits=0)
        self._withdrawn = False

    def load(self) -> Load:
        """Return what this worker can take now."""
        if self._withdrawn:
            return Load(credits=0)
        return spare(self._home(), most=LIMITS.queue, horizon_s=HORIZON_S)

    def busy(self) -> bool:
        """Whether to send back what peers send all the same, because many of them came at once."""
        home = self._home()
        return home.queued > 1 and (home.queued + 1) * home.service_ms > OVERRUN * HORIZON_S * 1000

    def touch(self) -> None:
        """Nothing to do: it looks by itself, because its own frames change its room, too."""

    async def run(self) -> None:
        """Look again and again, until withdrawn or cancelled."""
        while not self._withdrawn:
            load = self.load()
            if news(self._told, load):
                self._told = load
                self._say()
            await asyncio.sleep(max(LOOK_S, LOOK_EACH_S * self._peers()))

    async def withdraw(self) -> None:
        """Take nothing more."""
        self._withdrawn = True
        self._say()


def news(told: Load, load: Load) -> bool:
    """Whether others would choose otherwise if they knew: there is room now or none, or the wait has changed much."""
    before, now = (told.queued + 1) * told.service_ms, (load.queued + 1) * load.service_ms
    return bool(told.credits) != bool(load.credits) or abs(now - before) > NEWS * before
