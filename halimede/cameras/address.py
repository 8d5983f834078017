"""Where a camera is: what an address means, checked before anything is opened, and shown without its secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from halimede.errors import InvalidFieldError, hide_secrets
from halimede.names import MAX_LABEL, check_label

FIX = "write rtsp://host/path, http://host/path (MJPEG), /dev/video0, or a video file or folder of pictures"
MOST = 4096
#: kinds by the scheme of their addresses
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
    """Kinds of sources. A file may turn out to be a folder once it is opened."""

    RTSP = "rtsp"
    HTTP = "http"
    DEVICE = "device"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class CameraAddress:
    """A source. ``target`` is what is opened, secrets included; ``shown`` is what others may see,
    ``name`` the camera's where the address gives it (``rtsp://host/path#door``).

    ``live``: what is not read in time is passed over. Files wait instead: nothing of them is lost by waiting.
    """

    kind: SourceKind
    target: str = field(repr=False)
    shown: str
    name: str = ""

    @property
    def live(self) -> bool:
        """Whether it goes on whether or not anybody reads."""
        return self.kind is not SourceKind.FILE

    def redacted(self, text: str) -> str:
        """Return a text without this address and its secrets, whatever form they have in it."""
        text = text.replace(self.target, self.shown)
        for secret in self._secrets():
            text = text.replace(secret, HIDDEN)
        return hide_secrets(text)

    def _secrets(self) -> list[str]:
        if self.kind is SourceKind.FILE or "@" not in self.target:
            return []
        user, _, password = self.target.partition("://")[2].rpartition("@")[0].partition(":")
        found = {password, unquote(password)} if password else {user, unquote(user)}
        return sorted((secret for secret in found if secret), key=len, reverse=True)


def parse(
    text: str, *, field_: str = "SOURCE_URL", username: str = "", password: str = "", prefix: str = ""
) -> CameraAddress:
    """Read an address. ``username`` and ``password`` complete one that has none; ``prefix`` goes before a file's path.

    Raises InvalidFieldError, whose text holds no secret.
    """
    problem = InvalidFieldError(field_, hide_secrets(text), FIX)
    if not text or len(text) > MOST or re.search(r"[\x00-\x1f\x7f]", text):
        raise problem
    if "://" not in text:
        return _local(text, prefix)
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise problem from None  # its text would show what was given
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
    """Return whether an address holds a user, so that it must not stand where others can read it."""
    return "://" in text and "@" in text.partition("://")[2].partition("?")[0]


def name_of(address: CameraAddress) -> str:
    """Return a camera's name where only its address is known: what that says, else made of its host and path."""
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
