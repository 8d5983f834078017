"""Watches: a list's changes as lines of JSON, from a resource version on, for as long as the client listens."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from tests.kubernetes.double import errors, forms
from tests.kubernetes.double.errors import ApiError
from tests.kubernetes.double.kinds import Kind
from tests.kubernetes.double.selectors import Matches, selected
from tests.kubernetes.double.store import Event, Store, Version, Watch


class Streams:
    """All open watches."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: set[Stream] = set()
        #: seconds between bookmarks (the real server: about a minute)
        self.bookmarks = 60.0

    def end(self, code: int | None) -> int:
        reason = "Expired" if code == 410 else "InternalError"
        error = ApiError(code, reason, "ended by the test") if code else None
        for stream in self._open:
            stream.end(error)
        return len(self._open)

    async def serve(self, request: web.Request, kind: Kind, namespace: str, form: str) -> web.StreamResponse:
        """Answer a watch request until it ends."""
        query = request.query
        matches = selected(kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        if query.get("sendInitialEvents"):
            said = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            cause = errors.forbidden("sendInitialEvents", said)
            raise ApiError(422, "Invalid", f'ListOptions.meta.k8s.io "" is invalid: {cause}', details={})
        version = query.get("resourceVersion", "")
        if version and not version.isdecimal():
            raise errors.no_version(version)

        seconds = int(query.get("timeoutSeconds") or 0) or random.uniform(1800, 3600)
        headers = {"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        response = web.StreamResponse(headers=headers)
        response.enable_chunked_encoding()
        bookmarks = self.bookmarks if query.get("allowWatchBookmarks") in {"true", "1"} else None
        stream = Stream(self._store, kind, namespace, matches, form)
        table = self._store.table(kind.storage)
        first = stream.begin(int(version or 0))
        if first is not None:
            table.watches.add(stream.watch)
        self._open.add(stream)
        try:
            await response.prepare(request)
            if first is None:
                oldest = table.floor
                await response.write(forms.failure(errors.expired(f"too old resource version: {version} ({oldest})")))
                return response
            await response.write(first)
            await stream.run(response.write, time.monotonic() + seconds, bookmarks)
        except ConnectionError:
            pass
        finally:
            self._open.discard(stream)
            table.watches.discard(stream.watch)
        return response


class Stream:
    """One watch."""

    def __init__(self, store: Store, kind: Kind, namespace: str, matches: Matches | None, form: str) -> None:
        self._store = store
        self._kind = kind
        self._namespace = namespace
        self._matches = matches
        self._form = form
        self._ended: ApiError | None = None
        self._over = False
        self._at = 0
        self.watch = Watch()

    def begin(self, rv: int) -> bytes | None:
        """Return what is to be told first; None: the version is too old."""
        table = self._store.table(self._kind.storage)
        self._at = self._store.rv
        if rv == 0:
            versions = sorted(table.objects.values(), key=lambda version: version.name)
            versions = list(filter(self._wants, versions))
            return b"".join(forms.added(self._kind, "ADDED", version, self._form) for version in versions)
        if rv < table.floor:
            return None
        return b"".join(map(self._line, table.since(rv)))

    def end(self, error: ApiError | None) -> None:
        self._ended, self._over = error, True
        self.watch.ready.set()

    async def run(self, write: Callable[[bytes], Awaitable[None]], deadline: float, bookmarks: float | None) -> None:
        mark = time.monotonic() + bookmarks if bookmarks else deadline
        while not self._over:
            left = min(deadline, mark) - time.monotonic()
            if left > 0 and not self.watch.events:
                self.watch.ready.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self.watch.ready.wait()
            lines = []
            while self.watch.events:
                event = self.watch.events.popleft()
                self._at = event.rv
                lines.append(self._line(event))
            late = time.monotonic() >= deadline
            if bookmarks and (time.monotonic() >= mark or late):
                mark += bookmarks
                self._at = max(self._at, self._store.rv)
                lines.append(forms.bookmark(self._kind, self._at))
            if data := b"".join(lines):
                await write(data)
            if late:
                return
        if self._ended is not None:
            await write(forms.failure(self._ended))

    def _wants(self, version: Version | None) -> bool:
        if version is None or (self._namespace and version.metadata.get("namespace") != self._namespace):
            return False
        return self._matches is None or self._matches(version.body)

    def _line(self, event: Event) -> bytes:
        new, old = event.new, event.old
        if self._wants(new) and new is not None:
            return forms.line(self._kind, event, "MODIFIED" if self._wants(old) else "ADDED", new, self._form)
        if self._wants(old) and old is not None:
            return forms.line(self._kind, event, "DELETED", old, self._form)
        return b""
