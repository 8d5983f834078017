"""Decides whether a message without a subscriber is sent again, because its subscribers may return.

A broker that restarts loses subscriptions, and its clients return one after the other. A worker that restarts is away
for some seconds. A message whose topic had subscribers before is sent again until one has returned, for a limited time.
After that time no message is sent again until one had a subscriber.
"""

from __future__ import annotations

import asyncio

from halimede.bus.port import Bus

#: seconds for which a camera's frames wait, if nothing else is configured
FRAME_RETURN_S = 30.0


class SubscriberReturn:
    """The subscribers of one publisher's messages, by the broker's acknowledgements.

    Args:
        bus: the connection, whose reconnects count.
        wait_s: seconds for which messages wait for subscribers that were there before.
        only_after_reconnect: whether messages wait only if the connection ended since one had a subscriber; otherwise
            they wait whenever subscribers have gone.

    """

    def __init__(self, bus: Bus, wait_s: float, *, only_after_reconnect: bool) -> None:
        self._bus = bus
        self._wait_s = wait_s
        self._only_after_reconnect = only_after_reconnect
        #: the number of the connection on which a message last had a subscriber, 0: none had; and the loop time until
        #: which messages are sent again, 0: they are not
        self._subscribed_on = 0
        self._return_by = 0.0

    def must_resend(self, *, has_subscriber: bool) -> bool:
        """Record whether a sent message had a subscriber; return whether to send it again."""
        connection, now = self._bus.stats.connects, asyncio.get_running_loop().time()
        if has_subscriber:
            self._subscribed_on, self._return_by = connection, 0.0
        elif self._subscribed_on and not (self._only_after_reconnect and self._subscribed_on == connection):
            self._return_by = self._return_by or now + self._wait_s
            if now < self._return_by:
                return True
            self.forget()
        return False

    def forget(self) -> None:
        """Send no message again until one had a subscriber."""
        self._subscribed_on = 0
