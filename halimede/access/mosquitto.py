"""A site's access rules and listener in the form of Mosquitto: a section for each user, default deny.

Mosquitto checks each delivery, so it accepts a wider subscription, which only receives what the rules allow. A shared
subscription is checked without its ``$share/<group>/``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from halimede.access import files
from halimede.access.grants import Action, Grant, rights, users_behind
from halimede.access.site import Bridge, Site
from halimede.topic import Role

#: default ports with certificates, and with passwords
PORT, PLAIN_PORT = 8883, 1883
#: most bytes of a packet: the largest body (16 MiB), plus topic and properties
MAX_PACKET = 16 * 1024 * 1024 + 64 * 1024
#: messages for one client: unacknowledged, and queued beyond that
MAX_INFLIGHT, MAX_QUEUED = 1000, 20_000
#: lines of mosquitto.conf
LIMITS = (
    # after a crash, the owners of retained messages publish them again
    "persistence false",
    "set_tcp_nodelay true",
    f"max_packet_size {MAX_PACKET}",
    f"max_inflight_messages {MAX_INFLIGHT}",
    f"max_queued_messages {MAX_QUEUED}",
)
#: lines of mosquitto.conf: it logs what happens to clients
LOG_LINES = ("log_dest stderr", *(f"log_type {kind}" for kind in ("error", "warning", "notice", "information")))
#: variables of the broker's process. Without them glibc adapts these limits at run time, and frames of about 1 MB then
#: take several times as long through the broker. With another C library (musl, as in Alpine's images) they have no
#: effect
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 1024 * 1024),
    "MALLOC_TOP_PAD_": str(16 * 1024 * 1024),
}
#: where the broker of a place publishes the states of its bridge's connections: 1 while one is up, else 0
LINK_STATES = "$SYS/broker/connection/+/state"
#: roles that may read them
WATCHERS = frozenset({Role.OPERATOR, Role.CONSUMER})
#: comments at the beginning of the access rules, and of the settings
ACL_HEAD = """\
# Access rules of a halimede site for Mosquitto (acl_file). Made from the topic contract: do not edit, make it anew.
# What is not granted here is denied.
"""
CONF_HEAD = """\
# Mosquitto of a halimede site: nobody without credentials, access rules. Made by `halimede certs`: do not edit.
#   {environment} mosquitto -c {conf}
# (as a service: `systemctl edit mosquitto`, [Service], Environment="{environment}". Large frames then stay fast.)
# It has to be able to read this folder: `chown -R mosquitto: {folder}` where it runs as the user mosquitto.
# After a change of acl or tls.crt: `kill -HUP <its pid>` (or `systemctl reload mosquitto`). After a change of ca.crt:
# restart it.
"""


def listener_lines(folder: Path, *, tls: bool) -> tuple[str, ...]:
    """Return the lines of mosquitto.conf after ``listener`` for the site in ``folder``, an absolute path.

    With ``tls`` clients need certificates, else passwords.
    """
    return broker_lines(folder / "broker", tls=tls)


def configuration(site: Site, folder: Path) -> str:
    """Return the text of a whole mosquitto.conf for the site's broker, which serves other machines.

    ``folder``: the site's. If the site has ``install``, the file names that folder in place of ``folder/broker``.
    """
    broker = Path(site.install) if site.install else folder / "broker"
    lines = [f"listener {port(site)}", *broker_lines(broker, tls=not site.passwords), *LIMITS, *LOG_LINES]
    return head(broker / "mosquitto.conf", broker) + "\n".join(lines) + "\n"


def head(conf: Path, folder: Path) -> str:
    """Return the comment at the start of the file ``conf``, for operators; the broker's files are in ``folder``."""
    environment = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
    return CONF_HEAD.format(conf=conf, folder=folder, environment=environment)


def port(site: Site) -> int:
    """Return the port at which clients and bridges reach a site's broker."""
    return site.port or (PLAIN_PORT if site.passwords else PORT)


def acl_file(site: Site, bridge: Bridge | None = None) -> str:
    """Return the text of the ``acl_file`` of the site's broker, or with ``bridge`` that of the broker of a place.

    At a place, operators and consumers may also read whether its link to the site's broker is up (``LINK_STATES``).
    """
    sections = [ACL_HEAD]
    for principal in users_behind(site, bridge) if bridge else site.principals():
        rules = _rules(rights(site, principal), site.topic_prefix)
        if bridge and principal.role in WATCHERS:
            rules.append(f"topic read {LINK_STATES}")
        sections.append("\n".join((f"user {principal.username}", *rules, "")))
    return "\n".join(sections)


def broker_lines(broker: Path, *, tls: bool) -> tuple[str, ...]:
    """Return the lines of mosquitto.conf after ``listener`` for files in the folder ``broker``; ``tls``: as above."""
    lines = ("allow_anonymous false", f"acl_file {broker / 'acl'}")
    if not tls:
        return (*lines, f"password_file {broker / 'passwords'}")
    return (
        *lines,
        f"cafile {broker / 'ca.crt'}",
        f"certfile {broker / 'tls.crt'}",
        f"keyfile {broker / 'tls.key'}",
        "require_certificate true",
        "use_identity_as_username true",
        "tls_version tlsv1.2",  # at least
    )


def _rules(granted: Iterable[Grant], prefix: str) -> list[str]:
    """Return a line for each filter, after ``prefix``, with all actions that are granted on it."""
    actions: dict[str, set[Action]] = {}
    for right in granted:
        actions.setdefault(right.filter, set()).add(right.action)
    return [f"topic {_access(allowed)} {prefix}{filter_}" for filter_, allowed in actions.items()]


def _access(actions: set[Action]) -> str:
    """Return Mosquitto's word for one or both actions."""
    if len(actions) == 2:
        return "readwrite"
    return "write" if Action.PUBLISH in actions else "read"


def write_rules(site: Site, folder: Path) -> None:
    """Write the access rules for every broker of a site into the broker's folder below ``folder``. Raises OSError."""
    files.write(folder / "broker" / "acl", acl_file(site), files.SECRET)
    for bridge in site.bridges:
        files.write(make_bridge_folder(folder, bridge) / "acl", acl_file(site, bridge), files.SECRET)


def make_bridge_folder(folder: Path, bridge: Bridge) -> Path:
    """Make the folder for the broker of a place, below the site's ``folder``; return it."""
    return files.make_folders(folder, Path("bridges", bridge.name, "broker"))
