"""Models in an S3 store (``s3://bucket/key``): Amazon's, MinIO, Ceph and others. Credentials come by environment.

The library (extra ``s3``) is asked for one stream without retries of its own: bounds, verification and patience are the
fetcher's. It is never left to look for credentials by itself, which on some machines means asking the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from halimede.errors import InvalidFieldError
from halimede.models.cache import BLOCK
from halimede.models.errors import FetchError, Reason, redact
from halimede.models.stream import Asker, Limits, Stream

if TYPE_CHECKING:
    from obstore.store import S3Store

BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
REGION = "us-east-1"
MISSING = 'models in S3 need an extra package: install it with pip install "halimede[s3]"'


@dataclass(frozen=True, slots=True)
class Access:
    """What opens a store. ``endpoint`` is a URL, empty for Amazon's; without a key it is asked as anybody may."""

    endpoint: str = ""
    key_id: str = ""
    secret: str = ""
    region: str = REGION

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Access:
        """Read Sedna's names. Raises InvalidFieldError, without a secret in it."""
        endpoint, key_id, secret = (
            environ.get(n, "") for n in ("S3_ENDPOINT_URL", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
        )
        if bool(key_id) != bool(secret):
            missing = "SECRET_ACCESS_KEY" if key_id else "ACCESS_KEY_ID"
            raise InvalidFieldError(missing, "", "ACCESS_KEY_ID and SECRET_ACCESS_KEY go together")
        if endpoint and "://" not in endpoint:
            https = environ.get("S3_USE_HTTPS", "").lower()
            if https not in {"", "0", "1", "false", "true"}:
                raise InvalidFieldError("S3_USE_HTTPS", https, "write 1 or 0")
            endpoint = f"http{'' if https in {'0', 'false'} else 's'}://{endpoint}"
        if endpoint and not re.fullmatch(r"https?://[^\s/@?#]+/?", endpoint):
            raise InvalidFieldError("S3_ENDPOINT_URL", redact(endpoint), "write host:port or http(s)://host:port")
        return cls(endpoint.rstrip("/"), key_id, secret, environ.get("S3_REGION") or REGION)


def s3_asker(url: str) -> Asker:
    """Return who asks for an object: two stores have buckets of one name, and one store gives them to some only."""
    access = _access()
    secret = hashlib.sha256(access.secret.encode()).hexdigest()
    key = json.dumps([url, access.endpoint, access.region, access.key_id, secret])
    return Asker(key, credentials=bool(access.key_id))


def _access() -> Access:
    try:
        return Access.read(os.environ)
    except InvalidFieldError as error:
        raise FetchError(Reason.INVALID_URL, str(error)) from None


def _place(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    key = parts.path.lstrip("/")
    if not BUCKET.fullmatch(parts.netloc) or not key or parts.query or parts.fragment:
        raise FetchError(Reason.INVALID_URL, f"{redact(url)}: write s3://bucket/key")
    return parts.netloc, key


@contextlib.asynccontextmanager
async def open_s3(url: str, known: str, limits: Limits) -> AsyncIterator[Stream]:
    """Open an object. Every failure is raised without its cause, whose text may hold a signature."""
    bucket, key = _place(url)
    try:
        import obstore  # noqa: PLC0415  # not everybody has models there
        from obstore import exceptions  # noqa: PLC0415
    except ImportError:
        raise FetchError(Reason.NOT_INSTALLED, f"{redact(url)}: {MISSING}") from None
    access = _access()
    shown = f"{redact(url)} at {access.endpoint or 'Amazon S3'}"
    try:
        store = _store(bucket, access, limits)
        async with asyncio.timeout(limits.connect_s + limits.inactivity_s):
            found = await obstore.get_async(store, key, options={"if_none_match": known} if known else {})
        blocks = found.stream(min_chunk_size=BLOCK)
        yield Stream(found.meta["e_tag"] or "", found.meta["size"], _bounded(blocks, limits.inactivity_s))
    except exceptions.NotModifiedError:
        yield Stream(known, None, None)
    except TimeoutError:
        raise FetchError(Reason.TIMEOUT, f"{shown} did not answer in time", temporary=True) from None
    except FileNotFoundError:
        raise FetchError(Reason.NOT_FOUND, f"{shown} does not exist") from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
        how = "these credentials" if access.key_id else "no credentials"
        raise FetchError(Reason.ACCESS_DENIED, f"{shown} is not given for {how}") from None
    except (exceptions.InvalidPathError, ValueError):
        raise FetchError(Reason.INVALID_URL, f"{shown} cannot be asked for") from None
    except exceptions.BaseError as error:
        text = f"{shown} cannot be reached or broke off ({type(error).__name__})"
        raise FetchError(Reason.UNREACHABLE, text, temporary=True) from None


def _store(bucket: str, access: Access, limits: Limits) -> S3Store:
    from obstore.store import S3Store  # noqa: PLC0415

    return S3Store(
        bucket,
        config={
            "region": access.region,
            **({"endpoint": access.endpoint} if access.endpoint else {}),
            **(
                {"access_key_id": access.key_id, "secret_access_key": access.secret}
                if access.key_id
                else {"skip_signature": True}
            ),
        },
        client_options={
            "allow_http": access.endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=limits.connect_s),
            "timeout": timedelta(seconds=limits.total_s),
        },
        retry_config={"max_retries": 0},
    )


async def _bounded(blocks: AsyncIterator[bytes], inactivity_s: float) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(inactivity_s):
            block = await anext(blocks, None)
        if block is None:
            return
        yield bytes(block)  # whatever buffer the library has made of it
