"""What is asked of a broker about subscriptions, each with a deadline, and what it means that no answer comes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from halimede.bus.link import Answer, Link
from halimede.bus.packets import split_shared
from halimede.errors import DisconnectedError

log = structlog.get_logger()

SUBSCRIBE_TIMEOUT = 10.0
#: reason codes (MQTT v5, 3.9.3)
NO_SHARED, NO_WILDCARDS = 0x9E, 0xA2


def ask(link: Link, filter_: str, qos: int) -> Answer:
    """Subscribe at once; the future brings the reason code, or DisconnectedError.

    What the broker said that it does not offer is refused here: at the question some brokers end the connection, for
    ever anew, and others grant it and deliver nothing.
    """
    group, plain = split_shared(filter_)
    if group and not link.grants.shared:
        return _refused(NO_SHARED)
    if not link.grants.wildcards and not {"+", "#"}.isdisjoint(plain.split("/")):
        return _refused(NO_WILDCARDS)
    return link.subscribe(filter_, qos)


def _refused(reason: int) -> Answer:
    answer = Answer()
    answer.set_result(reason)
    return answer


async def subscribe(link: Link, filter_: str, qos: int) -> int | None:
    """Subscribe; return the broker's reason code, None where the next connection has to bring it."""
    try:
        async with asyncio.timeout(SUBSCRIBE_TIMEOUT):
            return await asyncio.shield(ask(link, filter_, qos))
    except DisconnectedError:
        return None
    except TimeoutError:
        link.abort("no answer to a subscription")
        return None


async def recall(link: Link, filter_: str, qos: int) -> None:
    """Subscribe again for what the broker retains; of a connection that stands, no answer is no harm."""
    try:
        async with asyncio.timeout(SUBSCRIBE_TIMEOUT):
            await asyncio.shield(ask(link, filter_, qos))
    except (DisconnectedError, TimeoutError) as error:
        log.debug("recall unanswered", filter=filter_, error=str(error))


async def unsubscribe(link: Link, filter_: str) -> bool:
    """Unsubscribe; return whether the broker has answered."""
    try:
        async with asyncio.timeout(SUBSCRIBE_TIMEOUT):
            await asyncio.shield(link.unsubscribe(filter_))
    except (DisconnectedError, TimeoutError) as error:
        log.debug("unsubscribe unanswered", filter=filter_, error=str(error))
        return False
    return True


async def established(link: Link, answers: Mapping[str, asyncio.Future[int]]) -> dict[str, int] | None:
    """Return the reason codes for a new connection's subscriptions and birth; None where one is missing.

    One of them may be lost while the connection stands. Only a new one brings them all, so this one is ended.
    """
    try:
        async with asyncio.timeout(SUBSCRIBE_TIMEOUT):
            reasons = await asyncio.gather(*answers.values())
    except (DisconnectedError, TimeoutError):
        link.abort("no answer to subscriptions or birth")
        return None
    return dict(zip(answers, reasons, strict=True))
