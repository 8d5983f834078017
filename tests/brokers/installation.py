"""MQTT brokers that this machine has, and the configuration files with which each is tried.

Mosquitto is the one on the PATH. Others are in the folder that ``BROKERS`` names: a folder ``<kind>-<version>`` for
each, with an executable ``start``. ``start FILE`` runs the broker with a configuration file in the foreground, until
SIGTERM; data go next to that file. A file ``origin`` there states in one line where the broker came from.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from halimede.access import emqx, mosquitto
from halimede.access.certs import make_certificates
from halimede.access.mosquitto import MAX_INFLIGHT, MAX_PACKET, acl_file
from halimede.access.passwords import make_passwords
from halimede.access.site import Principal, Site
from halimede.cli.doctor.broker_features import FLASHMQ_BUFFER
from halimede.errors import HalimedeError
from services.broker import find_mosquitto
from services.site import Security

HOST = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
#: the broker that a pytest process tries, as JSON
UNDER_TEST = "HALIMEDE_TEST_BROKER"
#: bytes that FlashMQ keeps for a client: with its default of 64 KiB it drops the second of two frames of 70 KB
FLASHMQ_QUEUE = 256 * 1024 * 1024
#: of Debian's Mosquitto
SYSTEM = "this machine's package"


@dataclass(frozen=True, slots=True)
class Installation:
    """A broker that can be started: ``command``, followed by its configuration file."""

    kind: str
    version: str
    command: Sequence[str]
    origin: str

    @property
    def name(self) -> str:
        return f"{self.kind} {self.version}"

    @property
    def security(self) -> tuple[Security, ...]:
        """The ways in which a site of halimede can be served by it."""
        return KINDS[self.kind].security


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of broker: its configuration for ``(site, folder of the site, port)``, or for no site.

    ``security``: how it can serve a site; none: halimede writes no access rules in its form. ``member``: the settings
    that make a broker the first or the second node of a cluster; none: two brokers of this kind share no state.
    """

    open: Callable[[Path, int], str]
    guarded: Callable[[Site, Path, Path], str] | None = None
    security: tuple[Security, ...] = ()
    member: Callable[[int], str] | None = None


