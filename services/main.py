"""``halimede up``: the command line of the whole system on one machine. ``services.system`` runs it until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from halimede import log
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.home_folder import DEFAULT_HOME
from halimede.models.address_policy import VARIABLE, AddressPolicy
from services.broker import find_mosquitto
from services.site import Security
from services.system import DEFAULT_NODES, SystemLayout, parse_nodes, run

#: exit codes: the system cannot run, and the user must change something
FAILED, USER_ERROR = 1, 2
#: default of ``--fetch-allow``: who runs the whole system on one machine keeps models on it, or on its network
DEFAULT_ALLOW = "loopback,private"
#: the end of the help
EXAMPLES = """\
Examples:
  halimede up
  halimede up --nodes edge0,edge1,edge2,cloud0
  halimede up --home build/system --port 1884 --tls

exit code: 0 after Ctrl-C; 1 when it cannot run; 2 after a mistake that you can correct (see the last line)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the system until SIGINT or SIGTERM; return the exit code (0, FAILED or USER_ERROR).

    Errors are printed to stderr. ``arguments``: of the command line; None: those of this process.
    """
    try:
        layout = _layout(arguments)
        find_mosquitto()
    except HalimedeError as error:
        return _fail(error, USER_ERROR)
    log.configure("WARNING")  # the services write their own logs to files
    try:
        asyncio.run(run(layout, _print))
    except HalimedeError as error:
        return _fail(error, USER_ERROR if isinstance(error, InvalidFieldError) else FAILED)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the definition of the command line, from which the documents are made as well."""
    command = argparse.ArgumentParser(
        prog="halimede up",
        description="Run a broker, the global manager and one local controller for each node, until Ctrl-C.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--nodes",
        default=",".join(DEFAULT_NODES),
        metavar="NAMES",
        help="node names, separated by commas; edge* and cloud* get the label of that role (default: %(default)s)",
    )
    command.add_argument(
        "--home",
        default=os.environ.get("HALIMEDE_HOME") or DEFAULT_HOME,
        metavar="FOLDER",
        help="folder for all files of the system (default: HALIMEDE_HOME, else %(default)s)",
    )
    command.add_argument("--port", type=int, metavar="N", help="the broker's port (default: first free from 1883)")
    command.add_argument(
        "--fetch-allow",
        default=os.environ.get(VARIABLE, DEFAULT_ALLOW),
        metavar="WHAT",
        help="private addresses from which nodes may download models: loopback, private, link-local, networks, names "
        f"of hosts, separated by commas; '': none (default: ${VARIABLE}, else {DEFAULT_ALLOW})",
    )
    safety = command.add_mutually_exclusive_group()
    safety.add_argument(
        "--tls", dest="security", action="store_const", const=Security.TLS,
        help="authenticate the broker and its clients by certificates (default: passwords)",
    )  # fmt: skip
    safety.add_argument(
        "--insecure", dest="security", action="store_const", const=Security.INSECURE,
        help="no passwords and no access rules: any client of the port has all rights",
    )  # fmt: skip
    command.set_defaults(security=Security.PASSWORDS)
    return command


def _layout(arguments: Sequence[str] | None) -> SystemLayout:
    """Read the command line. Raises InvalidFieldError; argparse exits at its own errors."""
    options = parser().parse_args(arguments)
    if options.port is not None and not 0 < options.port < 65536:
        raise InvalidFieldError("--port", options.port, "use a port between 1 and 65535")
    home = Path(options.home).expanduser().absolute()
    AddressPolicy.parse(options.fetch_allow, "--fetch-allow")  # check now, not when the nodes start
    return SystemLayout(home, parse_nodes(options.nodes), options.port, options.security, options.fetch_allow)


def _print(text: str) -> None:
    """Print a text and flush. An output that is closed (``| head``) raises nothing: the system must stop in order."""
    try:
        print(text, flush=True)
    except OSError:
        # otherwise the rest of the buffer would fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: HalimedeError, code: int) -> int:
    """Print an error to stderr; return ``code``."""
    print(f"Error: {error}", file=sys.stderr)
    return code
