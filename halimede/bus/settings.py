"""Settings of a connection to an MQTT broker: parses and checks the address in ``HALIMEDE_BROKER``."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast, get_args
from urllib.parse import unquote, urlsplit

from halimede.bus.credentials import MOST_LOGIN, Credentials
from halimede.errors import InvalidFieldError
from halimede.names import check_name

Client = Literal["lean", "paho"]

PLAIN_PORT, TLS_PORT = 1883, 8883
#: most characters between two dots of a host's name (RFC 1035, 2.3.4)
LABEL = 63
#: variable that selects the client
CLIENT = "HALIMEDE_MQTT_CLIENT"
FIX = "write host, host:port, mqtt://[user:password@]host[:port][/prefix], or mqtts://... for TLS"


def chosen_client(environ: Mapping[str, str], default: Client = "lean") -> Client:
    """Return the client that the environment selects. Raises InvalidFieldError."""
    client = environ.get(CLIENT) or default
    if client not in get_args(Client):
        raise InvalidFieldError(CLIENT, client, f"write one of {', '.join(get_args(Client))}")
    return cast("Client", client)


@dataclass(frozen=True)
class MqttSettings:
    """The broker's address and the options of connections to it. ``repr`` does not show the password.

    Attributes:
        secure: TLS without fallback: the broker's certificate is verified, with the authority of the credentials,
            or else the system's.
        credentials: a folder that is read for every connection; it takes precedence over ``username`` and
            ``password``.
        prefix: levels added before every topic and removed on receipt, for a broker that several systems share.
        keepalive_s: a silent connection is found dead within 1.5 times this.
        receive_maximum: QoS 1 messages that the broker may send before the first is acknowledged. A busy handler
            thereby slows its publishers down.
        window: most publishes in flight, others wait; a lower limit of the broker takes precedence.
        max_packet: most bytes of a received packet; the broker drops larger ones.
        session_s: seconds for which the broker keeps subscriptions and unacknowledged messages after the connection
            ended; the next client with this client id continues with them. 0: they end with the connection.
        connect_timeout_s: for the connection, and again for the broker's answer.
        client: the MQTT client: ``lean``, this project's, or ``paho``, the stock one; default:
            HALIMEDE_MQTT_CLIENT, else lean (see ``for_control``).

    """

    host: str
    port: int = PLAIN_PORT
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    secure: bool = False
    credentials: Credentials | None = None
    prefix: str = ""
    keepalive_s: int = 15
    receive_maximum: int = 256
    window: int = 256
    max_packet: int = 16 * 1024 * 1024 + 64 * 1024
    session_s: int = 0
    connect_timeout_s: float = 5.0
    client: Client = field(default_factory=lambda: chosen_client(os.environ))

    @property
    def where(self) -> str:
        """The address for messages to people, without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address in the form of ``from_url``, without credentials."""
        prefix = f"/{self.prefix.strip('/')}" if self.prefix else ""
        return f"{'mqtts' if self.secure else 'mqtt'}://{self.where}{prefix}"

    def for_control(self) -> MqttSettings:
        """Return the settings of a connection without samples: paho, unless HALIMEDE_MQTT_CLIENT is set (ADR 12)."""
        return replace(self, client=chosen_client(os.environ, "paho"))

    def login(self) -> tuple[str | None, str | None]:
        """Return the user name and password for the next connection. Raises InvalidFieldError."""
        return self.credentials.login() if self.credentials else (self.username, self.password)

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context for the next connection, None without TLS. Raises InvalidFieldError."""
        if not self.secure:
            return None
        if self.credentials:
            return self.credentials.context()
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    @classmethod
    def from_url(
        cls, url: str, *, variable: str = "HALIMEDE_BROKER", credentials: str | Path | Credentials | None = None
    ) -> MqttSettings:
        """Parse ``host``, ``host:port``, ``mqtt://user:password@host:1883/prefix`` or ``mqtts://...``.

        ``credentials`` is a folder (see ``Credentials``), empty for none. Raises InvalidFieldError, which names
        ``variable`` and does not contain the password.
        """
        shown = re.sub(r"^(\w+://)?.*@", r"\1***@", url) if isinstance(url, str) else url
        problem = InvalidFieldError(variable, shown, FIX)
        if not isinstance(url, str) or re.search(r"[\s\x00-\x1f\x7f]", url):
            raise problem
        try:
            parts = urlsplit(url if "://" in url else f"mqtt://{url}")
            port = parts.port
        except ValueError:
            raise problem from None  # its text would contain the address with the password
        if parts.scheme not in {"mqtt", "mqtts"} or not parts.hostname or port == 0 or parts.query or parts.fragment:
            raise problem
        if not re.fullmatch(r"[A-Za-z0-9._:%-]+", parts.hostname) or parts.netloc.endswith(":"):
            raise problem
        if any(not 1 <= len(label) <= LABEL for label in parts.hostname.removesuffix(".").split(".")):
            raise problem  # name resolution would fail with an error that is not about a missing host
        secure = parts.scheme == "mqtts"
        own: Credentials | None = None
        if isinstance(credentials, Credentials):
            own = credentials
        elif credentials:
            own = Credentials.at(credentials)
        if own:
            own.check(secure=secure)
        levels = [check_name(f"{variable} (prefix)", level) for level in parts.path.strip("/").split("/") if level]
        username = unquote(parts.username) if parts.username else None
        password = unquote(parts.password) if parts.password is not None else None
        if any(len(each.encode(errors="replace")) > MOST_LOGIN for each in (username, password) if each):
            raise InvalidFieldError(variable, "***", f"MQTT allows {MOST_LOGIN} bytes of a user name or password")
        return cls(
            host=parts.hostname,
            port=port or (TLS_PORT if secure else PLAIN_PORT),
            username=username,
            password=password,
            secure=secure,
            credentials=own,
            prefix="".join(f"{level}/" for level in levels),
        )
