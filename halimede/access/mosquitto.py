"""A site's access rules and listener as Mosquitto reads them: a user section each, default deny.

Mosquitto checks what it delivers, so a wider subscription is granted and brings only what the rules allow. A shared
subscription is checked without its ``$share/<group>/``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from halimede.access import files
from halimede.access.grants import Action, Grant, behind, rights
from halimede.access.site import Bridge, Principal, Site

PORT, PLAIN_PORT = 8883, 1883
#: the largest body (16 MiB), with room for topic and properties
MAX_PACKET = 16 * 1024 * 1024 + 64 * 1024
#: messages for one client: unacknowledged, and waiting beyond that
MAX_INFLIGHT, MAX_QUEUED = 1000, 20_000
LIMITS = (
    # what has to be there after a crash, its owner sends again
    "persistence false",
    "set_tcp_nodelay true",
    f"max_packet_size {MAX_PACKET}",
    f"max_inflight_messages {MAX_INFLIGHT}",
    f"max_queued_messages {MAX_QUEUED}",
)
#: glibc adapts these at run time, and frames of about 1 MB then take several times as long through the broker. Where it
#: is built with another library (musl, as in Alpine's images) they do nothing
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 1024 * 1024),
    "MALLOC_TOP_PAD_": str(16 * 1024 * 1024),
}
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
    """Return the lines after ``listener`` on who may do what, for the site in ``folder``, an absolute path.

    With ``tls``: certificates, and nobody without one; else passwords.
    """
    return broker_lines(folder / "broker", tls=tls)


def configuration(site: Site, folder: Path) -> str:
    """Return a whole configuration file of a broker that serves other machines."""
    broker = Path(site.install) if site.install else folder / "broker"
    lines = [f"listener {port(site)}", *broker_lines(broker, tls=not site.passwords), *LIMITS, "log_dest stdout"]
    lines += [f"log_type {kind}" for kind in ("error", "warning", "notice", "information")]
    return head(broker / "mosquitto.conf", broker) + "\n".join(lines) + "\n"


def head(conf: Path, folder: Path) -> str:
    """Return the lines that a configuration file begins with, for whoever has to start and to tend the broker."""
    environment = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
    return CONF_HEAD.format(conf=conf, folder=folder, environment=environment)


def port(site: Site) -> int:
    """Return where a site's broker listens."""
    return PLAIN_PORT if site.passwords else PORT


def acl_file(site: Site, users: Iterable[Principal] | None = None) -> str:
    """Return the access rules, for some users of the site or for all."""
    prefix = "".join(f"{level}/" for level in site.levels)
    sections = [ACL_HEAD]
    for principal in site.principals() if users is None else users:
        rules = "\n".join(_rules(rights(site, principal), prefix))
        sections.append(f"user {principal.username}\n{rules}\n")
    return "\n".join(sections)


def broker_lines(broker: Path, *, tls: bool) -> tuple[str, ...]:
    """Return the lines after ``listener`` for files that lie in ``broker``."""
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
    actions: dict[str, set[Action]] = {}
    for right in granted:
        actions.setdefault(right.filter, set()).add(right.action)
    return [f"topic {_access(found)} {prefix}{filter_}" for filter_, found in actions.items()]


def _access(actions: set[Action]) -> str:
    if len(actions) == 2:
        return "readwrite"
    return "write" if Action.PUBLISH in actions else "read"


def write_rules(site: Site, folder: Path) -> None:
    """Write access rules for every broker of a site."""
    files.write(folder / "broker" / "acl", acl_file(site), files.SECRET)
    for bridge in site.bridges:
        files.write(make_bridge_folder(folder, bridge) / "acl", acl_file(site, behind(site, bridge)), files.SECRET)


def make_bridge_folder(folder: Path, bridge: Bridge) -> Path:
    """Make the folder for the broker of a place; return it."""
    return files.make_folders(folder, Path("bridges", bridge.name, "broker"))
