"""What to say of a broker that did not let us in, and whether trying again helps before somebody changes something."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from halimede.bus.settings import MqttSettings
from halimede.bus.transport import Ended, Transport
from halimede.errors import DisconnectedError, NotAllowedError

NO_CERTIFICATE = "with TLS a broker ends a connection so when it wants a client certificate, or does not accept ours"


async def let_in(link: Transport, accepted: asyncio.Future[None], settings: MqttSettings) -> None:
    """Wait for the broker's word on a connection; without a good one raise DisconnectedError or NotAllowedError."""
    outcomes: list[asyncio.Future[Any]] = [accepted, link.ended]
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        link.abort("no answer")
        raise DisconnectedError("the broker took the connection but does not answer") from None
    except BaseException:
        link.abort("cancelled")
        raise
    if link.ended.done():
        raise turned_away(link.ended.result(), secure=settings.secure)


def turned_away(ended: Ended, *, secure: bool) -> DisconnectedError:
    """Return the error for a connection that ended before the broker accepted us."""
    if ended.barred:
        return NotAllowedError(ended.reason)
    if secure:
        # with TLS 1.3 its word on our certificate comes after the handshake
        return NotAllowedError(f"{ended.reason}: {NO_CERTIFICATE}")
    return DisconnectedError(f"{ended.reason} before the broker had answered; one that wants TLS does that (mqtts://)")


def distrust(error: OSError) -> NotAllowedError:
    """Return the error for a TLS handshake that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotAllowedError(f"the broker's certificate is not accepted: {error.verify_message}")
    reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
    return NotAllowedError(
        f"there is no TLS with the broker ({reason}): it may not speak it (mqtt://), or not accept our certificate"
    )
