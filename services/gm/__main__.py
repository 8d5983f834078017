"""``python -m services.gm``: the global manager as a process. Ends with 2 on a user's mistake, which it names."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from halimede import __version__
from halimede.bus.credentials import Credentials
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import HalimedeError
from halimede.log import configure
from halimede.observe import HttpServer, parse_bind
from halimede.observe.http import DEFAULT_BIND
from halimede.observe.metrics import registry
from services.gm.alone import refuse_a_second
from services.gm.app import GlobalManager
from services.gm.cluster.local import LocalCluster
from services.gm.page.routes import Page
from services.gm.page.token import page_token

CLIENT_ID = "halimede-gm"
USERS_MISTAKE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    options = _parser().parse_args(arguments)
    configure(service="gm")
    try:
        shown = Credentials.at(options.credentials, "--credentials") if options.credentials else None
        settings = MqttSettings.from_url(options.broker, variable="--broker", credentials=shown)
        parse_bind(options.http, "--http")
        asyncio.run(_run(options.store, settings, options.http, or_any=options.http_or_any))
    except HalimedeError as error:
        sys.stderr.write(f"halimede gm: {error}\n")
        return USERS_MISTAKE
    return 0


async def _run(store: Path, settings: MqttSettings, http: str, *, or_any: bool) -> None:
    async with LocalCluster(store / "store.db") as cluster:
        work = asyncio.create_task(_work(cluster, settings, store, http, or_any=or_any), name="gm")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await work


async def _work(cluster: LocalCluster, settings: MqttSettings, store: Path, http: str, *, or_any: bool) -> None:
    await refuse_a_second(MqttBus(f"{CLIENT_ID}-look", settings), cluster.identity)
    quiet = MqttBus(f"{CLIENT_ID}-quiet", settings)
    manager = GlobalManager(MqttBus(CLIENT_ID, settings), cluster, cluster, quiet=quiet)
    figures, page = manager.figures, Page(manager.feed, page_token(store, http))

    def routes(application: web.Application) -> None:
        figures.add_to(application)
        page.add_to(application)

    registered = registry("gm", figures.collect)
    shown = HttpServer(http, health=figures.health(), registry=registered, routes=routes, or_any=or_any)
    async with shown as server:
        manager.http = server.url
        await manager.run()


def _parser() -> argparse.ArgumentParser:
    home = Path(os.environ.get("HALIMEDE_HOME") or "~/.local/state/halimede").expanduser()
    parser = argparse.ArgumentParser(
        prog="python -m services.gm",
        description="The global manager: stores what users apply, sends each node its part, sums up how it stands.",
        epilog="Users and nodes reach it over the broker; its only port is for looking. While the "
        "broker is away it keeps trying. "
        "Exit codes: 0 after SIGTERM or SIGINT, 2 for a mistake in the options or a store that cannot be used.",
    )
    parser.add_argument(
        "--store",
        type=Path,
        default=home / "gm",
        metavar="DIR",
        help="folder of its database, for one global manager at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--broker",
        default=os.environ.get("HALIMEDE_BROKER") or "mqtt://127.0.0.1:1883",
        metavar="URL",
        help="host, host:port, mqtt://[user:password@]host[:port] or mqtts://... "
        "(default: $HALIMEDE_BROKER, else mqtt://127.0.0.1:1883)",
    )
    parser.add_argument(
        "--credentials",
        default=os.environ.get("HALIMEDE_CREDENTIALS", ""),
        metavar="DIR",
        help="folder with what it shows the broker: password, or ca.crt, tls.crt and tls.key "
        "(default: $HALIMEDE_CREDENTIALS, else none)",
    )
    parser.add_argument(
        "--http",
        default=os.environ.get("HALIMEDE_HTTP") or DEFAULT_BIND,
        metavar="HOST:PORT",
        help="where its web page, health and metrics are; beside loopback the page asks for the token in the file "
        "page-token of the store; off: nowhere (default: $HALIMEDE_HTTP, else %(default)s: any free port, see its log)",
    )
    parser.add_argument("--http-or-any", action="store_true", help="with --http: if that port is taken, use any other")
    parser.add_argument("--version", action="version", version=f"halimede {__version__}")
    return parser


if __name__ == "__main__":
    os.umask(0o077)  # stores and logs hold what no other user of this machine should read
    sys.exit(main())
