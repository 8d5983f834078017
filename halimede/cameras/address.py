"""The address of a camera: parsed and checked before it is opened, and shown without its secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from halimede.errors import InvalidFieldError, hide_secrets
from halimede.names import MAX_LABEL, check_label

FIX = "write rtsp://host/path, http://host/path (MJPEG), /dev/video0, or a video file or folder of pictures"
MAX_LENGTH = 4096
#: kinds by URL scheme
SCHEMES = {
    "rtsp": "rtsp",
    "rtsps": "rtsp",
    "http": "http",
    "https": "http",
    "v4l2": "device",
    "file": "file",
}
HIDDEN = "***"


class SourceKind(StrEnum):
    """Kinds of sources. A file may be a folder, which shows when it is opened."""

    RTSP = "rtsp"
    HTTP = "http"
    DEVICE = "device"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class CameraAddress:
    """A source. ``target`` is opened, with its secrets; ``shown`` is for others.

    ``name`` is the camera's name, if the address has one (``rtsp://host/path#door``). ``live``: frames that are not
    read in time are skipped. Files wait instead, and lose nothing.
    """

    kind: SourceKind
    target: str = field(repr=False)
    shown: str
    name: str = ""

    @property
    def live(self) -> bool:
        """Whether it continues independent of its readers."""
        return self.kind is not SourceKind.FILE

    def redact(self, text: str) -> str:
        """Return a text without this address and its secrets, in any encoding."""
        text = text.replace(self.target, self.shown)
        for secret in self._secrets():
            text = text.replace(secret, HIDDEN)
        return hide_secrets(text)

    def _secrets(self) -> list[str]:
        if self.kind is SourceKind.FILE or "@" not in self.target:
            return []
        user, _, password = self.target.partition("://")[2].rpartition("@")[0].partition(":")
        secrets = {password, unquote(password)} if password else {user, unquote(user)}
        return sorted((secret for secret in secrets if secret), key=len, reverse=True)


def parse(
    text: str, *, field_: str = "SOURCE_URL", username: str = "", password: str = "", prefix: str = ""
) -> CameraAddress:
    """Parse an address. ``username`` and ``password`` complete one without; ``prefix`` precedes a file's path.

    Raises InvalidFieldError, whose text contains no secret.
    """
    problem = InvalidFieldError(field_, hide_secrets(text), FIX)
    if not text or len(text) > MAX_LENGTH or re.search(r"[\x00-\x1f\x7f]", text):
        raise problem
    if "://" not in text:
        return _local(text, prefix)
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise problem from None  # its text would contain the address
    kind = SCHEMES.get(parts.scheme.lower())
    if kind is None or re.search(r"\s", text):
        raise problem
    name = check_label(f"{field_} (what stands behind #)", parts.fragment) if parts.fragment else ""
    if kind in {"device", "file"}:
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise problem
        return _local(unquote(parts.path), prefix, name)
    if not host:
        raise problem
    plain = parts._replace(fragment="")
    if "@" not in parts.netloc and username:
        user = quote(username, safe="") + (f":{quote(password, safe='')}" if password else "")
        plain = plain._replace(netloc=f"{user}@{parts.netloc}")
    target = plain.geturl()
    return CameraAddress(SourceKind(kind), target, hide_secrets(target), name)


def has_password(text: str) -> bool:
    """Return whether an address contains a user, so that it must not be readable by others."""
    return "://" in text and "@" in text.partition("://")[2].partition("?")[0]


def name_of(address: CameraAddress) -> str:
    """Return a camera's name from its address: the given one, else derived from host and path."""
    if address.name:
        return address.name
    plain = address.shown.partition("://")[2] or address.shown
    plain = plain.rpartition("@")[2].partition("?")[0]
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")[-MAX_LABEL:].strip("-") or "camera"


def _local(path: str, prefix: str, name: str = "") -> CameraAddress:
    if re.match(r"/dev/(video|v4l)", path):
        return CameraAddress(SourceKind.DEVICE, path, path, name)
    whole = prefix + path if path.startswith("/") else str(Path(path).absolute())
    return CameraAddress(SourceKind.FILE, whole, whole, name)
