"""The broker of a place (a factory, a shop), which works on when the connection to the site's broker is down.

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
from halimede.access.mosquitto import LIMITS, broker_lines, head, port
from halimede.access.site import Bridge, Principal, Site
from halimede.topic import Role

#: messages, and their bytes, that are kept while the connection is down: more than any client of one broker needs
KEPT_MESSAGES, KEPT_BYTES = 200_000, 512 * 1024 * 1024
#: seconds: keepalive; first and longest wait before it reconnects; interval of writes of kept messages to disk
KEEPALIVE_S, RECONNECT_S, MAX_RECONNECT_S, SAVED_S = 15, 1, 30, 10


def address(site: Site) -> str:
    """Return the address of the site's broker for bridges."""
    return f"{site.broker[0]}:{port(site)}"


def configuration(
    site: Site, bridge: Bridge, folder: Path, *, login: tuple[str, str] | None = None, data: Path | None = None
) -> str:
    """Return a whole configuration file.

    ``place`` is the folder ``bridges/<name>`` on the machine of the place's broker, ``login`` the bridge's credentials
    if the site has passwords, ``data`` the folder for kept messages (default: the bridge's own, else in ``place``).
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
        f"autosave_interval {SAVED_S}",
        "log_dest stderr",
        *(f"log_type {kind}" for kind in ("error", "warning", "notice", "information")),
        *connections(site, bridge, folder, address(site), login=login),
    ]
    return head(folder / "broker" / "mosquitto.conf", folder) + "\n".join(lines) + "\n"


def connections(
    site: Site, bridge: Bridge, folder: Path, to: str, *, login: tuple[str, str] | None = None
) -> tuple[str, ...]:
    """Return the lines of both connections to the broker at ``to`` (host:port)."""
    prefix = "".join(f"{level}/" for level in site.levels)
    user = Principal(Role.BRIDGE, bridge.name).username
    login_lines = _login_lines(user, folder, login)
    all_routes = routes(bridge)
    lasting = _connection(user, to, login_lines, [r for r in all_routes if not r.live], prefix, is_persistent=True)
    live = _connection(f"{user}-live", to, login_lines, [r for r in all_routes if r.live], prefix, is_persistent=False)
    return (*lasting, *live)


def _connection(
    name: str, to: str, login_lines: Iterable[str], topic_routes: Iterable[Route], prefix: str, *, is_persistent: bool
) -> list[str]:
    clean = "false" if is_persistent else "true"
    return [
        "",
        f"connection {name}",
        f"address {to}",
        *login_lines,
        "bridge_protocol_version mqttv50",
        f"remote_clientid {name}",
        f"local_clientid local.{name}",
        f"cleansession {clean}",
        f"local_cleansession {clean}",
        "start_type automatic",
        f"restart_timeout {RECONNECT_S} {MAX_RECONNECT_S}",
        f"keepalive_interval {KEEPALIVE_S}",
        "bridge_outgoing_retain true",
        # on $SYS/broker/connection/<name>/state of the place's broker: 1 while it is connected (mosquitto.LINK_STATES)
        "notifications true",
        "notifications_local_only true",
        *(f"topic {prefix}{route.filter} {_direction(route)} {route.qos}" for route in topic_routes),
    ]


def _login_lines(user: str, folder: Path, login: tuple[str, str] | None) -> list[str]:
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
    if route.up and route.down:
        return "both"
    return "out" if route.up else "in"
