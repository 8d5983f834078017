"""Validated settings of a camera process, from options or the environment. Opens only address files.

An address with a password is not accepted on a command line, which every user of a machine can read: it comes from the
environment or from a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from halimede import codec
from halimede.bus.subscriber_return import FRAME_RETURN_S
from halimede.cameras.address import CameraAddress, SourceKind, has_password, parse
from halimede.environment import flag, number
from halimede.errors import InvalidFieldError, hide_secrets
from halimede.names import check_label

#: most bytes of a file with one or several addresses
MOST_BYTES = 256 * 1024
MOST_CAMERAS = 64
#: most bytes of a picture, which must fit into a message
LARGEST = codec.MAX_BYTES - 1024
COMMAND_LINE = "others can read command lines: put an address with a user into a file, write @FILE, or use SOURCE_URL"
NOWHERE = CameraAddress(SourceKind.FILE, "", "")


@dataclass(frozen=True, slots=True)
class CameraSettings:
    """One camera. Times are seconds.

    ``fps``: most frames a second; 0: all. ``pace`` is for files: -1 their own speed, 0 as fast as they are accepted,
    else frames a second. ``plays``: how often a file is played; 0: without end. ``start_ns``: when its first frame is
    due; 0: at once. ``stall_s``: seconds without a frame after which a source counts as stalled, and is opened again.
    ``window``: pictures in progress at a time. ``allowed``: its allowed addresses in addition to public ones, in the
    form of HALIMEDE_FETCH_ALLOW; None: any, because the machine's operator configured it.
    """

    name: str
    address: CameraAddress
    fps: float = 0.0
    pace: float = -1.0
    start_ns: int = 0
    plays: int = 1
    max_width: int = 0
    max_bytes: int = LARGEST
    quality: int = 85
    open_s: float = 10.0
    stall_s: float = 5.0
    window: int = 2
    node: str = ""
    allowed: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Settings of one camera process. ``broker`` is None if it is not configured.

    ``return_s``: seconds for which frames wait until a worker reads their camera again.
    """

    namespace: str
    cameras: Sequence[CameraSettings]
    broker: str
    credentials: str = ""
    qos: int = 1
    bare: bool = False
    http: str = "off"
    return_s: float = FRAME_RETURN_S


def read(environ: Mapping[str, str], named: Sequence[str] = (), file: str = "") -> ProcessSettings:
    """Read the environment; ``named`` are NAME=URL or NAME=@FILE, ``file`` a JSON object of them.

    Raises InvalidFieldError.
    """
    namespace = check_label("NAMESPACE", environ.get("NAMESPACE") or "default")
    addresses = _read_options(named, environ) | (_read_file(file, environ) if file else {})
    if not addresses:
        addresses = _environment(environ)
    if len(addresses) > MOST_CAMERAS:
        raise InvalidFieldError("--camera", len(addresses), f"give one process at most {MOST_CAMERAS} cameras")
    common = of_environment(environ)
    return ProcessSettings(
        namespace=namespace,
        cameras=[replace(common, name=name, address=address) for name, address in addresses.items()],
        broker=environ.get("HALIMEDE_BROKER", ""),
        credentials=environ.get("HALIMEDE_CREDENTIALS", ""),
        qos=int(number(environ, "CAMERA_QOS", 1, least=0, most=1)),
        bare=flag(environ, "CAMERA_BARE"),
        http=environ.get("HALIMEDE_HTTP") or "off",
        return_s=number(environ, "CAMERA_RETURN_S", FRAME_RETURN_S, least=0, most=3600),
    )


def of_environment(environ: Mapping[str, str]) -> CameraSettings:
    """Return the common settings of all cameras of a process. Raises InvalidFieldError."""
    return CameraSettings(
        name="",
        address=NOWHERE,
        fps=number(environ, "CAMERA_FPS", 30, least=0, most=1000),
        start_ns=round(number(environ, "CAMERA_START", 0, least=0, most=1e11) * 1e9),
        plays=0 if flag(environ, "SOURCE_LOOP") else 1,
        max_width=int(number(environ, "CAMERA_MAX_WIDTH", 0, least=0, most=16_384)),
        max_bytes=int(number(environ, "CAMERA_MAX_BYTES", LARGEST, least=1024, most=LARGEST)),
        quality=int(number(environ, "CAMERA_QUALITY", 85, least=1, most=100)),
        open_s=number(environ, "CAMERA_OPEN_S", 10, least=0.1, most=600),
        stall_s=number(environ, "CAMERA_STALL_S", 5, least=0.1, most=600),
        node=environ.get("NODE_NAME", ""),
    )


def login(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return user and password for sources whose addresses have none. Raises InvalidFieldError."""
    password = environ.get("SOURCE_PASSWORD", "")
    if named := environ.get("SOURCE_PASSWORD_FILE"):
        password = content("SOURCE_PASSWORD_FILE", named)
    return environ.get("SOURCE_USERNAME", ""), password


def parse_option(option: str, text: str, environ: Mapping[str, str]) -> CameraAddress:
    """Parse an address of a command line: the address itself, or @FILE with one. Raises InvalidFieldError."""
    username, password = login(environ)
    if text.startswith("@"):
        return parse(content(option, text[1:]), field_=option, username=username, password=password)
    if has_password(text):
        raise InvalidFieldError(option, hide_secrets(text), COMMAND_LINE)
    return parse(text, field_=option, username=username, password=password)


def content(option: str, path: str) -> str:
    """Return the content of a small file. Raises InvalidFieldError."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) <= MOST_BYTES:
            return data.decode().strip()
        problem = "it is too large for that"
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or "it is not text"
    raise InvalidFieldError(option, path, f"make it a small text file that can be read: {problem}")


def _read_options(named: Sequence[str], environ: Mapping[str, str]) -> dict[str, CameraAddress]:
    addresses: dict[str, CameraAddress] = {}
    for option in named:
        name, equals, text = option.partition("=")
        if not equals:
            raise InvalidFieldError("--camera", hide_secrets(option), "write NAME=URL or NAME=@FILE")
        if check_label("--camera", name) in addresses:
            raise InvalidFieldError("--camera", name, "give each camera a different name")
        addresses[name] = parse_option(f"--camera {name}", text, environ)
    return addresses


def _read_file(path: str, environ: Mapping[str, str]) -> dict[str, CameraAddress]:
    try:
        urls = msgspec.json.decode(content("--cameras", path), type=dict[str, str])
    except msgspec.DecodeError as error:
        raise InvalidFieldError("--cameras", path, f"write a JSON object of names and URLs: {error}") from None
    username, password = login(environ)
    return {
        check_label("--cameras", name): parse(url, field_=f"--cameras {name}", username=username, password=password)
        for name, url in urls.items()
    }


def _environment(environ: Mapping[str, str]) -> dict[str, CameraAddress]:
    name, url = environ.get("CAMERA", ""), environ.get("SOURCE_URL", "")
    if file := environ.get("SOURCE_URL_FILE"):
        url = content("SOURCE_URL_FILE", file)
    if not name:
        raise InvalidFieldError("CAMERA", name, "set the camera: --camera NAME=URL, or CAMERA and SOURCE_URL")
    username, password = login(environ)
    return {check_label("CAMERA", name): parse(url, username=username, password=password)}
