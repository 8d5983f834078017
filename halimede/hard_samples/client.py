"""Requests the stored hard samples of edge workers, from any client of the bus: pages, or single samples.

All workers receive a request without a worker's name; the replies that arrive within a short time are the result.
Whatever a worker replies, memory and time are bounded.
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
from halimede.messages import KeptEntry, KeptReply, KeptRequest, PersonLabel

#: seconds to wait for replies: without another one, and in total
QUIET_S, LONGEST_S = 0.5, 5.0
#: seconds for the reply of one worker that is known to be online
ANSWER_S = 15.0
#: most replies to one request that are kept, and their bytes
MAX_REPLIES, MAX_BYTES = 1024, 64 * 1024 * 1024
#: most samples of one worker, as in a service's spec
MAX_SAMPLES = 1_000_000
#: names that a request may contain; its replies must contain the same
NAMES = ("namespace", "service", "worker", "node")
NOBODY = (
    "no edge worker that keeps hard samples is there: set keepHardSamples in the service's edgeWorker, and see "
    "`halimede get ji -A`"
)

NOT_KEPT = "nobody keeps hard sample {id}, or not any longer: see `halimede hard list`"


class KeptSamples(RpcClient[KeptReply]):
    """Requests the stored samples of edge workers over an open connection. Call ``start`` first."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, topics.KEPT_REPLY.at(client=bus.client_id))
        self._to = topics.KEPT_REQUEST.at(client=bus.client_id)

    async def pages(self, request: KeptRequest) -> list[KeptReply]:
        """Return the first page of each worker. Raises HalimedeError if no worker stores samples."""
        replies: dict[tuple[str, ...], KeptReply] = {}
        async for reply in self._replies(request, QUIET_S, LONGEST_S):
            replies.setdefault((reply.namespace, reply.service, reply.worker), reply)
            if request.worker:
                break
        if not replies:
            raise HalimedeError(NOBODY)
        return list(replies.values())

    async def entries(self, first: KeptReply, request: KeptRequest) -> AsyncIterator[KeptEntry]:
        """Yield a worker's samples, the newest first, from its first page on. Raises HalimedeError."""
        page = first
        before, most = request.before or None, MAX_SAMPLES
        while True:
            if page.error:
                raise HalimedeError(f"worker {page.worker} on {page.node}: {page.error}")
            for entry in page.entries:
                yield entry
            if not page.next:
                return
            most -= max(1, len(page.entries))  # an empty page has still read at least one
            if (before is not None and page.next >= before) or most <= 0:
                raise HalimedeError(f"worker {page.worker} on {page.node}: its pages have no end")
            before = page.next
            page = await self._one(msgspec.structs.replace(_to(first, request), before=page.next))

    async def sample(self, entry_id: str, of: KeptReply | None = None) -> KeptReply:
        """Return one sample with its file, from a given worker or any that has it; raises HalimedeError."""
        request = KeptRequest(id=entry_id)
        try:
            reply = await self._one(_to(of, request) if of else request)
        except TimeoutError:
            raise HalimedeError(NOT_KEPT.format(id=entry_id)) from None
        if reply.error:
            raise HalimedeError(f"worker {reply.worker} on {reply.node}: {reply.error}")
        sample = reply.sample
        if sample is None or sample.id != entry_id or hashlib.sha256(reply.data).hexdigest() != sample.image.sha256:
            raise HalimedeError(f"worker {reply.worker} on {reply.node}: what it sent is not hard sample {entry_id}")
        return reply

    async def label(self, entry_id: str, label: PersonLabel) -> KeptReply:
        """Store a person's label of a sample, at the worker that has it. Raises HalimedeError."""
        try:
            reply = await self._one(KeptRequest(id=entry_id, person=label))
        except TimeoutError:
            raise HalimedeError(NOT_KEPT.format(id=entry_id)) from None
        if reply.error:
            raise HalimedeError(f"worker {reply.worker} on {reply.node}: {reply.error}")
        if reply.sample is None or label not in reply.sample.labels:
            raise HalimedeError(f"worker {reply.worker} on {reply.node} did not store the label: update halimede there")
        return reply

    async def _one(self, request: KeptRequest) -> KeptReply:
        limit = ANSWER_S if request.worker else LONGEST_S
        async for reply in self._replies(request, limit, limit):
            return reply
        raise TimeoutError

    async def _replies(self, request: KeptRequest, quiet_s: float, longest_s: float) -> AsyncIterator[KeptReply]:
        """Yield replies until none has arrived for a while; replies over the bounds are dropped."""
        names = {name: value for name in NAMES if (value := getattr(request, name))}
        free_bytes = MAX_BYTES

        def accepts(delivery: Delivery[KeptReply]) -> bool:
            nonlocal free_bytes
            size = len(delivery.packet.payload)
            if size > free_bytes or any(getattr(delivery.body, name) != value for name, value in names.items()):
                return False
            free_bytes -= size
            return True

        replies = self.gather(
            self._to,
            request,
            first_s=longest_s / 2,
            quiet_s=quiet_s,
            longest_s=longest_s,
            most=1 if request.worker or request.id else MAX_REPLIES,
            expiry_s=round(longest_s),
            accept=accepts,
        )
        try:
            async for delivery in replies:
                yield delivery.body
        except NoSubscriberError:
            raise HalimedeError(NOBODY) from None


def _to(of: KeptReply, request: KeptRequest) -> KeptRequest:
    return msgspec.structs.replace(request, worker=of.worker, namespace=of.namespace, service=of.service)
