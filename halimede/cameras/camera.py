"""One camera for its whole life: opens its source, reads it, and opens it again after a failure.

A child process reads the source (``ReaderClient``); the pictures go to a sink, such as ``CameraPublisher.take``.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from halimede.cameras import ipc_messages
from halimede.cameras.camera_status import CameraStatusTracker, State
from halimede.cameras.ipc_messages import CapturedPicture, ReaderJob, SourceError
from halimede.cameras.reader_client import ReaderClient
from halimede.cameras.settings import CameraSettings
from halimede.system.backoff import exponential

log = structlog.get_logger()

#: takes a picture with its number from 0 on; returns whether it was accepted (a live camera continues without it)
Sink = Callable[[CapturedPicture, int], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class CameraBackoff:
    """Seconds until a source is opened again: ``first_s``, doubled each time up to ``longest_s``, with jitter of half.

    It starts again after ``good_s`` of running. After a wrong password it is at least ``locked_s``, because cameras
    lock out clients that retry too often.
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    locked_s: float = 10.0
    good_s: float = 10.0

    def pause(self, failures: int, reason: str, chance: float) -> float:
        """Return the seconds after ``failures`` failures in a row (1 is the first); ``reason``: of the last one.

        ``chance``: a random number in 0..1.
        """
        pause = exponential(failures, self.first_s, self.longest_s) * (0.5 + chance / 2)
        return max(pause, self.locked_s * (1 + chance)) if reason == ipc_messages.UNAUTHORIZED else pause


#: the usual pauses
BACKOFF = CameraBackoff()


class Camera:
    """Reads one source and passes its numbered pictures to a sink, at most ``window`` of the settings at a time.

    ``backoff``: the pauses before the source is opened again.

    Attributes:
        settings: of the camera.
        tracker: its state and counts, for statuses.

    """

    def __init__(self, settings: CameraSettings, sink: Sink, *, backoff: CameraBackoff = BACKOFF) -> None:
        self.settings = settings
        self.tracker = CameraStatusTracker(settings)
        self._sink = sink
        self._backoff = backoff
        self._chance = random.SystemRandom()
        self._sequence = 0

    async def run(self, stop: asyncio.Event, *, once: bool = False) -> None:
        """Read until ``stop``, or until the end of a file that is not looped. Pictures in progress are sent.

        ``once``: a source without any frame is not tried again: raises SourceError then. An error that the sink raises
        comes in an ExceptionGroup.
        """
        loop = asyncio.get_running_loop()
        failures = 0
        while not stop.is_set():
            self.tracker.opening(time.time(), again=failures > 0)
            began = loop.time()
            try:
                await self._read(stop)
            except SourceError as error:
                if not self.settings.address.live and error.reason == ipc_messages.ENDED:
                    self.tracker.ended("stopped", error.reason, error.message)
                    return
                if once and not self._sequence:
                    raise SourceError(error.reason, self.settings.address.redact(error.message)) from None
                if self.tracker.has_run and loop.time() - began >= self._backoff.good_s:
                    failures = 0
                failures += 1
                pause = self._backoff.pause(failures, error.reason, self._chance.random())
                self._record_failure(error, pause, failures)
                await wait_stopped(stop, pause)
        self.tracker.ended("stopped", "", "")

    async def _read(self, stop: asyncio.Event) -> None:
        """Read until ``stop`` or the end of the source; pictures in progress are sent before the return.

        Raises SourceError with the reason at the end of the source.
        """
        error: SourceError | None = None
        async with (
            ReaderClient(ReaderJob(parent=os.getpid(), camera=self.settings)) as feed,
            asyncio.TaskGroup() as group,
        ):
            feed.request(self.settings.window)
            stopping = group.create_task(stop.wait())
            reading = group.create_task(self._pictures(feed, group))
            await asyncio.wait([stopping, reading], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if reading.done():
                error = reading.result()
            reading.cancel()
        if error:
            raise error

    async def _pictures(self, feed: ReaderClient, group: asyncio.TaskGroup) -> SourceError:
        """Pass pictures to the sink until the source ends; return why."""
        try:
            async for message in feed:
                self.tracker.count(message.counts)
                if isinstance(message, CapturedPicture):
                    self.tracker.arrived(message)
                    group.create_task(self._send(feed, message, self._sequence))
                    self._sequence += 1
        except SourceError as error:
            return error
        raise AssertionError("a feed ends with its reason")

    async def _send(self, feed: ReaderClient, picture: CapturedPicture, sequence: int) -> None:
        """Pass one picture to the sink, and request the next."""
        if await self._sink(picture, sequence):
            self.tracker.sent(len(picture.data), picture.taken_ns, time.time())
        else:
            self.tracker.dropped += 1
        feed.request()

    def _record_failure(self, error: SourceError, pause: float, failures: int) -> None:
        """Show a failure in the state, and log it unless the same one was logged before."""
        text = self.settings.address.redact(error.message)
        state: State = "stalled" if error.reason == ipc_messages.STALLED else "failed"
        is_end = error.reason == ipc_messages.ENDED and self.tracker.has_run  # such as a film that a server streams
        before = self.tracker.reason
        self.tracker.ended("connecting" if is_end else state, error.reason, text)
        if before != error.reason or failures == 1:  # an unchanged reason is logged once
            (log.info if is_end else log.warning)(
                "stream ended" if is_end else "camera broke off",
                camera=self.settings.name,
                source=self.settings.address.shown,
                reason=error.reason,
                error=text,
                pause_s=round(pause, 1),
            )


async def wait_stopped(stop: asyncio.Event, timeout_s: float) -> None:
    """Wait until ``stop``, at most ``timeout_s`` seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            await stop.wait()
    except TimeoutError:
        return
