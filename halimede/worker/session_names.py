"""Names and client ids of the sessions in which the broker keeps a worker's frames.

Everybody may know the name of a session: peers' messages, logs, metrics and dead letters have it. The client id is a
secret, because whoever connects with it ends the connection of the worker and may end the session with its frames. It
is computed from the name and the service's session key, which GM draws and only its workers have. So the workers of a
service need no message to continue each other's sessions.

A worker without a key (an older GM or local controller) uses the name as its client id, as earlier versions do.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import structlog

from halimede.names import check_name
from halimede.system.files import write_atomic

log = structlog.get_logger()
#: the file in a worker's folder with the sessions that it has not ended: name and client id
FILE = "sessions.json"
#: begins the last part of the name of a session with a secret client id: no hexadecimal digest begins with it
KEYED = "k"
DIGEST, ID_DIGITS = 8, 32
#: most sessions in the file: one for each change of key or cameras that was not finished
MOST = 8


def session_name(client_id: str, cameras: Iterable[str], life: str, key: str = "") -> str:
    """Return the name of a session for frames that outlives its connection.

    It differs for other cameras, in another life of the service and with another key, because a session keeps its
    subscriptions and its client id.
    """
    text = "\0".join([life, *sorted(cameras)])
    digest = KEYED + _keyed(key, text) if key else hashlib.sha256(text.encode()).hexdigest()
    return check_name("client id", f"{client_id}.{digest[:DIGEST]}")


def session_client_id(name: str, key: str) -> str:
    """Return the client id of a session: a secret if its worker has a key."""
    if not is_keyed(name):
        return name
    return f"intake.{_keyed(key, f'client id {name}')[:ID_DIGITS]}"


def is_keyed(name: str) -> bool:
    """Whether the client id of a session is a secret."""
    return name.rpartition(".")[2].startswith(KEYED)


def _keyed(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


class SessionJournal:
    """The sessions of one worker that may still hold frames, by name, with their client ids; only its user reads it.

    A worker whose key or cameras have changed thereby finds the session of its earlier process. ``folder`` outlives the
    worker; None: nothing is recorded.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE if folder else None
        self._sessions: dict[str, str] = {}

    @property
    def sessions(self) -> Mapping[str, str]:
        """The recorded sessions."""
        return self._sessions

    def open(self, *, first: str = "") -> None:
        """Read the file. Without one, the worker may have run with a version that used the name ``first``."""
        self._sessions = {first: first} if first else {}
        if self._path and self._path.exists():
            try:
                self._sessions = msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
            except (OSError, msgspec.DecodeError) as error:
                log.warning("sessions of the earlier process are not known", path=str(self._path), error=str(error))

    def add(self, name: str, client_id: str) -> None:
        """Record a session before its first frame."""
        self._write({**self._sessions, name: client_id})

    def remove(self, name: str) -> None:
        """Record that a session has ended and all its frames are answered."""
        self._write({known: id_ for known, id_ in self._sessions.items() if known != name})

    def _write(self, sessions: dict[str, str]) -> None:
        newest = dict(list(sessions.items())[-MOST:])
        if newest == self._sessions:
            return
        self._sessions = newest
        if self._path:
            try:
                write_atomic(self._path, msgspec.json.encode(newest), mode=0o600)
            except OSError as error:
                log.warning("sessions not recorded", path=str(self._path), error=str(error))
