"""``halimede gm``: the command line of the global manager (GM). ``services.gm.app`` has the GM itself."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from halimede import __version__
from halimede.bus.credentials import Credentials
from halimede.bus.mqtt import MqttSettings
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.log import configure
from halimede.observe import parse_bind
from halimede.observe.http import DEFAULT_BIND
from services.gm.app import ManagerProcess
from services.gm.cluster.local import LocalCluster
from services.gm.workloads.pod_settings import read as read_pod_settings

#: exit code after an error for the user: a wrong option, a store that cannot be used, another GM on the broker
USERS_MISTAKE = 2
#: the end of the help
EPILOG = """\
Users and nodes reach it over the broker. Its HTTP port serves only the web page, health and metrics.
Without a broker it keeps reconnecting.

Examples:
  halimede gm --broker 127.0.0.1:1883
  halimede gm --broker mqtts://broker.example.com --credentials site/gm
  halimede gm --kubernetes --pods-config pods.json

exit code: 0 after SIGTERM or SIGINT, 2 for a mistake in the options or a store that cannot be used
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run GM until SIGTERM or SIGINT; return the exit code, 0 or USERS_MISTAKE. Errors are printed to stderr.

    ``arguments``: of the command line; None: those of this process. Raises SystemExit, as argparse does, after the help
    and for an option that does not exist.
    """
    options = parser().parse_args(arguments)
    configure(service="gm")
    try:
        credentials = Credentials.at(options.credentials, "--credentials") if options.credentials else None
        settings = MqttSettings.from_url(options.broker, variable="--broker", credentials=credentials)
        parse_bind(options.http, "--http")
        manager = ManagerProcess(settings, Path(options.store).expanduser(), options.http, or_any=options.http_or_any)
        asyncio.run(_run(manager, options))
    except HalimedeError as error:
        sys.stderr.write(f"halimede gm: {error}\n")
        return USERS_MISTAKE
    return 0


async def _run(manager: ManagerProcess, options: argparse.Namespace) -> None:
    """Run GM with its own store or on Kubernetes until a signal cancels it. Raises HalimedeError."""
    running = _run_on_kubernetes(manager, options) if options.kubernetes else _run_with_own_store(manager)
    work = asyncio.create_task(running, name="gm")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work


async def _run_with_own_store(manager: ManagerProcess) -> None:
    """Run GM with its own store."""
    async with LocalCluster(manager.home / "store.db") as cluster:
        await manager(cluster, editor=cluster)


async def _run_on_kubernetes(manager: ManagerProcess, options: argparse.Namespace) -> None:
    """Run GM on Kubernetes, whenever it leads.

    Raises InvalidFieldError for wrong settings of pods, or if the package of the Kubernetes client is missing.
    """
    pods = read_pod_settings(options.pods_config, os.environ)
    try:
        from services.gm.leader import lead  # noqa: PLC0415 - the client is an extra, and 55 MB
    except ModuleNotFoundError as error:
        fix = f"install it: pip install 'halimede[gm,kubernetes]' ({error.name} is missing)"
        raise InvalidFieldError("--kubernetes", "", fix) from None
    identity = options.identity or f"{socket.gethostname()}-{os.getpid()}"
    await lead(manager, pods, kubeconfig=options.kubeconfig, namespace=options.namespace, identity=identity)


def parser() -> argparse.ArgumentParser:
    """Return the definition of the command line, from which the documents are made as well."""
    home = os.environ.get("HALIMEDE_HOME") or "~/.local/state/halimede"
    command = argparse.ArgumentParser(
        prog="halimede gm",
        description="The global manager: stores resources, sends each node its resources, writes their status.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--store",
        default=f"{home}/gm",
        metavar="DIR",
        help="folder of its database; one global manager at a time may use it (default: %(default)s)",
    )
    command.add_argument(
        "--broker",
        default=os.environ.get("HALIMEDE_BROKER") or "mqtt://127.0.0.1:1883",
        metavar="URL",
        help="host, host:port, mqtt://[user:password@]host[:port] or mqtts://...; several in turn: a:1883,b:1883 "
        "(default: $HALIMEDE_BROKER, else mqtt://127.0.0.1:1883)",
    )
    command.add_argument(
        "--credentials",
        default=os.environ.get("HALIMEDE_CREDENTIALS", ""),
        metavar="DIR",
        help="folder of its credentials: password, or ca.crt, tls.crt and tls.key "
        "(default: $HALIMEDE_CREDENTIALS, else none)",
    )
    command.add_argument(
        "--http",
        default=os.environ.get("HALIMEDE_HTTP") or DEFAULT_BIND,
        metavar="HOST:PORT",
        help="address of its web page, health and metrics; off loopback the page requires the token in the file "
        "page-token of the store; off: none (default: $HALIMEDE_HTTP, else %(default)s: any free port, see its log)",
    )
    kubernetes = command.add_argument_group(
        "on Kubernetes",
        "Users apply resources with kubectl; workers are pods. Several global managers may run: one leads by a Lease.",
    )
    kubernetes.add_argument("--kubernetes", action="store_true", help="use the API server's resources")
    kubernetes.add_argument(
        "--pods-config",
        type=Path,
        default=os.environ.get("HALIMEDE_PODS_CONFIG") or None,
        metavar="FILE",
        help="JSON file: images, the broker's address for pods, folders of nodes that pods may use (docs/deploy.md; "
        "default: $HALIMEDE_PODS_CONFIG, else only the environment)",
    )
    kubernetes.add_argument(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="kubeconfig for the API server (default: the pod's service account, else $KUBECONFIG)",
    )
    kubernetes.add_argument(
        "--namespace",
        default=os.environ.get("POD_NAMESPACE", ""),
        metavar="NAME",
        help="namespace of its Lease (default: $POD_NAMESPACE, else the pod's)",
    )
    kubernetes.add_argument(
        "--identity",
        default=os.environ.get("POD_NAME", ""),
        metavar="NAME",
        help="its name in the Lease (default: $POD_NAME, else host and process id)",
    )
    command.add_argument("--http-or-any", action="store_true", help="with --http: use any free port if that is in use")
    command.add_argument("--version", action="version", version=f"halimede {__version__}")
    return command