def installations(folder: Path | None, only: str = "") -> list[Installation]:
    """Return Mosquitto of the PATH and all brokers of a folder, whose names have the text ``only``.

    Raises HalimedeError for a folder without any, and if no name has the text.
    """
    binary = find_mosquitto()
    shown = subprocess.run([binary, "-h"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"version (\S+)", shown)
    here = Installation("mosquitto", version[1] if version else "", (binary, "-c"), SYSTEM)
    every = [here, *(_of_folder(folder) if folder else ())]
    if named := [broker for broker in every if only in broker.name]:
        return named
    raise HalimedeError(f"--only {only}: no broker of this name is here")


def under_test() -> Installation:
    """Return the broker that ``make test-brokers`` tries now; else Mosquitto of the PATH."""
    named = os.environ.get(UNDER_TEST)
    return Installation(**json.loads(named)) if named else installations(None)[0]


def _of_folder(folder: Path) -> list[Installation]:
    starts = sorted(folder.glob("*-*/start"))
    if not starts:
        raise HalimedeError(f"BROKERS={folder}: no folder <kind>-<version> there has an executable `start`")
    return [installation_at(start.parent) for start in starts]


def installation_at(folder: Path) -> Installation:
    """Return the broker of a folder ``<kind>-<version>``. Raises HalimedeError where it cannot be started."""
    kind, _, version = folder.name.partition("-")
    start, origin = (folder / "start").absolute(), folder / "origin"
    if kind not in KINDS:
        raise HalimedeError(f"{folder}: {kind!r} is not one of {', '.join(KINDS)}")
    if not start.exists():
        raise HalimedeError(f"{folder}: it has no executable `start`")
    return Installation(kind, version, (str(start),), origin.read_text().strip() if origin.exists() else "")


def site_of(port: int, security: Security) -> Site:
    """Return the site of the whole system's tests."""
    return Site(
        broker=["localhost", HOST],
        port=port,
        nodes=["edge0", "cloud0"],
        cameras=["cam0", "cam1"],
        consumers=["viewer"],
        passwords=security is Security.PASSWORDS,
    )


def make_site(site: Site, folder: Path) -> None:
    """Write what ``halimede certs init`` writes."""
    (make_passwords if site.passwords else make_certificates)(site, folder)
    emqx.write_files(site, folder)


def configuration_of(installation: Installation, site: Site, folder: Path, run: Path, member: int = 0) -> str:
    """Return the configuration of a site's broker, with its users and access rules.

    ``run``: where its data are. ``member``: its number among the nodes of a cluster, if brokers of this kind form one.
    """
    kind = KINDS[installation.kind]
    assert kind.guarded, f"{installation.kind} has no access rules of halimede"
    cluster = kind.member(member) if member and kind.member else ""
    return kind.guarded(site, folder, run) + cluster


def may_do_everything(auditor: Principal, site: Site, folder: Path) -> None:
    """Give one user all rights, in the rules of every kind: rules that no real site has."""
    rules = acl_file(site)
    head, _, rest = rules.partition(f"user {auditor.username}\n")
    later = rest[rest.index("user ") :] if "user " in rest else ""
    (folder / "broker" / "acl").write_text(f"{head}user {auditor.username}\ntopic readwrite #\n\n{later}")
    own = folder / "emqx" / "acl.conf"
    if own.exists():
        own.write_text(f'{{allow, {{username, "{auditor.username}"}}, all, ["#"]}}.\n{own.read_text()}')


def _mosquitto_open(folder: Path, port: int) -> str:
    return "\n".join([f"listener {port} {HOST}", "allow_anonymous true", *_as_root(), *mosquitto.LIMITS, ""])


def _mosquitto_guarded(site: Site, folder: Path, _: Path) -> str:
    text = mosquitto.configuration(site, folder)
    return text.replace(f"listener {site.port}\n", f"listener {site.port} {HOST}\n") + "\n".join([*_as_root(), ""])


def _as_root() -> list[str]:
    # otherwise it could not read a folder of root
    return ["user root"] if os.geteuid() == 0 else []


def _emqx_open(folder: Path, port: int) -> str:
    return (
        _emqx_node(folder)
        + f'listeners.tcp.default {{enable = true, bind = "{HOST}:{port}", tcp_options {{nodelay = true}}}}\n'
        + "listeners.ssl.default.enable = false\n"
        + emqx.WEBSOCKETS
        + "dashboard.listeners.http.bind = 0\nauthorization {no_match = allow, sources = []}\n"
        + emqx.LIMITS
    )


def _emqx_guarded(site: Site, folder: Path, run: Path) -> str:
    return _emqx_node(run) + emqx.configuration(site, folder).replace(EVERYWHERE, HOST)


def _emqx_node(folder: Path) -> str:
    return f'node {{name = "halimede@{HOST}", cookie = "tests", data_dir = "{folder / "data"}"}}\n'


def _emqx_member(number: int) -> str:
    # the digit at the end of a node's name is added to the ports on which it listens for other nodes
    seeds = ", ".join(f'"halimede{node}@{HOST}"' for node in (1, 2))
    return f'node.name = "halimede{number}@{HOST}"\ncluster {{discovery_strategy = static, static.seeds = [{seeds}]}}\n'


def _flashmq_open(folder: Path, port: int) -> str:
    return _flashmq(port, "", folder) + "allow_anonymous true\n"


def _flashmq_guarded(site: Site, folder: Path, run: Path) -> str:
    own = folder / "broker"
    tls = f"  fullchain {own}/tls.crt\n  privkey {own}/tls.key\n  client_verification_ca_file {own}/ca.crt\n"
    login = f"mosquitto_password_file {own}/passwords\n" if site.passwords else ""
    return _flashmq(site.port, "" if site.passwords else tls, run) + login + f"mosquitto_acl_file {own}/acl\n"


def _flashmq(port: int, tls: str, folder: Path) -> str:
    return (
        f"listen {{\n  protocol mqtt\n  inet_protocol ip4\n  inet4_bind_address {HOST}\n  port {port}\n{tls}}}\n"
        f"max_packet_size {MAX_PACKET}\nclient_max_write_buffer_size {FLASHMQ_BUFFER}\n"
        f"max_qos_msg_pending_per_client {MAX_INFLIGHT}\nmax_qos_bytes_pending_per_client {FLASHMQ_QUEUE}\n"
        f"log_file {folder}/broker.log\n"
    )


def _rabbitmq_open(folder: Path, port: int) -> str:
    return (
        f"listeners.tcp = none\nmqtt.listeners.tcp.1 = {HOST}:{port}\n"
        "anonymous_login_user = guest\nanonymous_login_pass = guest\n"
        f"mqtt.prefetch = {MAX_INFLIGHT}\nmqtt.max_packet_size_authenticated = {MAX_PACKET}\n"
    )


def _ejabberd_open(folder: Path, port: int) -> str:
    return (
        f'hosts: [localhost]\nlisten:\n  - {{port: {port}, ip: "{HOST}", module: mod_mqtt}}\n'
        "auth_method: [anonymous]\nanonymous_protocol: login_anon\nallow_multiple_connections: true\n"
        "modules:\n  mod_mqtt: {}\n"
    )


BOTH = (Security.PASSWORDS, Security.TLS)
KINDS = {
    "mosquitto": Kind(_mosquitto_open, _mosquitto_guarded, BOTH),
    "emqx": Kind(_emqx_open, _emqx_guarded, BOTH, _emqx_member),
    "flashmq": Kind(_flashmq_open, _flashmq_guarded, BOTH),
    "rabbitmq": Kind(_rabbitmq_open),
    "ejabberd": Kind(_ejabberd_open),
}
