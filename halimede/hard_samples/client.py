"""Asks edge workers for the hard samples that they keep, from anywhere on the bus: pages of them, or one whole.

All workers hear a question without a worker's name; what comes within a short time is the answer. Whatever a worker
says, it costs bounded memory and ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import msgspec

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.bus.rpc import RpcClient
from halimede.errors import HalimedeError, NoSubscriberError
from halimede.messages import KeptEntry, KeptReply, KeptRequest

#: seconds in which workers answer: until nothing more has come for a while, and at most
QUIET_S, LONGEST_S = 0.5, 5.0
#: seconds for the answer of one worker that is known to be there
ANSWER_S = 15.0
#: answers to one question that are kept, and bytes of them
MOST, MOST_BYTES = 1024, 64 * 1024 * 1024
#: samples that one worker may keep, as a service may say
MOST_SAMPLES = 1_000_000
#: names that a question may hold, and its answers hold then
NAMES = ("namespace", "service", "worker", "node")
NOBODY = (
    "no edge worker that keeps hard samples is there: set keepHardSamples in the service's edgeWorker, and see "
    "`halimede get ji -A`"
)


class KeptSamples(RpcClient[KeptReply]):
    """What edge workers keep, asked over a connection that is up. Call ``start`` first."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, topics.KEPT_REPLY.at(client=bus.client_id))
        self._to = topics.KEPT_REQUEST.at(client=bus.client_id)

    async def pages(self, wanted: KeptRequest) -> list[KeptReply]:
        """Return the first page of each worker. Raises HalimedeError when nobody keeps anything."""
        replies: dict[tuple[str, ...], KeptReply] = {}
        async for reply in self._replies(wanted, QUIET_S, LONGEST_S):
            replies.setdefault((reply.namespace, reply.service, reply.worker), reply)
            if wanted.worker:
                break
        if not replies:
            raise HalimedeError(NOBODY)
        return list(replies.values())

    async def entries(self, first: KeptReply, wanted: KeptRequest) -> AsyncIterator[KeptEntry]:
        """Yield a worker's samples, the newest first, from its first page on. Raises HalimedeError."""
        page = first
        before, most = wanted.before or None, MOST_SAMPLES
        while True:
            if page.error:
                raise HalimedeError(f"worker {page.worker} on {page.node}: {page.error}")
            for entry in page.entries:
                yield entry
            if not page.next:
                return
            most -= max(1, len(page.entries))  # a page of none has read one at least
            if (before is not None and page.next >= before) or most <= 0:
                raise HalimedeError(f"worker {page.worker} on {page.node}: its pages have no end")
            before = page.next
            page = await self._one(msgspec.structs.replace(_to(first, wanted), before=page.next))

    async def sample(self, entry_id: str, of: KeptReply | None = None) -> KeptReply:
        """Return one sample with its file, of a worker or of whoever has it; raises HalimedeError."""
        request = KeptRequest(id=entry_id)
        try:
            reply = await self._one(_to(of, request) if of else request)
        except TimeoutError:
            raise HalimedeError(
                f"nobody keeps hard sample {entry_id}, or not any longer: see `halimede hard list`"
            ) from None
        if reply.error:
            raise HalimedeError(f"worker {reply.worker} on {reply.node}: {reply.error}")
        sample = reply.sample
        if sample is None or sample.id != entry_id or hashlib.sha256(reply.data).hexdigest() != sample.image.sha256:
            raise HalimedeError(f"worker {reply.worker} on {reply.node}: what it sent is not hard sample {entry_id}")
        return reply

    async def _one(self, wanted: KeptRequest) -> KeptReply:
        limit = ANSWER_S if wanted.worker else LONGEST_S
        async for reply in self._replies(wanted, limit, limit):
            return reply
        raise TimeoutError

    async def _replies(self, wanted: KeptRequest, quiet_s: float, longest_s: float) -> AsyncIterator[KeptReply]:
        """Yield what comes until nothing more has come for a while; what is over the bounds is left out."""
        names = {name: value for name in NAMES if (value := getattr(wanted, name))}
        left = MOST_BYTES

        def accept(delivery: Delivery[KeptReply]) -> bool:
            nonlocal left
            size = len(delivery.packet.payload)
            if size > left or any(getattr(delivery.body, name) != value for name, value in names.items()):
                return False
            left -= size
            return True

        replies = self.gather(
            self._to,
            wanted,
            first_s=longest_s / 2,
            quiet_s=quiet_s,
            longest_s=longest_s,
            most=1 if wanted.worker or wanted.id else MOST,
            expiry_s=round(longest_s),
            accept=accept,
        )
        try:
            async for delivery in replies:
                yield delivery.body
        except NoSubscriberError:
            raise HalimedeError(NOBODY) from None


def _to(of: KeptReply, wanted: KeptRequest) -> KeptRequest:
    return msgspec.structs.replace(wanted, worker=of.worker, namespace=of.namespace, service=of.service)
