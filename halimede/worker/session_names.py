"""Names and client ids of the sessions in which the broker keeps a worker's frames, and a journal of them.

The name of a session is public: messages of peers, logs, metrics and dead letters have it. The client id is a secret,
because a client that connects with it ends the connection of the worker, and may end the session with its frames. The
client id is computed from the name and the service's session key, which GM draws and only the service's workers have.
So these workers can continue each other's sessions without a message.

A worker without a key (from an older GM or local controller) uses the name as its client id, as earlier versions do.
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
KEYED_PREFIX = "k"
#: characters of the digest in a name, and in a client id
NAME_DIGITS, ID_DIGITS = 8, 32
#: most sessions in the file: one for each change of key or cameras that was not finished
MAX_SESSIONS = 8


def session_name(client_id: str, cameras: Iterable[str], life: str, key: str = "") -> str:
    """Return the name of a session for frames: ``client_id`` and a digest of all other arguments.

    So it differs for other ``cameras``, in another ``life`` (uid) of the service and with another session ``key``. A
    session keeps its subscriptions and its client id. Raises InvalidFieldError for a name that is too long.
    """
    text = "\0".join([life, *sorted(cameras)])
    digest = KEYED_PREFIX + _keyed_digest(key, text) if key else hashlib.sha256(text.encode()).hexdigest()
    return check_name("client id", f"{client_id}.{digest[:NAME_DIGITS]}")


def session_client_id(name: str, key: str) -> str:
    """Return the client id of a session by its name and the session key; the name itself if it was made without key."""
    if not is_keyed(name):
        return name
    return f"intake.{_keyed_digest(key, f'client id {name}')[:ID_DIGITS]}"


def is_keyed(name: str) -> bool:
    """Whether the session with this name has a secret client id, because its worker has a key."""
    return name.rpartition(".")[2].startswith(KEYED_PREFIX)


def _keyed_digest(key: str, text: str) -> str:
    """Return the HMAC-SHA-256 of a text in hexadecimal."""
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


class SessionJournal:
    """Records the sessions of one worker that may still have frames, in a file that only its user may read.

    So a worker whose key or cameras have changed finds the session of its earlier process. ``folder``: that of the
    worker; None: nothing is written.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE if folder else None
        self._sessions: dict[str, str] = {}

    @property
    def sessions(self) -> Mapping[str, str]:
        """The client ids of the recorded sessions, by the sessions' names."""
        return self._sessions

    def open(self, *, first: str = "") -> None:
        """Read the file. ``first``: the only session if there is no readable file; empty: there is none then.

        It is the name of the session, and its client id, that an earlier version would have used.
        """
        self._sessions = {first: first} if first else {}
        if self._path and self._path.exists():
            try:
                self._sessions = msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
            except (OSError, msgspec.DecodeError) as error:
                log.warning("sessions of the earlier process are not known", path=str(self._path), error=str(error))

    def add(self, name: str, client_id: str) -> None:
        """Record a session. Call it before the session gets its first frame."""
        self._write({**self._sessions, name: client_id})

    def remove(self, name: str) -> None:
        """Remove a session that has ended, or whose frames are all answered."""
        self._write({session: id_ for session, id_ in self._sessions.items() if session != name})

    def _write(self, sessions: dict[str, str]) -> None:
        """Record the newest of these sessions; a file that cannot be written is logged."""
        newest = dict(list(sessions.items())[-MAX_SESSIONS:])
        if newest == self._sessions:
            return
        self._sessions = newest
        if self._path:
            try:
                write_atomic(self._path, msgspec.json.encode(newest), mode=0o600)
            except OSError as error:
                log.warning("sessions not recorded", path=str(self._path), error=str(error))
