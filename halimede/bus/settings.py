"""Settings of a connection to an MQTT broker: parses and checks the address in ``HALIMEDE_BROKER``."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self, cast, get_args
from urllib.parse import unquote, urlsplit

from halimede.bus.credentials import MOST_LOGIN, Credentials, Login
from halimede.errors import DisconnectedError, InvalidFieldError
from halimede.names import check_name

#: the MQTT clients: this project's, and the stock one
Client = Literal["lean", "paho"]

#: default ports without and with TLS
PLAIN_PORT, TLS_PORT = 1883, 8883
#: most characters between two dots of a host's name (RFC 1035, 2.3.4)
LABEL = 63
#: an address with several hosts
LIST = re.compile(r"(?P<before>(\w+://)?([^/?#]*@)?)(?P<hosts>[^/?#@]*,[^/?#@]*)(?P<after>[/?#].*)?")
#: variable that selects the client
CLIENT = "HALIMEDE_MQTT_CLIENT"
#: the correction of an invalid address
FIX = (
    "write host, host:port, mqtt://[user:password@]host[:port][/prefix], or mqtts://... for TLS; "
    "several brokers of one system: host:port,host:port"
)


def chosen_client(environ: Mapping[str, str], default: Client = "lean") -> Client:
    """Return the client that the variable ``CLIENT`` selects, else ``default``. Raises InvalidFieldError."""
    client = environ.get(CLIENT) or default
    if client not in get_args(Client):
        raise InvalidFieldError(CLIENT, client, f"write one of {', '.join(get_args(Client))}")
    return cast("Client", client)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host, by name or address, and a port. Its text is the address for messages to people."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class MqttSettings:
    """The broker's address and the options of connections to it. ``repr`` does not show the password.

    Attributes:
        host, port: the first address that is tried.
        username, password: as the client sends them; None: it sends none.
        secure: TLS without fallback: the broker's certificate is verified, with the authority of the credentials, or
            else the system's.
        credentials: a folder that is read for every connection; it takes precedence over ``username`` and
            ``password``; None: there is none.
        prefix: levels added before every topic and removed on receipt, for a broker that several systems share;
            empty: none.
        keepalive_s: a silent connection is found dead within 1.5 times these seconds.
        receive_maximum: QoS 1 messages that the broker may send before the first is acknowledged. A busy handler
            thereby slows its publishers down.
        window: most publishes in flight, others wait; a lower limit of the broker takes precedence.
        max_packet: most bytes of a received packet; the broker drops larger ones.
        session_s: seconds for which the broker keeps subscriptions and unacknowledged messages after the connection
            ended; the next client with this client id continues with them. 0: they end with the connection.
        connect_timeout_s: seconds for each of the connection, the TLS handshake and the broker's answer; while other
            addresses remain to be tried, an address has its share of them (``addresses.share_s``).
        alternatives: further endpoints, which are tried in this order if there is no connection to the first.
        client: the MQTT client: ``lean``, this project's, or ``paho``, the stock one. Default: HALIMEDE_MQTT_CLIENT,
            else lean.

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
    alternatives: tuple[Endpoint, ...] = ()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints in the order in which a client tries them."""
        return (Endpoint(self.host, self.port), *self.alternatives)

    @property
    def where(self) -> str:
        """All endpoints for messages to people, without credentials."""
        return ",".join(map(str, self.endpoints))

    @property
    def url(self) -> str:
        """The address in the form of ``from_url``, without credentials."""
        prefix = f"/{self.prefix.strip('/')}" if self.prefix else ""
        return f"{'mqtts' if self.secure else 'mqtt'}://{self.where}{prefix}"

    def for_control(self) -> MqttSettings:
        """Return the settings of a connection without samples: paho, unless HALIMEDE_MQTT_CLIENT is set (ADR 12)."""
        return replace(self, client=chosen_client(os.environ, "paho"))

    def at(self, endpoint: Endpoint) -> MqttSettings:
        """Return the same settings for one endpoint alone."""
        return replace(self, host=endpoint.host, port=endpoint.port, alternatives=())

    def tls_and_login(self) -> tuple[ssl.SSLContext | None, Login]:
        """Return ``context`` and ``login`` for the next connection.

        Raises DisconnectedError if their files are unusable now: they have changed since the start, perhaps during a
        rotation.
        """
        try:
            return self.context(), self.login()
        except InvalidFieldError as error:
            raise DisconnectedError(str(error)) from error

    def login(self) -> Login:
        """Return user name and password, None for a missing value. Raises InvalidFieldError for unusable files."""
        return self.credentials.login() if self.credentials else (self.username, self.password)

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context for the next connection, None without TLS.

        Raises InvalidFieldError for unusable files.
        """
        if not self.secure:
            return None
        if self.credentials:
            return self.credentials.context()
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def certificate_end(self, broker: float | None) -> float | None:
        """Return the Unix time at which the client's own certificate or the broker's ends, whichever is first.

        The client's is read from its file now. ``broker``: the end of the broker's, None if it is unknown. None:
        neither is known.
        """
        own = self.credentials.certificate_end() if self.credentials else None
        return min((end for end in (own, broker) if end is not None), default=None)

    @classmethod
    def from_url(
        cls, url: str, *, variable: str = "HALIMEDE_BROKER", credentials: str | Path | Credentials | None = None
    ) -> Self:
        """Return the settings of ``host``, ``host:port``, ``mqtt://user:password@host:1883/prefix`` or ``mqtts://...``.

        ``host:port`` may be a list, separated by commas. ``credentials``: the folder of one user, empty or None for
        none; its files are checked. Raises InvalidFieldError, which names ``variable`` or that of the credentials, and
        does not contain the password.
        """
        shown = re.sub(r"^(\w+://)?.*@", r"\1***@", url) if isinstance(url, str) else url
        problem = InvalidFieldError(variable, shown, FIX)
        if not isinstance(url, str) or re.search(r"[\s\x00-\x1f\x7f]", url):
            raise problem
        if "," in url and (brokers := LIST.fullmatch(url)):
            return cls._from_list(brokers, variable, credentials)
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
        own = credentials or None
        if isinstance(own, str | Path):
            own = Credentials.at(own)
        if own:
            own.check(secure=secure)
        levels = [check_name(f"{variable} (prefix)", level) for level in parts.path.strip("/").split("/") if level]
        username = unquote(parts.username) if parts.username else None
        password = unquote(parts.password) if parts.password is not None else None
        if any(len(text.encode(errors="replace")) > MOST_LOGIN for text in (username, password) if text):
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

    @classmethod
    def _from_list(cls, brokers: re.Match[str], variable: str, credentials: str | Path | Credentials | None) -> Self:
        """Return the settings of an address with several hosts, ``brokers``; each is checked as a single address."""
        before, after = brokers["before"] or "", brokers["after"] or ""
        if after.startswith("//"):  # of a second mqtt://, and there may be a password behind it
            raise InvalidFieldError(variable, f"{brokers['hosts']}//...", FIX)
        first, *later = (
            cls.from_url(f"{before}{host}{after}", variable=variable, credentials=credentials)
            for host in brokers["hosts"].split(",")
        )
        return replace(first, alternatives=tuple(Endpoint(broker.host, broker.port) for broker in later))
