"""One kind of object in memory, with the versions of an API server and with faults on demand: for simulated time."""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import AsyncIterator
from typing import Any

from services.gm.cluster.kubernetes import client
from services.gm.cluster.kubernetes.api_paths import OPENED, ApiResource, Object
from tests.kubernetes.double.patches import merge


class Shelf:
    """``delay_s``: how long each call takes; ``down``: calls fail; ``hangs``: calls never end.

    ``late_s``: how long after a patch was applied its answer comes.
    """

    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[tuple[str, str], Object] = {}
        self.log: list[tuple[int, str, Object]] = []
        self.oldest = 0
        self.delay_s = self.late_s = 0.0
        self.down = self.hangs = False
        #: errors for the calls to come, first one first
        self.errors: list[client.KubernetesApiError] = []
        #: what each call was
        self.calls: list[str] = []
        self.news = asyncio.Event()
        #: watches end at once, say nothing for ever, break after each event
        self.ends = self.silent = self.breaks = False

    def put(self, name: str, **fields: object) -> Object:
        body = self.objects.get(("default", name)) or {
            "metadata": {"name": name, "namespace": "default", "uid": str(uuid.uuid4())}
        }
        return self._keep("MODIFIED" if ("default", name) in self.objects else "ADDED", merge(body, fields))

    def drop(self, name: str) -> None:
        body = self.objects.pop(("default", name))
        self._log("DELETED", body)

    def forget(self) -> None:
        """No watch from before now is served any more."""
        self.oldest = self.version

    async def get(self, api: ApiResource, namespace: str, name: str, *, timeout_s: float | None = None) -> Object:
        await self._call("get", timeout_s)
        if (namespace, name) not in self.objects:
            raise client.NotFoundError("get", 404, "there is none")
        return copy.deepcopy(self.objects[namespace, name])

    async def create(self, api: ApiResource, namespace: str, body: Object, **options: Any) -> Object:
        await self._call("create", options.get("timeout_s"))
        if (namespace, body["metadata"]["name"]) in self.objects:
            raise client.AlreadyExistsError("create", 409, "there is one")
        body = merge(copy.deepcopy(body), {"metadata": {"uid": str(uuid.uuid4()), "namespace": namespace}})
        return self._keep("ADDED", body)

    async def patch(self, api: ApiResource, namespace: str, name: str, body: Object, **options: Any) -> Object:
        await self._call("patch", options.get("timeout_s"))
        if (namespace, name) not in self.objects:
            raise client.NotFoundError("patch", 404, "there is none")
        old = self.objects[namespace, name]
        for field in ("resourceVersion", "uid"):
            if body.get("metadata", {}).get(field, old["metadata"][field]) != old["metadata"][field]:
                raise client.StaleError("patch", 409, f"another {field}")
        answer = self._keep("MODIFIED", merge(old, body))
        await asyncio.sleep(self.late_s)
        return answer

    async def pages(self, api: ApiResource, *, selector: str = "") -> AsyncIterator[tuple[list[Object], str]]:
        await self._call("list", None)
        bodies, version = list(self.objects.values()), str(self.version)
        for at in range(0, len(bodies) or 1, 2):
            yield copy.deepcopy(bodies[at : at + 2]), version

    async def watch(
        self, api: ApiResource, version: str, *, selector: str = "", seconds: float
    ) -> AsyncIterator[tuple[str, Object]]:
        await self._call(f"watch {version}", None)
        at, ends = int(version), asyncio.get_running_loop().time() + seconds
        yield OPENED, {}
        if self.ends:
            return
        while True:
            if at < self.oldest:
                raise client.GoneError("watch", 410, "too old resource version")
            self.news.clear()
            for number, kind, body in [] if self.silent else list(self.log):
                if number > at:
                    at = number
                    yield kind, copy.deepcopy(body)
                    if self.breaks:
                        raise client.UnavailableError("watch", 0, "broken")
            try:
                async with asyncio.timeout_at(ends):
                    await self.news.wait()
            except TimeoutError:
                if self.silent:
                    raise client.UnavailableError("watch", 0, "silent") from None
                return

    async def _call(self, what: str, timeout_s: float | None) -> None:
        self.calls.append(what)
        if self.hangs:
            await asyncio.sleep(timeout_s or 10.0)
            raise client.UnavailableError(what, 0, "it does not answer in time")
        await asyncio.sleep(self.delay_s)
        if self.down:
            raise client.UnavailableError(what, 0, "it is down")
        if self.errors:
            raise self.errors.pop(0)

    def _keep(self, kind: str, body: Object) -> Object:
        self.version += 1
        body = merge(body, {"metadata": {"resourceVersion": str(self.version)}})
        self.objects[body["metadata"]["namespace"], body["metadata"]["name"]] = body
        self._log(kind, body)
        return copy.deepcopy(body)

    def _log(self, kind: str, body: Object) -> None:
        if kind == "DELETED":
            self.version += 1
            body = merge(body, {"metadata": {"resourceVersion": str(self.version)}})
        self.log.append((self.version, kind, body))
        self.news.set()
