"""The router's decision: the edge answers, mining judges the answer, and hard requests go to the cloud as well.

A request is hard if one of its samples is hard. Then the whole request goes to the cloud, unchanged.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import structlog

from halimede.log import RateLimitedLogger
from halimede.messages import Prediction
from halimede.mining import Miner, judge
from halimede.offload.errors import OffloadReason
from halimede.offload.limits import CircuitBreaker
from halimede.serving.errors import ModelUnavailableError
from halimede.serving.router.backend_client import (
    Backend,
    BackendResponse,
    Body,
    ResponseReader,
    UnreadableError,
    UpstreamError,
)

log = structlog.get_logger()

#: reason of an answer from the cloud because the edge did not answer
NO_EDGE = "no-edge"


@dataclass(slots=True)
class Routed:
    """The answer to a request, with its origin.

    Attributes:
        answer: the response for the client.
        by: the model that answered: ``edge`` or ``cloud``.
        hard: mining found the request hard, or could not judge it, or the edge did not answer.
        degraded: the edge answered a hard request, because the cloud did not.
        reason: why it is degraded, or why the edge was not asked; otherwise empty.
        edge: the edge's predictions, one for each sample; empty if they could not be read.
        edge_s: seconds that the edge took; 0: it did not answer.
        cloud_s: seconds that the cloud took; 0: it was not asked.

    """

    answer: BackendResponse
    by: str
    hard: bool = False
    degraded: bool = False
    reason: str = ""
    edge: list[Prediction] = field(default_factory=list)
    edge_s: float = 0.0
    cloud_s: float = 0.0

    def parameters(self) -> dict[str, str | bool]:
        """Return the parameters that report the decision to a client."""
        parameters: dict[str, str | bool] = {"by": self.by, "hard": self.hard, "degraded": self.degraded}
        return {**parameters, "reason": self.reason} if self.reason else parameters


@dataclass(slots=True)
class Router:
    """Two models and the mining between them.

    Attributes:
        edge: the model that gets each request.
        cloud: the model that gets hard requests, and those that the edge does not answer.
        miner: decides which requests are hard.
        reader: finds the predictions in the edge's answer.
        deadline_s: seconds that the cloud has for an answer.
        edge_timeout_s: seconds that the edge has.
        circuit: stops requests to the cloud while it does not answer.
        answered: number of answered requests since the start, by the model that answered (``edge``, ``cloud``).
        degraded: number of hard requests that the edge answered, by reason.
        hard: number of hard requests that were answered.
        failed: number of requests that neither model answered.
        mining_errors: number of predictions that mining could not judge, and of answers that could not be read.

    """

    edge: Backend
    cloud: Backend
    miner: Miner
    reader: ResponseReader = field(default_factory=ResponseReader)
    deadline_s: float = 2.0
    edge_timeout_s: float = 10.0
    circuit: CircuitBreaker = field(default_factory=CircuitBreaker)
    answered: Counter[str] = field(default_factory=Counter)
    degraded: Counter[str] = field(default_factory=Counter)
    hard: int = 0
    failed: int = 0
    mining_errors: int = 0
    _limited_log: RateLimitedLogger = field(default_factory=RateLimitedLogger)

    async def answer(self, body: bytes, headers: dict[str, str]) -> Routed:
        """Return the answer to a request with this body and these headers.

        Raises ModelUnavailableError if neither model answers.
        """
        try:
            routed = await self._answer(body, headers)
        except ModelUnavailableError:
            self.failed += 1
            raise
        self.answered[routed.by] += 1
        self.hard += routed.hard
        if routed.degraded:
            self.degraded[routed.reason] += 1
        return routed

    async def _answer(self, body: bytes, headers: dict[str, str]) -> Routed:
        """Return the answer to a request, without counting it. Raises ModelUnavailableError."""
        clock = asyncio.get_running_loop()
        began = clock.time()
        try:
            first = await self.edge.ask(body, headers, self.edge_timeout_s)
        except UpstreamError as error:
            return await self._without_edge(body, headers, error)
        routed = Routed(first, "edge", edge_s=clock.time() - began)
        if first.status != 200:
            return routed
        routed.edge, routed.hard = self._judge(first)
        if routed.hard:
            began = clock.time()
            reply, routed.reason = await self._ask_cloud(body, headers)
            routed.cloud_s = clock.time() - began
            if reply is None:
                routed.degraded = True
            else:
                routed.answer, routed.by = reply, "cloud"
        return routed

    def _judge(self, answer: BackendResponse) -> tuple[list[Prediction], bool]:
        """Return the predictions in the edge's answer, and whether one is hard; an unreadable answer is hard."""
        try:
            _, predictions = self.reader.read(answer)
        except UnreadableError as error:
            self.mining_errors += 1
            self._limited_log.warning("edge prediction not mined", error=str(error)[:256])
            return [], True
        verdicts = [judge(self.miner, prediction) for prediction in predictions]
        for verdict in verdicts:
            if verdict.error:
                self.mining_errors += 1
                self._limited_log.warning("mining failed", error=verdict.error[:256])
        return predictions, any(verdict.hard for verdict in verdicts)

    async def _ask_cloud(self, body: bytes, headers: dict[str, str]) -> tuple[BackendResponse | None, str]:
        """Return the cloud's answer and an empty reason; or None, and the reason why there is no answer.

        Tells the circuit breaker how the request ended.
        """
        clock = asyncio.get_running_loop()
        if not self.cloud.has_address:
            return None, str(OffloadReason.NO_CLOUD)
        if not self.circuit.admit(clock.time()):
            return None, str(OffloadReason.CIRCUIT_OPEN)
        try:
            reply = await self.cloud.ask(body, headers, self.deadline_s)
        except UpstreamError as error:
            self._limited_log.warning("cloud did not answer", error=str(error)[:256])
            if error.slow:
                self.circuit.timed_out(clock.time())
                return None, str(OffloadReason.DEADLINE)
            if error.broken:
                self.circuit.succeeded()
                return None, str(OffloadReason.ERROR)
            self.circuit.nobody(clock.time())
            return None, str(OffloadReason.NO_CLOUD)
        except BaseException:
            self.circuit.abandoned(clock.time())
            raise
        self.circuit.succeeded()
        # the models differ: the cloud may refuse a request that the edge has answered
        return (reply, "") if reply.status == 200 else (None, str(OffloadReason.ERROR))

    async def _without_edge(self, body: bytes, headers: dict[str, str], error: UpstreamError) -> Routed:
        """Return the cloud's answer, because there is none of the edge to judge. Raises ModelUnavailableError."""
        self._limited_log.warning("edge did not answer", error=str(error)[:256])
        reply, reason = await self._ask_cloud(body, headers)
        if reply is None:
            raise ModelUnavailableError(f"neither model answers: {error}; cloud: {reason}")
        return Routed(reply, "cloud", hard=True, reason=NO_EDGE)


def response_of(routed: Routed, name: str) -> tuple[bytes, int]:
    """Return the body for the client, with the router's name and decision in it, and the length of its JSON."""
    answer = routed.answer
    try:
        body = msgspec.json.decode(memoryview(answer.body)[: answer.head], type=Body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return answer.body, answer.head  # a refusal, or not a server of the protocol: return it unchanged
    body.model_name, body.parameters = name, {**body.parameters, **routed.parameters()}
    head = msgspec.json.encode(body)
    return head + answer.body[answer.head :], len(head)


def best(predictions: Sequence[Prediction]) -> Prediction:
    """Return the prediction of a request with one sample; an empty prediction if there is none."""
    return predictions[0] if predictions else Prediction()
