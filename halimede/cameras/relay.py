"""A relay on loopback between FFmpeg and a camera of a manifest: it connects where the address policy allows.

FFmpeg resolves names, connects and follows redirects by itself, so no other code can check an address at the moment of
its use. So FFmpeg gets an address on loopback: the relay resolves names, checks addresses and connects, with TLS, and
it withholds responses that redirect.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import threading
from urllib.parse import urlsplit

from halimede.cameras import ipc_messages
from halimede.cameras.http_pictures import unverified_tls
from halimede.cameras.ipc_messages import SourceError
from halimede.errors import hide_secrets
from halimede.models.address_policy import AddressPolicy
from halimede.models.errors import FetchError
from halimede.models.http_source import Guard

#: bytes that are copied at once
BLOCK = 64 * 1024
#: schemes with their ports; for TLS schemes FFmpeg uses the plain one
PORTS = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443}
#: a response at which FFmpeg would connect elsewhere, parsed as leniently as FFmpeg does
REDIRECT = re.compile(rb"(?:RTSP|HTTP)/\S*\s+\+?0*3\d\d(?!\d)")
#: most bytes of an unfinished line that are kept for the search of a redirect: FFmpeg reads fewer
MOST_LINE = 8192


class CameraRelay:
    """Relays the connections of one reader process in threads, and ends with it.

    ``url``: the camera's; ``policy``: allows addresses; ``timeout_s``: seconds to connect.

    Attributes:
        error: why the last connection was refused or failed, None if none was.

    """

    def __init__(self, url: str, policy: AddressPolicy, timeout_s: float) -> None:
        self.error: SourceError | None = None
        self._url = urlsplit(url)
        self._policy = policy
        self._timeout_s = timeout_s

    @property
    def host(self) -> str:
        """Host and port of the camera for the header of a request."""
        return self._url.netloc.rpartition("@")[2]

    def start(self) -> str:
        """Listen on loopback; return the URL for FFmpeg. Raises OSError."""
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, args=(listener,), name="relay", daemon=True).start()
        user, at, _ = self._url.netloc.rpartition("@")
        here = f"{user}{at}127.0.0.1:{listener.getsockname()[1]}"
        return self._url._replace(scheme=self._url.scheme.lower().removesuffix("s"), netloc=here).geturl()

    def _accept(self, listener: socket.socket) -> None:
        """Relay each connection in a thread of its own."""
        while True:
            client, _ = listener.accept()
            threading.Thread(target=self._relay, args=(client,), name="relayed", daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        """Relay one connection until it ends."""
        with client:
            try:
                with self._connect() as camera:
                    _copy(client, camera)
            except SourceError as error:
                self.error = error
            except OSError:
                return  # FFmpeg sees its connection end

    def _connect(self) -> socket.socket:
        """Connect to the first allowed address that accepts. Raises SourceError."""
        host, scheme = self._url.hostname or "", self._url.scheme.lower()
        guard, problem = Guard(self._policy), "it has no address"
        try:
            guard.expect(host, hide_secrets(self._url.geturl()))
            for info in socket.getaddrinfo(host, self._url.port or PORTS[scheme], type=socket.SOCK_STREAM):
                try:
                    connection = guard(info)
                    connection.settimeout(self._timeout_s)
                    connection.connect(info[4])
                    tls = unverified_tls() if scheme.endswith("s") else None
                    return tls.wrap_socket(connection, server_hostname=host) if tls else connection
                except OSError as error:
                    problem = error.strerror or "it does not answer in time"
        except FetchError as error:
            raise SourceError(ipc_messages.FORBIDDEN, str(error)) from None
        except OSError as error:
            problem = error.strerror or problem
        if guard.has_refused_all:
            raise SourceError(ipc_messages.FORBIDDEN, guard.refusal)
        raise SourceError(ipc_messages.UNREACHABLE, f"it cannot be reached ({problem})")


def _copy(client: socket.socket, camera: socket.socket) -> None:
    """Copy bytes in both directions until one side ends. Raises SourceError for a redirect and withholds it."""
    camera.settimeout(None)
    opening, line = True, b""
    while True:
        waiting = isinstance(camera, ssl.SSLSocket) and camera.pending()
        ready = [camera] if waiting else select.select([client, camera], [], [])[0]
        if client in ready:
            data = client.recv(BLOCK)
            if not data:
                return
            opening = opening and not data.startswith(b"PLAY ")  # FFmpeg follows no redirect after PLAY
            camera.sendall(data)
        if camera in ready:
            data = camera.recv(BLOCK)
            if not data:
                return
            if opening:
                line += data.replace(b"\r", b"")
                if REDIRECT.search(line):
                    raise SourceError(ipc_messages.FORBIDDEN, "it redirects: write the address that it redirects to")
                line = line[line.rfind(b"\n") + 1 :][-MOST_LINE:]
            client.sendall(data)
