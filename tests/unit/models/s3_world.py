"""An S3 store that speaks as much as a download needs, and checks who asks."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from halimede.models import TransferLimits
from tests.ports import serve_app

BODY = os.urandom(3_000_000)
DIGEST = hashlib.sha256(BODY).hexdigest()
KEY_ID, SECRET = "KEYID", "hunter2"
URL = "s3://models/a/small.onnx"
PATIENT = TransferLimits(connect_s=30, inactivity_s=30, total_s=60)


class Store:
    """One bucket with one object. What it answers, tests change as they go."""

    def __init__(self) -> None:
        self.body, self.etag, self.status = BODY, '"1"', 200
        self.how = "whole"
        self.requests: list[web.Request] = []
        self.public = False
        self.key_id = KEY_ID
        self.environment: dict[str, str] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        signed = request.query.get("X-Amz-Signature") and request.query["X-Amz-Credential"]
        if not self.public and not (signed and signed.startswith(f"{self.key_id}/")):
            return web.Response(status=403, text="<Error><Code>AccessDenied</Code></Error>")
        if self.status != 200:
            return web.Response(status=self.status, text=f"<Error><Code>X</Code><Message>{SECRET}</Message></Error>")
        if request.path != "/models/a/small.onnx":
            return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>")
        if request.headers.get("If-None-Match") == self.etag:
            return web.Response(status=304)
        headers = {"ETag": self.etag, "Last-Modified": "Sat, 01 Aug 2026 10:00:00 GMT"}
        if self.how == "whole":
            return web.Response(body=self.body, headers=headers)
        response = web.StreamResponse(headers={**headers, "Content-Length": str(len(self.body))})
        await response.prepare(request)
        await response.write(self.body[:100_000])
        if self.how == "breaks":
            request.transport.abort()
            return response
        await asyncio.sleep(60)
        return response


def environment_of(address: str, key_id: str = KEY_ID) -> dict[str, str]:
    keys = {"ACCESS_KEY_ID": key_id, "SECRET_ACCESS_KEY": SECRET}
    return {"S3_ENDPOINT_URL": address, "S3_USE_HTTPS": "0", **keys}


def enter(environment: Mapping[str, str], patch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        patch.setenv(name, value)


@asynccontextmanager
async def serving(key_id: str = KEY_ID) -> AsyncIterator[Store]:
    store = Store()
    store.key_id = key_id
    app = web.Application()
    app.router.add_get("/{path:.*}", store.answer)
    async with serve_app(app) as address:
        store.environment = environment_of(address, key_id)
        yield store
