"""Requests the stored hard samples of edge workers, from any client of the bus: pages, or single samples.

All workers receive a request without a worker's name; the replies that arrive within a short time are the result. A
reply has a page of samples, or one sample with its file. Whatever a worker replies, memory and time are bounded.
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

#: seconds to wait for replies: without another one, and in total; the first reply has half of the total
QUIET_S, LONGEST_S = 0.5, 5.0
#: the total if one worker is named, which is known to be online: half of it is the time for its reply
ANSWER_S = 15.0
#: most replies to one request, and most bytes of all
MAX_REPLIES, MAX_BYTES = 1024, 64 * 1024 * 1024
#: most samples of one worker, as in a service's spec
MAX_SAMPLES = 1_000_000
#: fields of a request that name workers; its replies must contain the same names
NAMES = ("namespace", "service", "worker", "node")
#: the error if no worker replies
NOBODY = (
    "no edge worker that keeps hard samples is there: set keepHardSamples in the service's edgeWorker, and see "
    "`halimede get ji -A`"
)
#: the error if no worker has a sample
NOT_KEPT = "nobody keeps hard sample {id}, or not any longer: see `halimede hard list`"


class KeptSamples(RpcClient[KeptReply]):
    """Requests the stored samples of edge workers over an open connection. Call ``start`` (of ``RpcClient``) first."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, topics.KEPT_REPLY.at(client=bus.client_id))
        self._address = topics.KEPT_REQUEST.at(client=bus.client_id)

    async def pages(self, request: KeptRequest) -> list[KeptReply]:
        """Return the first page of samples that match ``request``, from each worker that replies in time.

        Waits until no reply has arrived for ``QUIET_S`` (for the first one: half of ``LONGEST_S``), at most
        ``LONGEST_S``. With the name of a worker, the first reply is the only one. Raises HalimedeError if no worker
        replies, and BusError.
        """
        replies: dict[tuple[str, ...], KeptReply] = {}
        async for reply in self._replies(request, QUIET_S, LONGEST_S):
            replies.setdefault((reply.namespace, reply.service, reply.worker), reply)
            if request.worker:
                break
        if not replies:
            raise HalimedeError(NOBODY)
        return list(replies.values())

    async def entries(self, first: KeptReply, request: KeptRequest) -> AsyncIterator[KeptEntry]:
        """Yield a worker's samples that match ``request``, the newest first, from its first page on.

        ``first``: that page, of ``pages``. Raises HalimedeError if the worker reports an error or its pages do not end,
        TimeoutError if it does not reply within half of ``ANSWER_S``, and BusError.
        """
        page = first
        position, samples_left = request.before or None, MAX_SAMPLES
        while True:
            if page.error:
                raise HalimedeError(f"worker {page.worker} on {page.node}: {page.error}")
            for entry in page.entries:
                yield entry
            if not page.next:
                return
            samples_left -= max(1, len(page.entries))  # an empty page has still read at least one
            if (position is not None and page.next >= position) or samples_left <= 0:
                raise HalimedeError(f"worker {page.worker} on {page.node}: its pages have no end")
            position = page.next
            page = await self._first_reply(msgspec.structs.replace(_for_worker(first, request), before=page.next))

    async def sample(self, entry_id: str, worker_page: KeptReply | None = None) -> KeptReply:
        """Return one sample with its file: from the worker of ``worker_page``, else from any worker that has it.

        Raises HalimedeError if no worker sends the sample in time, and BusError.
        """
        request = KeptRequest(id=entry_id)
        reply = await self._reply_about_sample(_for_worker(worker_page, request) if worker_page else request)
        sample = reply.sample
        if sample is None or sample.id != entry_id or hashlib.sha256(reply.data).hexdigest() != sample.image.sha256:
            raise HalimedeError(f"worker {reply.worker} on {reply.node}: what it sent is not hard sample {entry_id}")
        return reply

    async def label(self, entry_id: str, label: PersonLabel) -> KeptReply:
        """Store a person's label of a sample at the worker that has it; return the sample, without its file.

        Raises HalimedeError if no worker stores the label in time, and BusError.
        """
        reply = await self._reply_about_sample(KeptRequest(id=entry_id, person=label))
        if reply.sample is None or label not in reply.sample.labels:
            raise HalimedeError(f"worker {reply.worker} on {reply.node} did not store the label: update halimede there")
        return reply

    async def _reply_about_sample(self, request: KeptRequest) -> KeptReply:
        """Return the first reply to a request about one sample. Raises HalimedeError without one, or for an error."""
        try:
            reply = await self._first_reply(request)
        except TimeoutError:
            raise HalimedeError(NOT_KEPT.format(id=request.id)) from None
        if reply.error:
            raise HalimedeError(f"worker {reply.worker} on {reply.node}: {reply.error}")
        return reply

    async def _first_reply(self, request: KeptRequest) -> KeptReply:
        """Return the first reply to a request. Raises TimeoutError, BusError, HalimedeError without a subscriber."""
        limit = ANSWER_S if request.worker else LONGEST_S
        async for reply in self._replies(request, limit, limit):
            return reply
        raise TimeoutError

    async def _replies(self, request: KeptRequest, quiet_s: float, longest_s: float) -> AsyncIterator[KeptReply]:
        """Yield replies until none has arrived for ``quiet_s``, at most for ``longest_s``, in seconds.

        The first reply has half of ``longest_s``. Replies with other names than the request, and replies over
        ``MAX_BYTES`` in total, are dropped. Raises HalimedeError without a subscriber, and BusError.
        """
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
            self._address,
            request,
            first_s=longest_s / 2,
            quiet_s=quiet_s,
            longest_s=longest_s,
            most=1 if request.worker or request.id else MAX_REPLIES,
            expiry_s=round(longest_s),
            accepts=accepts,
        )
        try:
            async for delivery in replies:
                yield delivery.body
        except NoSubscriberError:
            raise HalimedeError(NOBODY) from None


def _for_worker(page: KeptReply, request: KeptRequest) -> KeptRequest:
    """Return the request with the names of the worker that sent a page."""
    return msgspec.structs.replace(request, worker=page.worker, namespace=page.namespace, service=page.service)
