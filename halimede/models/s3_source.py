"""Models in an S3 store (``s3://bucket/key``): Amazon's, MinIO, Ceph and others. The environment has the credentials.

The library (extra ``s3``) only signs the URL; the signed URL is read as from any HTTP server, under the same policy and
limits. The library never searches for credentials by itself, which on some machines means network requests.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import quote, urlsplit

from halimede.environment import flag
from halimede.errors import InvalidFieldError
from halimede.models.address_policy import AddressPolicy
from halimede.models.errors import FetchError, FetchReason, redact
from halimede.models.http_source import open_http
from halimede.models.source_types import Requester, SourceRequest, Stream, TransferLimits

BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
REGION = "us-east-1"
MISSING = 'models in S3 need an extra package: install it with pip install "halimede[s3]"'


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials of a store. ``endpoint`` is a URL, empty for Amazon's; without a key, access is anonymous."""

    endpoint: str = ""
    key_id: str = ""
    secret: str = ""
    region: str = REGION

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Access:
        """Read the variables with Sedna's names. Raises InvalidFieldError, without a secret in it."""
        endpoint, key_id, secret = (
            environ.get(n, "") for n in ("S3_ENDPOINT_URL", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
        )
        if bool(key_id) != bool(secret):
            missing = "SECRET_ACCESS_KEY" if key_id else "ACCESS_KEY_ID"
            raise InvalidFieldError(missing, "", "set both ACCESS_KEY_ID and SECRET_ACCESS_KEY")
        if endpoint and "://" not in endpoint:
            https = flag(environ, "S3_USE_HTTPS", default=True)
            endpoint = f"http{'s' if https else ''}://{endpoint}"
        if endpoint and not re.fullmatch(r"https?://[^\s/@?#]+/?", endpoint):
            raise InvalidFieldError("S3_ENDPOINT_URL", redact(endpoint), "write host:port or http(s)://host:port")
        return cls(endpoint.rstrip("/"), key_id, secret, environ.get("S3_REGION") or REGION)


def s3_asker(url: str) -> Requester:
    """Return the requester of an object: stores may have buckets of one name, and give an object only to some."""
    access = store_access()
    secret = hashlib.sha256(access.secret.encode()).hexdigest()
    key = json.dumps([url, access.endpoint, access.region, access.key_id, secret])
    return Requester(key, credentials=bool(access.key_id))


def store_access() -> Access:
    """Return the credentials of the environment. Raises FetchError."""
    try:
        return Access.read(os.environ)
    except InvalidFieldError as error:
        raise FetchError(FetchReason.INVALID_URL, str(error)) from None


def bucket_and_key(url: str) -> tuple[str, str]:
    """Return the bucket and key of a URL. Raises FetchError."""
    parts = urlsplit(url)
    key = parts.path.lstrip("/")
    if not BUCKET.fullmatch(parts.netloc) or not key or parts.query or parts.fragment:
        raise FetchError(FetchReason.INVALID_URL, f"{redact(url)}: write s3://bucket/key")
    return parts.netloc, key


@contextlib.asynccontextmanager
async def open_s3(url: str, ask: SourceRequest, limits: TransferLimits, policy: AddressPolicy) -> AsyncIterator[Stream]:
    """Open an object. Failures are raised without their cause, whose text may contain a signature."""
    bucket, key = bucket_and_key(url)
    access = store_access()
    shown = f"{redact(url)} at {access.endpoint or 'Amazon S3'}"
    at = await _signed(bucket, key, access, limits, shown) if access.key_id else _public(bucket, key, access)
    try:
        async with open_http(at, ask, limits, policy, shown, encoded=True) as stream:
            yield stream
    except FetchError as error:
        if error.reason is FetchReason.HTTP_STATUS and error.status in {401, 403}:
            how = "these credentials" if access.key_id else "no credentials"
            raise FetchError(FetchReason.ACCESS_DENIED, f"{shown} denied access with {how}") from None
        raise


def _public(bucket: str, key: str, access: Access) -> str:
    return f"{access.endpoint or f'https://s3.{access.region}.amazonaws.com'}/{bucket}/{quote(key)}"


async def _signed(bucket: str, key: str, access: Access, limits: TransferLimits, shown: str) -> str:
    try:
        import obstore  # noqa: PLC0415  # not everybody has models there
        from obstore.exceptions import BaseError  # noqa: PLC0415
        from obstore.store import S3Store  # noqa: PLC0415
    except ImportError:
        raise FetchError(FetchReason.NOT_INSTALLED, f"{shown}: {MISSING}") from None
    config: dict[str, str] = {"region": access.region, "access_key_id": access.key_id}
    config |= {"secret_access_key": access.secret} | ({"endpoint": access.endpoint} if access.endpoint else {})
    try:
        store = S3Store(bucket, config=config, client_options={"allow_http": True})  # type: ignore[arg-type]
        return await obstore.sign_async(store, "GET", key, timedelta(seconds=limits.total_s))
    except (BaseError, ValueError):
        raise FetchError(FetchReason.INVALID_URL, f"{shown} cannot be requested") from None
