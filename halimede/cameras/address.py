"""The address of a camera, a URL or a path: parsed and checked before it is opened, and shown without its secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from halimede.errors import InvalidFieldError, hide_secrets
from halimede.names import MAX_LABEL, check_label

#: the correction of an invalid address
FIX = "write rtsp://host/path, http://host/path (MJPEG), /dev/video0, or a video file or folder of pictures"
#: most characters of an address
MAX_LENGTH = 4096
#: kinds by URL scheme
SCHEMES = {"rtsp": "rtsp", "rtsps": "rtsp", "http": "http", "https": "http", "v4l2": "device", "file": "file"}
#: text in place of a secret
HIDDEN = "***"


class SourceKind(StrEnum):
    """Kinds of sources. FILE is a video file or a folder of pictures: which of them is known when it is opened."""

    RTSP = "rtsp"
    HTTP = "http"
    DEVICE = "device"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class CameraAddress:
    """The parsed address of a source.

    Attributes:
        kind: what it is.
        target: what is opened, with its secrets: a URL or a path.
        shown: the same without secrets, for logs and statuses.
        name: the camera's name in the address (``door`` in ``rtsp://host/path#door``), or empty.

    """

    kind: SourceKind
    target: str = field(repr=False)
    shown: str
    name: str = ""

    @property
    def live(self) -> bool:
        """Whether frames that are not read in time are lost; those of a file wait for their reader."""
        return self.kind is not SourceKind.FILE

    def redact(self, text: str) -> str:
        """Return a text with ``shown`` in place of ``target``, and without its secrets, plain or percent-encoded."""
        text = text.replace(self.target, self.shown)
        for secret in self._secrets():
            text = text.replace(secret, HIDDEN)
        return hide_secrets(text)

    def _secrets(self) -> list[str]:
        """Return the secrets in the target, plain and percent-encoded, the longest first.

        They are the password, or the user if there is no password.
        """
        if self.kind is SourceKind.FILE or "@" not in self.target:
            return []
        user, _, password = self.target.partition("://")[2].rpartition("@")[0].partition(":")
        secrets = {password, unquote(password)} if password else {user, unquote(user)}
        return sorted((secret for secret in secrets if secret), key=len, reverse=True)


def parse(
    text: str, *, field_: str = "SOURCE_URL", username: str = "", password: str = "", prefix: str = ""
) -> CameraAddress:
    """Return a parsed address. ``username`` and ``password`` are put into a URL of RTSP or HTTP that has no login.

    An empty ``username`` means no login. ``prefix`` is put before the absolute path of a file. Raises
    InvalidFieldError, which names the field ``field_`` and contains no secret.
    """
    error = InvalidFieldError(field_, hide_secrets(text), FIX)
    if not text or len(text) > MAX_LENGTH or re.search(r"[\x00-\x1f\x7f]", text):
        raise error
    if "://" not in text:
        return _local(text, prefix)
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise error from None  # its text would contain the address
    kind = SCHEMES.get(parts.scheme.lower())
    if kind is None or re.search(r"\s", text):
        raise error
    name = check_label(f"{field_} (what stands behind #)", parts.fragment) if parts.fragment else ""
    if kind in {"device", "file"}:
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise error
        return _local(unquote(parts.path), prefix, name)
    if not host:
        raise error
    url = parts._replace(fragment="")
    if "@" not in parts.netloc and username:
        user = quote(username, safe="") + (f":{quote(password, safe='')}" if password else "")
        url = url._replace(netloc=f"{user}@{parts.netloc}")
    target = url.geturl()
    return CameraAddress(SourceKind(kind), target, hide_secrets(target), name)


def has_login(text: str) -> bool:
    """Whether the text of an address contains a user or password, so that others must not read it."""
    return "://" in text and "@" in text.partition("://")[2].partition("?")[0]


def name_of(address: CameraAddress) -> str:
    """Return a camera's name by its address: ``name``, else a label made of host and path."""
    if address.name:
        return address.name
    location = address.shown.partition("://")[2] or address.shown
    location = location.rpartition("@")[2].partition("?")[0]
    return re.sub(r"[^a-z0-9]+", "-", location.lower()).strip("-")[-MAX_LABEL:].strip("-") or "camera"


def _local(path: str, prefix: str, name: str = "") -> CameraAddress:
    """Return the address of a path: a device, or a file or folder."""
    if re.match(r"/dev/(video|v4l)", path):
        return CameraAddress(SourceKind.DEVICE, path, path, name)
    target = prefix + path if path.startswith("/") else str(Path(path).absolute())
    return CameraAddress(SourceKind.FILE, target, target, name)
