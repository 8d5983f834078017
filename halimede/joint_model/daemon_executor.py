"""A thread for a user's model that a program's end does not wait for: its predict may never come back."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: seconds that the end of Python waits for a call under way: native code that is cut off would abort the process
LAST_S = 2.0


class DaemonExecutor(Executor):
    """One thread. Unlike a ThreadPoolExecutor's, Python waits for it a moment only when it ends."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"{name}_0", daemon=True)
        self._thread.start()
        atexit.register(self._last)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call ``fn`` after what was submitted before."""
        future: Future[T] = Future()
        self._queue.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """End the thread after what was submitted, or after the call under way if ``cancel_futures``."""
        while cancel_futures:
            try:
                waiting = self._queue.get_nowait()
            except Empty:
                break
            if waiting:
                waiting[0].cancel()
        self._queue.put(None)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        while waiting := self._queue.get():
            future, work = waiting
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  # as ThreadPoolExecutor: its caller gets it
                future.set_exception(error)
            del waiting, future, work  # nothing is held while it waits
        atexit.unregister(self._last)

    def _last(self) -> None:
        self.shutdown(wait=False, cancel_futures=True)
        self._thread.join(LAST_S)
