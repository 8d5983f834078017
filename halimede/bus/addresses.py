"""Tries the addresses of a broker in turn: the endpoints of the settings, and all addresses of their names.

Each connection begins with the first address. An address counts as reached when the broker there has accepted the
client (CONNACK), so a machine that accepts connections and does not answer is passed over as well. All names are
resolved at the same time. An endpoint whose name is not resolved within one endpoint's time comes after the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from halimede.bus.settings import Endpoint, MqttSettings
from halimede.errors import BusError, DisconnectedError, NotAllowedError, cause_of

#: what ``connect`` makes: a connection
T = TypeVar("T")

#: least seconds for an address: TCP repeats a lost SYN after one second, and the answer to it needs time as well
LEAST_ADDRESS_S = 1.5
#: most seconds for all addresses together, if each uses its least time
ALL_ADDRESSES_S = 30.0

#: addresses of one host, each with its socket family
Addresses: TypeAlias = Sequence[tuple[int, tuple[Any, ...]]]
#: an endpoint with its addresses, or with the reason why there are none
Resolved: TypeAlias = tuple[Endpoint, Addresses | Exception]


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
        """The numeric address as text, for a library that connects by itself; of IPv6 with its scope."""
        host = str(self.target[0])
        scope = self.target[3] if self.family == socket.AF_INET6 else 0
        return f"{host}%{scope}" if scope and "%" not in host else host

    @property
    def port(self) -> int:
        """The port number."""
        return int(self.target[1])


async def connect_to_any(settings: MqttSettings, connect: Callable[[SocketAddress], Awaitable[T]]) -> T:
    """Return what ``connect`` returns for the first address of the settings at which it raises no error.

    Raises the error of the last address (OSError, TimeoutError, DisconnectedError), or NotAllowedError if a broker
    refused this client. With several endpoints it raises one DisconnectedError or NotAllowedError with the cause at
    each of them.
    """
    endpoints, timeout_s = settings.endpoints, settings.connect_timeout_s
    errors: dict[Endpoint, list[Exception]] = {endpoint: [] for endpoint in endpoints}
    lookups = [asyncio.create_task(_resolve(endpoint, timeout_s)) for endpoint in endpoints]
    untried = len(endpoints)
    try:
        async for endpoint, result in _in_order(lookups, share_s(timeout_s, len(endpoints))):
            untried -= 1
            if isinstance(result, Exception):
                errors[endpoint].append(result)
                continue
            share = share_s(timeout_s, len(endpoints) * len(result))
            for position, (family, target) in enumerate(result, 1):
                is_last = not untried and position == len(result)
                try:
                    return await connect(SocketAddress(endpoint, family, target, timeout_s if is_last else share))
                except (BusError, OSError, TimeoutError) as error:
                    errors[endpoint].append(error)
    finally:
        for lookup in lookups:
            lookup.cancel()
    raise _error_of_all({endpoint: _decisive(failures) for endpoint, failures in errors.items()})


def share_s(timeout_s: float, addresses: int) -> float:
    """Return the seconds for each of ``addresses``, of ``timeout_s`` for all: a silent one must leave time for others.

    Many addresses get more than ``timeout_s`` in sum, because each gets LEAST_ADDRESS_S, up to ALL_ADDRESSES_S.
    """
    return min(timeout_s, max(timeout_s / addresses, min(LEAST_ADDRESS_S, ALL_ADDRESSES_S / addresses)))


async def _in_order(lookups: Sequence[asyncio.Task[Resolved]], patience_s: float) -> AsyncIterator[Resolved]:
    """Yield the lookups' results in their order, but those that take longer than ``patience_s`` after the others."""
    loop, late = asyncio.get_running_loop(), list[asyncio.Task[Resolved]]()
    deadline = loop.time() + patience_s
    for lookup in lookups:
        await asyncio.wait([lookup], timeout=deadline - loop.time())
        if lookup.done():
            yield lookup.result()
        else:
            late.append(lookup)
    for resolved in asyncio.as_completed(late):
        yield await resolved


async def _resolve(endpoint: Endpoint, timeout_s: float) -> Resolved:
    """Return an endpoint with the addresses of its host in the resolver's order, or with the reason why it has none."""
    with contextlib.suppress(OSError, UnicodeError):  # it is a name
        return endpoint, _addresses(endpoint, socket.AI_NUMERICHOST)
    # a separate thread: a full default pool would delay reconnecting
    thread = ThreadPoolExecutor(1, thread_name_prefix="mqtt-names")
    try:
        async with asyncio.timeout(timeout_s):
            return endpoint, await asyncio.get_running_loop().run_in_executor(thread, _addresses, endpoint)
    except TimeoutError:
        return endpoint, TimeoutError(f"the name {endpoint.host} is not resolved within {timeout_s:g} s")
    except OSError as error:
        return endpoint, error
    except UnicodeError as error:  # a name that its encoding for DNS does not allow
        return endpoint, OSError(str(error))
    finally:
        thread.shutdown(wait=False)


def _addresses(endpoint: Endpoint, flags: int = 0) -> Addresses:
    """Return the addresses of an endpoint, each with its family. ``flags``: of ``getaddrinfo``.

    Blocks, except with ``AI_NUMERICHOST``, which resolves no name. Raises OSError or UnicodeError if there are none.
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
