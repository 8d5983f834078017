"""What to say of a broker that did not let us in, and whether trying again helps before somebody changes something."""

from __future__ import annotations

import ssl

from halimede.bus.link import Ended
from halimede.errors import DisconnectedError, NotAllowedError

NO_CERTIFICATE = "with TLS a broker ends a connection so when it wants a client certificate, or does not accept ours"


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
