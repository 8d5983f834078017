"""Settings of a server (``halimede serve``), from its command line and its environment."""

from __future__ import annotations

import argparse
import ipaddress
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from halimede import __version__
from halimede.api.base import convert
from halimede.api.model import ModelSpec
from halimede.environment import number
from halimede.errors import InvalidFieldError
from halimede.messages.control import WorkerRole
from halimede.models.archive import format_at
from halimede.models.desired_state import Desired, DesiredModel, read
from halimede.names import check_label, check_name
from halimede.observe import parse_bind
from halimede.serving.server_access import ServerAccess, read_access

#: address of REST, health and metrics, unless ``--http`` names another
DEFAULT_HTTP = "127.0.0.1:8080"
#: bytes
MEGABYTE = 1024 * 1024
#: names of models
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
#: the end of ``--help``: examples, variables of the environment and exit codes
ENVIRONMENT = """\
Examples:
  halimede serve digits.onnx
  halimede serve small=a.onnx big=b.onnx --grpc 127.0.0.1:8081
  halimede serve emotion.tflite
  halimede serve --file models.json --http :8080

environment:
  GRACE_S                      seconds to answer what is under way after SIGTERM (default 10)
  SERVE_TOKEN_FILE, SERVE_TLS_CERT, SERVE_TLS_KEY
                               what --token-file, --tls-cert and --tls-key are where they are not given
  SERVE_TOKEN                  the token itself, where no file has it
  MODEL_TIMEOUT_S              seconds after which one call of a model counts as stuck (default 60)
  HALIMEDE_BROKER, NAMESPACE, SERVICE_NAME, SERVICE_UID, WORKER_NAME, NODE_NAME, LC_PERIOD
                               all set: it reports to the local controller of its node, as workers do

exit code: 0 after SIGTERM or SIGINT, 2 after a mistake that you can correct (see the last line)
"""


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """The server's identity as a worker of a node, for reports to the node's local controller.

    Attributes:
        broker: host:port of the broker between them.
        credentials: folder with the server's credentials; empty: none.
        namespace: that of its InferenceModel.
        service: the name of its InferenceModel.
        uid: the uid of its InferenceModel; empty if unknown.
        worker: its own name.
        node: its node.
        period_s: seconds between two reports.
        role: what it is among workers.

    """

    broker: str
    credentials: str
    namespace: str
    service: str
    uid: str
    worker: str
    node: str
    period_s: float
    role: WorkerRole = "serve"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of one server.

    Attributes:
        desired: the models to serve, at first.
        file: the file with the desired models, to follow while it changes; None: they are on the command line.
        strict: with a file: the server ends if a model is refused and none answers in its place.
        http: host:port of REST, health and metrics.
        grpc: host:port of gRPC, or ``off``.
        most: samples in one call of a model.
        threads: of one call; 0: one for each core.
        instances: calls of one model at a time.
        max_request: bytes of a request.
        estimator: a user's own estimator as ``module:class``; empty: none.
        grace_s: seconds to answer open requests at the end.
        model_timeout_s: seconds after which one call of a model counts as stuck, and the process ends.
        reports: the identity for reports; None: there is no local controller.
        access: token and TLS.

    """

    desired: Desired = field(default_factory=Desired)
    file: Path | None = None
    strict: bool = False
    http: str = DEFAULT_HTTP
    grpc: str = "off"
    most: int = 64
    threads: int = 1
    instances: int = 1
    max_request: int = 64 * MEGABYTE
    estimator: str = ""
    grace_s: float = 10.0
    model_timeout_s: float = 60.0
    reports: ReportSettings | None = None
    access: ServerAccess = field(default_factory=ServerAccess)


def parser() -> argparse.ArgumentParser:
    """Return the command line's definition."""
    command = argparse.ArgumentParser(
        prog="halimede serve",
        description="Answer requests by the Open Inference Protocol (KServe V2), over REST and gRPC.",
        epilog=ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    models_help = "a file (.onnx, .tflite) or a folder with one; its stem is its name"
    add("models", nargs="*", metavar="[NAME=]MODEL", help=models_help)
    add("--file", type=Path, help="take the models from this file, and follow it while it changes")
    add("--strict", action="store_true", help="with --file: end with code 1 when a model is refused and none answers")
    add("--spec", type=Path, metavar="FILE", help="JSON of a Model's spec (preprocess, labels, ...) for MODEL")
    add("--estimator", default="", metavar="MODULE:CLASS", help="your own estimator, in place of a model runtime")
    add("--http", default=DEFAULT_HTTP, metavar="HOST:PORT", help=f"REST, health, metrics (default {DEFAULT_HTTP})")
    add("--grpc", default="off", metavar="HOST:PORT", help="gRPC (default off; port 0: any free one)")
    add("--max-batch", type=_count(1, 65_536), default=64, metavar="ROWS", help="rows of one call (default 64)")
    add("--threads", type=_count(0, 1024), default=1, help="of one call; 0: one a core (default 1)")
    add("--instances", type=_count(1, 64), default=1, metavar="N", help="calls of one model at a time (default 1)")
    add("--max-request", type=_count(1, 65_536), default=64, metavar="MB", help="size of a request (default 64)")
    add("--token-file", metavar="FILE", help="clients show this token (Authorization: Bearer ...); health is open")
    add("--tls-cert", metavar="FILE", help="HTTPS, and gRPC over TLS, with this certificate chain (PEM)")
    add("--tls-key", metavar="FILE", help="its key (PEM)")
    add("--version", action="version", version=__version__)
    return command


def read_settings(arguments: Sequence[str], environ: Mapping[str, str]) -> ServerSettings:
    """Return the settings on a command line and in the environment.

    Raises InvalidFieldError, and SystemExit for what argparse refuses, for ``--help`` and ``--version``.
    """
    options = parser().parse_args(arguments)
    if bool(options.models) == bool(options.file):
        fix = "give models, or --file with the file that names them"
        raise InvalidFieldError("MODEL", " ".join(options.models), fix)
    if parse_bind(options.http, "--http") is None:
        raise InvalidFieldError("--http", options.http, "it is where the server's health is: write host:port")
    parse_bind(options.grpc, "--grpc")
    if options.file and (options.spec or options.estimator):
        raise InvalidFieldError("--file", str(options.file), "its models bring their own specs: leave out --spec")
    return ServerSettings(
        desired=read(options.file, "--file") or Desired() if options.file else _state_of(options.models, options.spec),
        file=options.file,
        strict=options.strict,
        http=options.http,
        grpc=options.grpc,
        most=options.max_batch,
        threads=options.threads,
        instances=options.instances,
        max_request=options.max_request * MEGABYTE,
        estimator=options.estimator,
        grace_s=seconds(environ, "GRACE_S", 10.0),
        model_timeout_s=seconds(environ, "MODEL_TIMEOUT_S", 60.0),
        reports=_reports(environ),
        access=read_access(
            options.token_file or environ.get("SERVE_TOKEN_FILE", ""),
            options.tls_cert or environ.get("SERVE_TLS_CERT", ""),
            options.tls_key or environ.get("SERVE_TLS_KEY", ""),
            environ.get("SERVE_TOKEN", ""),
        ),
    )


def reachable_host(host: str, broker: str) -> str:
    """Return the host at which others reach a server that listens at ``host``, in brackets if it is of IPv6.

    If it listens at all addresses, the result is the address that it has towards the ``broker`` (host:port or a URL),
    or the name of this machine if that cannot be found out. Blocks while the broker's name is looked up.
    """
    if host and not _is_any(host):
        return f"[{host}]" if ":" in host else host
    match = re.fullmatch(r"(?:\w+://)?(?:[^@/]*@)?(\[[^\]]+\]|[^:/]+)(?::(\d+))?/?.*", broker)
    try:
        # 192.0.2.1 is no machine's address: the route to it is that to most machines
        where = (match[1].strip("[]"), int(match[2] or 1883)) if match else ("192.0.2.1", 9)
        family, _, _, _, address = socket.getaddrinfo(*where, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            own: str = probe.getsockname()[0]
    except OSError:
        return socket.gethostname()
    return f"[{own}]" if ":" in own else own


def _is_any(host: str) -> bool:
    """Whether a host stands for all addresses, such as 0.0.0.0."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _state_of(models: Sequence[str], spec_file: Path | None) -> Desired:
    """Return the models on the command line, ``[NAME=]MODEL``, as a desired state. Raises InvalidFieldError."""
    spec = {}
    if spec_file:
        try:
            spec = msgspec.json.decode(spec_file.read_bytes(), type=dict)
        except (OSError, msgspec.DecodeError) as error:
            fix = f"give a file with a Model's spec as JSON: {error}"
            raise InvalidFieldError("--spec", str(spec_file), fix) from error
        convert({"url": "/", "format": "onnx", **spec}, ModelSpec, "--spec")
    models_by_name: dict[str, DesiredModel] = {}
    for text in models:
        prefix, equals, file = text.partition("=")
        path = Path(file if equals else text).absolute()
        name = prefix if equals else path.stem
        if not NAME.fullmatch(name):
            raise InvalidFieldError("MODEL", text, "put NAME= before it: letters, digits, '.', '_' and '-'")
        if not path.exists():
            raise InvalidFieldError("MODEL", text, "there is no such file")
        if name in models_by_name:
            raise InvalidFieldError("MODEL", text, f"there are two models {name}: put NAME= before one")
        models_by_name[name] = DesiredModel(name=name, path=str(path), spec={"format": format_at(path).name, **spec})
    return Desired(models=list(models_by_name.values()))


def _count(least: int, most: int) -> Callable[[str], int]:
    """Return a type for argparse: a whole number from ``least`` to ``most``."""

    def read_count(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r}: write a number from {least} to {most}")
        return int(text)

    return read_count


def seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    """Return the seconds (0 to a day) in an environment variable; ``default`` if it is missing or empty.

    Raises InvalidFieldError for other values.
    """
    return number(environ, name, default, least=0, most=86_400, kind="number of seconds")


def _reports(environ: Mapping[str, str]) -> ReportSettings | None:
    """Return the identity for reports; None unless the environment names broker, service, worker and node.

    Raises InvalidFieldError.
    """
    names = {name: environ.get(name, "") for name in ("HALIMEDE_BROKER", "SERVICE_NAME", "WORKER_NAME", "NODE_NAME")}
    if not all(names.values()):
        return None
    return ReportSettings(
        broker=names["HALIMEDE_BROKER"],
        credentials=environ.get("HALIMEDE_CREDENTIALS", ""),
        namespace=check_label("NAMESPACE", environ.get("NAMESPACE") or "default"),
        service=check_name("SERVICE_NAME", names["SERVICE_NAME"]),
        uid=environ.get("SERVICE_UID", "")[:64],
        worker=check_name("WORKER_NAME", names["WORKER_NAME"]),
        node=check_name("NODE_NAME", names["NODE_NAME"]),
        period_s=seconds(environ, "LC_PERIOD", 1.0) or 1.0,
    )
