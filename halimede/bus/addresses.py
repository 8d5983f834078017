"""Tries the addresses of a broker in turn: the endpoints of the settings, and all addresses of their names.

Each connection begins with the first address. An address counts as reached when the broker there has accepted the
client (CONNACK), so a machine that accepts connections and does not answer is passed over as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from halimede.bus.settings import Endpoint, MqttSettings
from halimede.errors import BusError, DisconnectedError, NotAllowedError, cause_of

T = TypeVar("T")

#: addresses of one host, each with its family
Addresses = Sequence[tuple[int, tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """One address of a broker.

    Attributes:
        endpoint: as the settings name it; the broker's certificate must have its host.
        family: of the socket, such as ``socket.AF_INET``.
        target: what a socket of this family connects to.
        timeout_s: seconds for each of the connection, the TLS handshake and the broker's answer.

    """

    endpoint: Endpoint
    family: int
    target: tuple[Any, ...]
    timeout_s: float

    @property
    def host(self) -> str:
        """The numeric address, for a library that connects by itself."""
        host = str(self.target[0])
        scope = self.target[3] if self.family == socket.AF_INET6 else 0
        return f"{host}%{scope}" if scope and "%" not in host else host

    @property
    def port(self) -> int:
        """The port."""
        return int(self.target[1])


async def connect_to_any(settings: MqttSettings, connect: Callable[[SocketAddress], Awaitable[T]]) -> T:
    """Return what ``connect`` returns for the first address at which it raises no error.

    Raises the error of the last address (OSError, TimeoutError, DisconnectedError), or NotAllowedError if a broker
    refused this client. With several endpoints the error has the cause at each.
    """
    endpoints = settings.endpoints
    errors: dict[Endpoint, list[Exception]] = {endpoint: [] for endpoint in endpoints}
    targets: list[tuple[Endpoint, int, tuple[Any, ...]]] = []
    resolving = (_resolve(endpoint, settings.connect_timeout_s) for endpoint in endpoints)
    for endpoint, result in zip(endpoints, await asyncio.gather(*resolving), strict=True):
        if isinstance(result, Exception):
            errors[endpoint].append(result)
        else:
            targets += [(endpoint, family, target) for family, target in result]
    for position, (endpoint, family, target) in enumerate(targets, 1):
        # a silent machine must leave time for the next addresses: it gets a share
        share = len(targets) if position < len(targets) else 1
        try:
            return await connect(SocketAddress(endpoint, family, target, settings.connect_timeout_s / share))
        except (BusError, OSError, TimeoutError) as error:
            errors[endpoint].append(error)
    raise _error_of_all({endpoint: _decisive(failures) for endpoint, failures in errors.items()})


async def _resolve(endpoint: Endpoint, timeout_s: float) -> Addresses | Exception:
    """Return the addresses of a host, in the order of the resolver; or why there are none."""
    with contextlib.suppress(OSError, UnicodeError):  # it is a name
        return _addresses(endpoint, socket.AI_NUMERICHOST)
    # a separate thread: a full default pool would delay reconnecting
    thread = ThreadPoolExecutor(1, thread_name_prefix="mqtt-names")
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.get_running_loop().run_in_executor(thread, _addresses, endpoint)
    except TimeoutError:
        return TimeoutError(f"the name {endpoint.host} is not resolved within {timeout_s:g} s")
    except OSError as error:
        return error
    except UnicodeError as error:  # a name that its encoding for DNS does not allow
        return OSError(str(error))
    finally:
        thread.shutdown(wait=False)


def _addresses(endpoint: Endpoint, flags: int = 0) -> Addresses:
    """Return the addresses of a host, each with its family. Blocks, except with ``AI_NUMERICHOST``: no name is sought.

    Raises OSError or UnicodeError if there are none.
    """
    answers = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, target) for family, _, _, _, target in answers]


def _decisive(errors: Sequence[Exception]) -> Exception:
    """Return a refusal by a broker if there is one, else the last error."""
    return next((error for error in errors if isinstance(error, NotAllowedError)), errors[-1])


def _error_of_all(errors: Mapping[Endpoint, Exception]) -> Exception:
    """Return the error of the only endpoint, or one error with the causes at all of them."""
    decisive = _decisive(list(errors.values()))
    if len(errors) == 1:
        return decisive
    kind = NotAllowedError if isinstance(decisive, NotAllowedError) else DisconnectedError
    causes = {endpoint: error if isinstance(error, BusError) else cause_of(error) for endpoint, error in errors.items()}
    return kind("; ".join(f"{endpoint}: {cause}" for endpoint, cause in causes.items()))
