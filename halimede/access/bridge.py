"""The configuration of the broker of a place (a factory, a shop), which works on while the site's broker is away.

It is a Mosquitto with a listener for the clients of the place, and two connections to the site's broker. The first
keeps messages that it could not send, also on disk, and sends them later (statuses, results). The second is for
messages that are useless when late (samples for the cloud, their answers): it keeps nothing, or old samples would fill
the connection when it is up again.

Both speak MQTT 5, so that response topic, correlation data, user properties and expiry are passed on unchanged, and
retained messages and their clearing too (tests/integration/test_bridge.py, Mosquitto 2.0.11). That version requests no
session at the site's broker that persists after the connection; GM itself repeats the messages of that time. A worker's
sample is acknowledged although the connection is down: the worker notices it by its deadlines and by loads that become
stale. The topics are the same on both sides, because a response topic is not translated.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from halimede.access.grants import Route, routes
from halimede.access.mosquitto import LIMITS, LOG_LINES, broker_lines, head, port
from halimede.access.site import Bridge, Principal, Site
from halimede.topic import Role

#: most messages, and most bytes of them, that are kept while the connection is down: above what one broker's clients
#: cause
KEPT_MESSAGES, KEPT_BYTES = 200_000, 512 * 1024 * 1024
#: seconds: keepalive; first and longest wait before it reconnects; interval of writes of kept messages to disk
KEEPALIVE_S, RECONNECT_S, MAX_RECONNECT_S, SAVE_PERIOD_S = 15, 1, 30, 10


def address(site: Site) -> str:
    """Return ``host:port`` of the site's broker, to which bridges connect."""
    return f"{site.broker[0]}:{port(site)}"


def configuration(
    site: Site, bridge: Bridge, folder: Path, *, login: tuple[str, str] | None = None, data: Path | None = None
) -> str:
    """Return the text of a whole mosquitto.conf for the broker of a place.

    ``folder``: the folder ``bridges/<name>`` on that broker's machine. ``login``: the bridge's user name and password,
    None if the site has certificates. ``data``: the folder for kept messages (default: ``bridge.data``, else one in
    ``folder``).
    """
    limits = [line for line in LIMITS if not line.startswith(("persistence", "max_queued_messages"))]
    lines = [
        f"listener {bridge.port or port(site)}",
        *broker_lines(folder / "broker", tls=login is None),
        *limits,
        f"max_queued_messages {KEPT_MESSAGES}",
        f"max_queued_bytes {KEPT_BYTES}",
        "persistence true",
        f"persistence_location {data or bridge.data or folder / 'data'}/",
        f"autosave_interval {SAVE_PERIOD_S}",
        *LOG_LINES,
        *connections(site, bridge, folder, address(site), login=login),
    ]
    return head(folder / "broker" / "mosquitto.conf", folder) + "\n".join(lines) + "\n"


def connections(
    site: Site, bridge: Bridge, folder: Path, remote: str, *, login: tuple[str, str] | None = None
) -> tuple[str, ...]:
    """Return the lines of mosquitto.conf for both connections to the broker at ``remote`` (host:port).

    ``folder`` and ``login``: as of ``configuration``.
    """
    user = Principal(Role.BRIDGE, bridge.name).username
    login_lines = _login_lines(user, folder, login)
    lasting, live = ([route for route in routes(bridge) if route.live is is_live] for is_live in (False, True))
    return (
        *_connection(user, remote, login_lines, lasting, site.topic_prefix, is_persistent=True),
        *_connection(f"{user}-live", remote, login_lines, live, site.topic_prefix, is_persistent=False),
    )


def _connection(
    name: str, remote: str, login_lines: Iterable[str], routes_: Iterable[Route], prefix: str, *, is_persistent: bool
) -> list[str]:
    """Return the lines of one connection, whose topics begin with ``prefix`` (such as ``a/b/``).

    ``is_persistent``: it keeps messages that it could not send.
    """
    clean_session = "false" if is_persistent else "true"
    return [
        "",
        f"connection {name}",
        f"address {remote}",
        *login_lines,
        "bridge_protocol_version mqttv50",
        f"remote_clientid {name}",
        f"local_clientid local.{name}",
        f"cleansession {clean_session}",
        f"local_cleansession {clean_session}",
        "start_type automatic",
        f"restart_timeout {RECONNECT_S} {MAX_RECONNECT_S}",
        f"keepalive_interval {KEEPALIVE_S}",
        "bridge_outgoing_retain true",
        # on $SYS/broker/connection/<name>/state of the place's broker: 1 while it is connected (mosquitto.LINK_STATES)
        "notifications true",
        "notifications_local_only true",
        *(f"topic {prefix}{route.filter} {_direction(route)} {route.qos}" for route in routes_),
    ]


def _login_lines(user: str, folder: Path, login: tuple[str, str] | None) -> list[str]:
    """Return the lines with user name and password, or without them with the certificate in ``folder/link``."""
    if login is not None:
        return [f"remote_username {login[0]}", f"remote_password {login[1]}"]
    return [
        f"remote_username {user}",
        f"bridge_cafile {folder / 'link' / 'ca.crt'}",
        f"bridge_certfile {folder / 'link' / 'tls.crt'}",
        f"bridge_keyfile {folder / 'link' / 'tls.key'}",
        "bridge_tls_version tlsv1.2",
    ]


def _direction(route: Route) -> str:
    """Return Mosquitto's word for the direction of a route, as seen from the place: ``out``, ``in`` or ``both``."""
    if route.up and route.down:
        return "both"
    return "out" if route.up else "in"
