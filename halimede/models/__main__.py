"""``python -m halimede.models``: bring one model to this machine, and end. Init containers of worker pods run it.

Exit code: 0 when it is there, 1 after a failure that may pass by itself, 2 after one that somebody has to mend.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from halimede import log as logging
from halimede.errors import InvalidFieldError
from halimede.models.address_policy import VARIABLE, AddressPolicy
from halimede.models.errors import FetchError
from halimede.models.init_container import RequestedModel, bring, check

TEMPORARY, MISTAKE = 1, 2
#: as shells say that SIGTERM ended a process
TERMINATED = 128 + signal.SIGTERM
#: what Kubernetes shows of a container that has ended
TERMINATION_LOG = Path("/dev/termination-log")
#: of its text
MOST_BYTES = 4096
MOST_PATIENCE_S = 86_400.0
EPILOG = """\
environment for s3:// (the names that Sedna's Secrets have):
  S3_ENDPOINT_URL, S3_USE_HTTPS     host:port or URL of the store; 1 (default) or 0 for one without a scheme
  ACCESS_KEY_ID, SECRET_ACCESS_KEY  neither: a public bucket
  S3_REGION                         default us-east-1

exit code: 0 it is there, 1 a failure that may pass by itself (after --patience), 2 one that you can mend

  python -m halimede.models --url https://models.example/small.onnx --cache ~/models --out /downloads/small.onnx
  python -m halimede.models --url /models/small.onnx --check
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line's definition."""
    made = argparse.ArgumentParser(
        prog="python -m halimede.models",
        description="Bring one model to this machine through its cache, verified, as a file that workers can read.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--url", required=True, help="http(s)://, s3://bucket/key, file:// or an absolute path")
    made.add_argument("--sha256", default="", metavar="DIGEST", help="64 hexadecimal digits; without: not verified")
    made.add_argument("--cache", metavar="DIR", help="the node's model cache")
    made.add_argument("--out", metavar="PATH", help="where the model shall be")
    made.add_argument(
        "--allow",
        default=os.environ.get(VARIABLE, ""),
        metavar="WHAT",
        help="addresses that may be connected to beside public ones: loopback, private, link-local, networks such as "
        f"10.0.0.0/8, names of hosts, with commas (default: ${VARIABLE}, else none)",
    )
    made.add_argument("--unpack", action="store_true", help="of an archive (tar, tar.gz, zip), --out is its folder")
    made.add_argument("--check", action="store_true", help="bring nothing: see that a file of this machine is right")
    made.add_argument(
        "--patience",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="how long failures that may pass are tried again (default: %(default)g)",
    )
    return made


def main(arguments: Sequence[str] | None = None, termination_log: Path = TERMINATION_LOG) -> int:
    """Run and return the exit code."""
    given = parser().parse_args(arguments)
    logging.configure(level="WARNING")
    try:
        wanted = _requested(given)
        if given.check:
            write_line(f"{asyncio.run(check(wanted))} is there")
        else:
            asyncio.run(bring(wanted, _folder("--cache", given.cache), _folder("--out", given.out), write_line))
    except (InvalidFieldError, FetchError) as error:
        text = f"{error.reason}: {error}" if isinstance(error, FetchError) else str(error)
        write_line(text)
        # outside of a container there is none, and none is made
        with contextlib.suppress(OSError), termination_log.open("r+b") as file:
            file.truncate()
            file.write(text.encode()[:MOST_BYTES])
        return TEMPORARY if isinstance(error, FetchError) and error.temporary else MISTAKE
    return 0


def write_line(text: str) -> None:
    """Write a line for whoever looks on."""
    print(f"halimede.models: {text}", file=sys.stderr, flush=True)


def _requested(given: argparse.Namespace) -> RequestedModel:
    if not 0 <= given.patience <= MOST_PATIENCE_S:
        raise InvalidFieldError("--patience", given.patience, f"write seconds from 0 to {MOST_PATIENCE_S:.0f}")
    if not given.check and not (given.cache and given.out):
        raise InvalidFieldError(
            "--out", given.out or "", "give --cache and --out, or --check for a file of the machine"
        )
    return RequestedModel(
        given.url, given.sha256, given.patience, policy=AddressPolicy.parse(given.allow, "--allow"), unpack=given.unpack
    )


def _folder(option: str, text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise InvalidFieldError(option, text, "there is no such user: write a path") from None


if __name__ == "__main__":
    # as the first process of a container it would be deaf to SIGTERM; the next one goes on with what has come
    signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))
    os.umask(0o077)  # the cache is its owner's alone, as the local controller makes it
    sys.exit(main())
