"""Models in an S3 store (``s3://bucket/key``): Amazon's, MinIO, Ceph and others. The environment has the credentials.

The library obstore (extra ``s3``) only signs the URL. The signed URL is read as from any HTTP server, under the same
policy and limits. obstore gets the credentials, so it does not search for them, which may mean network requests.
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

from halimede.environment import is_enabled
from halimede.errors import InvalidFieldError
from halimede.models.address_policy import AddressPolicy
from halimede.models.errors import FetchError, FetchReason, redact
from halimede.models.http_source import open_http
from halimede.models.source_types import Requester, SourceRequest, Stream, TransferLimits

#: a valid name of a bucket
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
#: the region without S3_REGION
DEFAULT_REGION = "us-east-1"
#: part of the error without the extra
NOT_INSTALLED = 'models in S3 need an extra package: install it with pip install "halimede[s3]"'


@dataclass(frozen=True, slots=True)
class Access:
    """How a store is reached.

    Attributes:
        endpoint: the URL of the store; empty: Amazon's.
        key_id: the id of the access key; empty: access is anonymous.
        secret: the secret of the access key.
        region: of the store, by which requests are signed.

    """

    endpoint: str = ""
    key_id: str = ""
    secret: str = ""
    region: str = DEFAULT_REGION

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Access:
        """Read S3_ENDPOINT_URL, S3_USE_HTTPS, ACCESS_KEY_ID, SECRET_ACCESS_KEY and S3_REGION, as Sedna names them.

        Raises InvalidFieldError, without a secret in it.
        """
        endpoint, key_id, secret = (
            environ.get(name, "") for name in ("S3_ENDPOINT_URL", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
        )
        if bool(key_id) != bool(secret):
            missing = "SECRET_ACCESS_KEY" if key_id else "ACCESS_KEY_ID"
            raise InvalidFieldError(missing, "", "set both ACCESS_KEY_ID and SECRET_ACCESS_KEY")
        if endpoint and "://" not in endpoint:
            https = is_enabled(environ, "S3_USE_HTTPS", default=True)
            endpoint = f"http{'s' if https else ''}://{endpoint}"
        if endpoint and not re.fullmatch(r"https?://[^\s/@?#]+/?", endpoint):
            raise InvalidFieldError("S3_ENDPOINT_URL", redact(endpoint), "write host:port or http(s)://host:port")
        return cls(endpoint.rstrip("/"), key_id, secret, environ.get("S3_REGION") or DEFAULT_REGION)

    @property
    def config(self) -> dict[str, str]:
        """The options of obstore's client: address, region and credentials, or none of them for anonymous access."""
        credentials = {"access_key_id": self.key_id, "secret_access_key": self.secret}
        config = {"region": self.region} | (credentials if self.key_id else {"skip_signature": "true"})
        return config | ({"endpoint": self.endpoint} if self.endpoint else {})


def s3_requester(url: str) -> Requester:
    """Return who requests an object, as the cache sees it: its URL, the store and the credentials. Raises FetchError.

    The secret of the access key is in it only as a hash.
    """
    access = store_access()
    secret = hashlib.sha256(access.secret.encode()).hexdigest()
    key = json.dumps([url, access.endpoint, access.region, access.key_id, secret])
    return Requester(key, credentials=bool(access.key_id))


def store_access() -> Access:
    """Return the store and the credentials of this process's environment. Raises FetchError."""
    try:
        return Access.read(os.environ)
    except InvalidFieldError as error:
        raise FetchError(FetchReason.INVALID_URL, str(error)) from None


def bucket_and_key(url: str) -> tuple[str, str]:
    """Return the bucket and the key of ``s3://bucket/key``. Raises FetchError."""
    parts = urlsplit(url)
    key = parts.path.lstrip("/")
    if not BUCKET.fullmatch(parts.netloc) or not key or parts.query or parts.fragment:
        raise FetchError(FetchReason.INVALID_URL, f"{redact(url)}: write s3://bucket/key")
    return parts.netloc, key


@contextlib.asynccontextmanager
async def open_s3(
    url: str, request: SourceRequest, limits: TransferLimits, policy: AddressPolicy
) -> AsyncIterator[Stream]:
    """Open an object until the end of the block. Raises FetchError, without its cause, which may have a signature."""
    bucket, key = bucket_and_key(url)
    access = store_access()
    shown = f"{redact(url)} at {access.endpoint or 'Amazon S3'}"
    http_url = (
        await _signed_url(bucket, key, access, limits, shown) if access.key_id else _public_url(bucket, key, access)
    )
    try:
        async with open_http(http_url, request, limits, policy, shown, encoded=True) as stream:
            yield stream
    except FetchError as error:
        if error.reason is FetchReason.HTTP_STATUS and error.status in {401, 403}:
            credentials = "these credentials" if access.key_id else "no credentials"
            raise FetchError(FetchReason.ACCESS_DENIED, f"{shown} denied access with {credentials}") from None
        raise


def _public_url(bucket: str, key: str, access: Access) -> str:
    """Return the URL of an object that anybody may read."""
    return f"{access.endpoint or f'https://s3.{access.region}.amazonaws.com'}/{bucket}/{quote(key)}"


async def _signed_url(bucket: str, key: str, access: Access, limits: TransferLimits, shown: str) -> str:
    """Return a URL that gives access to an object for ``limits.total_s`` seconds. Raises FetchError."""
    try:
        import obstore  # noqa: PLC0415  # not everybody has models there
        from obstore.exceptions import BaseError  # noqa: PLC0415
        from obstore.store import S3Store  # noqa: PLC0415
    except ImportError:
        raise FetchError(FetchReason.NOT_INSTALLED, f"{shown}: {NOT_INSTALLED}") from None
    try:
        store = S3Store(bucket, config=access.config, client_options={"allow_http": True})  # type: ignore[arg-type]
        return await obstore.sign_async(store, "GET", key, timedelta(seconds=limits.total_s))
    except (BaseError, ValueError):
        raise FetchError(FetchReason.INVALID_URL, f"{shown} cannot be requested") from None
