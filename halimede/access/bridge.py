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
KEEPALIVE_S, AGAIN_S, AGAIN_MOST_S, SAVED_S = 15, 1, 30, 10


def address(site: Site) -> str:
    """Return the address of the site's broker for bridges."""
    return f"{site.broker[0]}:{port(site)}"


def configuration(
    site: Site, bridge: Bridge, place: Path, *, login: tuple[str, str] | None = None, data: Path | None = None
) -> str:
    """Return a whole configuration file.

    ``place`` is the folder ``bridges/<name>`` on the machine of the place's broker, ``login`` the bridge's credentials
    if the site has passwords, ``data`` the folder for kept messages (default: the bridge's own, else in ``place``).
    """
    limits = [line for line in LIMITS if not line.startswith(("persistence", "max_queued_messages"))]
    lines = [
        f"listener {bridge.port or port(site)}",
        *broker_lines(place / "broker", tls=login is None),
        *limits,
        f"max_queued_messages {KEPT_MESSAGES}",
        f"max_queued_bytes {KEPT_BYTES}",
        "persistence true",
        f"persistence_location {data or bridge.data or place / 'data'}/",
        f"autosave_interval {SAVED_S}",
        "log_dest stderr",
        *(f"log_type {kind}" for kind in ("error", "warning", "notice", "information")),
        *connections(site, bridge, place, address(site), login=login),
    ]
    return head(place / "broker" / "mosquitto.conf", place) + "\n".join(lines) + "\n"


def connections(
    site: Site, bridge: Bridge, place: Path, to: str, *, login: tuple[str, str] | None = None
) -> tuple[str, ...]:
    """Return the lines of both connections to the broker at ``to`` (host:port)."""
    prefix = "".join(f"{level}/" for level in site.levels)
    user = Principal(Role.BRIDGE, bridge.name).username
    shown = _shown(user, place, login)
    found = routes(bridge)
    lasting = _connection(user, to, shown, [r for r in found if not r.live], prefix, lasts=True)
    live = _connection(f"{user}-live", to, shown, [r for r in found if r.live], prefix, lasts=False)
    return (*lasting, *live)


def _connection(
    name: str, to: str, shown: Iterable[str], found: Iterable[Route], prefix: str, *, lasts: bool
) -> list[str]:
    clean = "false" if lasts else "true"
    return [
        "",
        f"connection {name}",
        f"address {to}",
        *shown,
        "bridge_protocol_version mqttv50",
        f"remote_clientid {name}",
        f"local_clientid local.{name}",
        f"cleansession {clean}",
        f"local_cleansession {clean}",
        "start_type automatic",
        f"restart_timeout {AGAIN_S} {AGAIN_MOST_S}",
        f"keepalive_interval {KEEPALIVE_S}",
        "bridge_outgoing_retain true",
        # on $SYS/broker/connection/<name>/state of the place's broker: 1 while it is connected (mosquitto.LINK_STATES)
        "notifications true",
        "notifications_local_only true",
        *(f"topic {prefix}{route.filter} {_direction(route)} {route.qos}" for route in found),
    ]


def _shown(user: str, place: Path, login: tuple[str, str] | None) -> list[str]:
    if login is not None:
        return [f"remote_username {login[0]}", f"remote_password {login[1]}"]
    return [
        f"remote_username {user}",
        f"bridge_cafile {place / 'link' / 'ca.crt'}",
        f"bridge_certfile {place / 'link' / 'tls.crt'}",
        f"bridge_keyfile {place / 'link' / 'tls.key'}",
        "bridge_tls_version tlsv1.2",
    ]


def _direction(route: Route) -> str:
    if route.up and route.down:
        return "both"
    return "out" if route.up else "in"
