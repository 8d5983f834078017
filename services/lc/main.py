"""``halimede lc``: the command line of the local controller (LC) of a node. ``services.lc.app`` has the LC itself."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from halimede import log as logging
from halimede.api.quantity import quantity
from halimede.bus.credentials import Credentials
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.environment import is_enabled
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.models.address_policy import VARIABLE, AddressPolicy
from halimede.names import check_name
from halimede.observe import parse_bind
from halimede.system.runtime import rare_collections, stop_on_signal
from services.lc.app import Config, LocalController, client_id
from services.lc.credentials import NodeCredentials

#: halimede's folder, by default
HOME = "~/.local/state/halimede"
#: exit code after an error, such as a mistake of the caller
MISTAKE = 2
#: seconds: the broker reports a hanging LC after 1.5 times this, so that `halimede status` names it within 15 s
KEEPALIVE_S = 7
#: the end of the help
EPILOG = """\
A worker runs on this node if its nodeName or nodeSelector matches the node's name or labels.

Examples:
  halimede lc --node edge0 --label node-role.kubernetes.io/edge=

On Kubernetes, where GM creates pods and kubelet runs them:

  halimede lc --node edge0 --pods
"""


def parser() -> argparse.ArgumentParser:
    """Return the definition of the command line, from which the documents are made as well."""
    command = argparse.ArgumentParser(
        prog="halimede lc",
        description="Local controller of one node: stores its resources, downloads models, runs workers, reports.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--node", required=True, metavar="NAME", help="name of this node, unique on the broker")
    command.add_argument(
        "--home",
        default=os.environ.get("HALIMEDE_HOME") or HOME,
        metavar="DIR",
        help=f"halimede's folder; the node's files are in nodes/NAME below it (default: $HALIMEDE_HOME or {HOME})",
    )
    command.add_argument(
        "--broker",
        default=os.environ.get("HALIMEDE_BROKER") or "127.0.0.1:1883",
        metavar="URL",
        help="host:port, mqtt://[user:password@]host:port or mqtts://...; several in turn: a:1883,b:1883 "
        "(default: $HALIMEDE_BROKER or 127.0.0.1:1883)",
    )
    command.add_argument(
        "--credentials",
        default=os.environ.get("HALIMEDE_CREDENTIALS", ""),
        metavar="DIR",
        help="the node's folder of the site, such as site/nodes/edge0: credentials of LC and its workers "
        "(default: $HALIMEDE_CREDENTIALS, else none)",
    )
    command.add_argument(
        "--http",
        default=os.environ.get("HALIMEDE_HTTP") or "127.0.0.1:0",
        metavar="HOST:PORT",
        help="address of its health and metrics; port 0: any free one; off: none "
        "(default: $HALIMEDE_HTTP, else %(default)s)",
    )
    command.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a label; may be repeated (on Kubernetes GM reads those of the Node object)",
    )
    command.add_argument(
        "--pods",
        action="store_true",
        default=is_enabled(os.environ, "HALIMEDE_PODS"),
        help="its workers are pods on Kubernetes: download models and report, but start no processes "
        "(default: $HALIMEDE_PODS, 1 or 0)",
    )
    command.add_argument(
        "--host-root",
        default=os.environ.get("HALIMEDE_HOST_ROOT") or "/host",
        metavar="DIR",
        help="with --pods: the folder at which the node's folders with Datasets are mounted, /data at DIR/data "
        "(default: $HALIMEDE_HOST_ROOT, else %(default)s)",
    )
    command.add_argument(
        "--fetch-allow",
        default=os.environ.get(VARIABLE, ""),
        metavar="WHAT",
        help="private addresses from which to download models: loopback, private, link-local, networks such as "
        f"10.0.0.0/8, names of hosts, separated by commas (default: ${VARIABLE}, else none)",
    )
    command.add_argument(
        "--cache-bytes",
        default=os.environ.get("HALIMEDE_CACHE_BYTES") or "20G",
        metavar="BYTES",
        help="space for models, such as 500M or 20G; models in use are never removed "
        "(default: $HALIMEDE_CACHE_BYTES, else %(default)s)",
    )
    return command


def parse(arguments: Sequence[str] | None = None) -> tuple[Config, MqttSettings]:
    """Return the LC's configuration and the broker's address by the command line (None: of this process).

    Raises InvalidFieldError; argparse exits at its own errors.
    """
    options = parser().parse_args(arguments)
    labels: dict[str, str] = {}
    for label in options.label:
        key, equals, value = label.partition("=")
        if not key or not equals or len(key) > 256 or len(value) > 256:
            raise InvalidFieldError("--label", label, "write KEY=VALUE, such as node-role.kubernetes.io/edge=")
        labels[key] = value
    try:
        home = Path(options.home).expanduser().absolute()
    except RuntimeError:
        raise InvalidFieldError("--home", options.home, "there is no such user: give a folder") from None
    settings = MqttSettings.from_url(options.broker, variable="--broker")
    credentials, broker = None, options.broker
    if options.credentials:
        credentials = NodeCredentials(Credentials.at(options.credentials, "--credentials").folder)
        credentials.check(secure=settings.secure, workers=not options.pods)
        settings = replace(settings, credentials=credentials.own)
        broker = settings.url  # workers must not receive the LC's own credentials
    config = Config(
        node=check_name("--node", options.node),
        home=home,
        broker=broker,
        labels=labels,
        credentials=credentials,
        http=options.http,
        pods=options.pods,
        host_root=Path(options.host_root).absolute(),
        cache_bytes=int(quantity("--cache-bytes", options.cache_bytes)),
        fetch_policy=AddressPolicy.parse(options.fetch_allow, "--fetch-allow"),
    )
    parse_bind(options.http, "--http")
    return config, settings


async def serve(config: Config, settings: MqttSettings) -> None:
    """Run an LC until SIGTERM or SIGINT. Raises HalimedeError if its folder or store cannot be used."""
    files = MqttBus(client_id(config.node), settings)
    bus = MqttBus(f"lc.{config.node}", replace(settings.for_control(), keepalive_s=KEEPALIVE_S))
    await LocalController(config, bus, files=files).run(stop_on_signal())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an LC until a signal; return the exit code: 0 after a clean stop, 2 after an error, which is printed."""
    try:
        config, settings = parse(arguments)
        logging.configure(service="lc", node=config.node)
        with rare_collections():
            asyncio.run(serve(config, settings))
    except HalimedeError as error:
        print(f"halimede lc: {error}", file=sys.stderr)
        return MISTAKE
    return 0
