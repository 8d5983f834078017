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

from halimede import __version__
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import HalimedeError
from halimede.log import configure
from services.gm.alone import refuse_a_second
from services.gm.app import GlobalManager
from services.gm.cluster.local import LocalCluster

CLIENT_ID = "halimede-gm"
USERS_MISTAKE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    options = _parser().parse_args(arguments)
    configure(service="gm")
    try:
        settings = MqttSettings.from_url(options.broker, variable="--broker")
        asyncio.run(_run(options.store, settings))
    except HalimedeError as error:
        sys.stderr.write(f"halimede gm: {error}\n")
        return USERS_MISTAKE
    return 0


async def _run(store: Path, settings: MqttSettings) -> None:
    async with LocalCluster(store / "store.db") as cluster:
        work = asyncio.create_task(_work(cluster, settings), name="gm")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await work


async def _work(cluster: LocalCluster, settings: MqttSettings) -> None:
    await refuse_a_second(MqttBus(f"{CLIENT_ID}-look", settings), cluster.identity)
    await GlobalManager(MqttBus(CLIENT_ID, settings), cluster, cluster).run()


def _parser() -> argparse.ArgumentParser:
    home = Path(os.environ.get("HALIMEDE_HOME") or "~/.local/state/halimede").expanduser()
    parser = argparse.ArgumentParser(
        prog="python -m services.gm",
        description="The global manager: stores what users apply, sends each node its part, sums up how it stands.",
        epilog="It has no port: users and nodes reach it over the broker. While the broker is away it keeps trying. "
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
    parser.add_argument("--version", action="version", version=f"halimede {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
