"""Validated settings of a camera process, from options or the environment. Opens only files of addresses and passwords.

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
from halimede.cameras.address import CameraAddress, SourceKind, has_login, parse
from halimede.environment import is_enabled, number
from halimede.errors import InvalidFieldError, hide_secrets
from halimede.names import check_label

#: most bytes of a file with one or several addresses
MOST_BYTES = 256 * 1024
#: most cameras of one process
MOST_CAMERAS = 64
#: most bytes of a picture, which must fit into a message
MAX_PICTURE_BYTES = codec.MAX_BYTES - 1024
#: the correction of a login on a command line
COMMAND_LINE = "others can read command lines: put an address with a user into a file, write @FILE, or use SOURCE_URL"
#: the address of common settings, which are of no camera
NOWHERE = CameraAddress(SourceKind.FILE, "", "")


@dataclass(frozen=True, slots=True)
class CameraSettings:
    """The settings of one camera. Times are seconds.

    Attributes:
        name: its name, a label.
        address: its source.
        fps: most frames a second; 0: all.
        pace: of files: -1 their own speed, 0 as fast as they are accepted, else frames a second.
        start_ns: when the first frame of a file is due, in nanoseconds since 1970; 0: at once.
        plays: how often a file is played; 0: without end.
        max_width: most pixels of a picture's width, wider ones are scaled; 0: any.
        max_bytes: most bytes of a picture.
        quality: of JPEG pictures that are encoded here, 1 to 100.
        open_s: seconds until the first frame of a source.
        stall_s: seconds without a frame after which a source counts as stalled, and is opened again.
        window: pictures in progress at a time.
        node: the name of its node in the status; empty: none.
        allowed: its allowed addresses in addition to public ones, in the form of HALIMEDE_FETCH_ALLOW; None: any,
            because the machine's operator configured it.

    """

    name: str
    address: CameraAddress
    fps: float = 0.0
    pace: float = -1.0
    start_ns: int = 0
    plays: int = 1
    max_width: int = 0
    max_bytes: int = MAX_PICTURE_BYTES
    quality: int = 85
    open_s: float = 10.0
    stall_s: float = 5.0
    window: int = 2
    node: str = ""
    allowed: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The settings of one camera process.

    Attributes:
        namespace: of the frames' topics.
        cameras: at least one.
        broker: its address, empty if it is not configured.
        credentials: a folder, empty: none.
        qos: of frames, 0 or 1.
        bare: publish pictures without the fields of a frame.
        http: address for metrics and health, or ``off``.
        return_s: seconds for which frames wait until a worker reads their camera again.

    """

    namespace: str
    cameras: Sequence[CameraSettings]
    broker: str
    credentials: str = ""
    qos: int = 1
    bare: bool = False
    http: str = "off"
    return_s: float = FRAME_RETURN_S


def read(environ: Mapping[str, str], options: Sequence[str] = (), file: str = "") -> ProcessSettings:
    """Return the settings from the environment, the options and the file of cameras.

    ``options``: NAME=URL or NAME=@FILE; ``file``: the path of a JSON object of names and URLs, empty: none. Without
    both, the environment has the address. A camera in both has the file's address. Raises InvalidFieldError.
    """
    namespace = check_label("NAMESPACE", environ.get("NAMESPACE") or "default")
    addresses = _read_options(options, environ) | (_read_file(file, environ) if file else {})
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
        bare=is_enabled(environ, "CAMERA_BARE"),
        http=environ.get("HALIMEDE_HTTP") or "off",
        return_s=number(environ, "CAMERA_RETURN_S", FRAME_RETURN_S, least=0, most=3600),
    )


def of_environment(environ: Mapping[str, str]) -> CameraSettings:
    """Return the settings that all cameras of a process have in common. Raises InvalidFieldError."""
    return CameraSettings(
        name="",
        address=NOWHERE,
        fps=number(environ, "CAMERA_FPS", 30, least=0, most=1000),
        start_ns=round(number(environ, "CAMERA_START", 0, least=0, most=1e11) * 1e9),
        plays=0 if is_enabled(environ, "SOURCE_LOOP") else 1,
        max_width=int(number(environ, "CAMERA_MAX_WIDTH", 0, least=0, most=16_384)),
        max_bytes=int(number(environ, "CAMERA_MAX_BYTES", MAX_PICTURE_BYTES, least=1024, most=MAX_PICTURE_BYTES)),
        quality=int(number(environ, "CAMERA_QUALITY", 85, least=1, most=100)),
        open_s=number(environ, "CAMERA_OPEN_S", 10, least=0.1, most=600),
        stall_s=number(environ, "CAMERA_STALL_S", 5, least=0.1, most=600),
        node=environ.get("NODE_NAME", ""),
    )


def login(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return user and password for sources whose addresses have none. Raises InvalidFieldError."""
    password = environ.get("SOURCE_PASSWORD", "")
    if file := environ.get("SOURCE_PASSWORD_FILE"):
        password = content("SOURCE_PASSWORD_FILE", file)
    return environ.get("SOURCE_USERNAME", ""), password


def parse_option(option: str, text: str, environ: Mapping[str, str]) -> CameraAddress:
    """Return an address of a command line: the address itself, or @FILE with one. Raises InvalidFieldError.

    ``option``: what errors name.
    """
    username, password = login(environ)
    if text.startswith("@"):
        return parse(content(option, text[1:]), field_=option, username=username, password=password)
    if has_login(text):
        raise InvalidFieldError(option, hide_secrets(text), COMMAND_LINE)
    return parse(text, field_=option, username=username, password=password)


def content(option: str, path: str) -> str:
    """Return the text of a small file, without white space around it.

    Raises InvalidFieldError, which names ``option``.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) <= MOST_BYTES:
            return data.decode().strip()
        problem = "it is too large for that"
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or "it is not text"
    raise InvalidFieldError(option, path, f"make it a small text file that can be read: {problem}")


def _read_options(options: Sequence[str], environ: Mapping[str, str]) -> dict[str, CameraAddress]:
    """Return the addresses of options by camera. Raises InvalidFieldError."""
    addresses: dict[str, CameraAddress] = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals:
            raise InvalidFieldError("--camera", hide_secrets(option), "write NAME=URL or NAME=@FILE")
        if check_label("--camera", name) in addresses:
            raise InvalidFieldError("--camera", name, "give each camera a different name")
        addresses[name] = parse_option(f"--camera {name}", text, environ)
    return addresses


def _read_file(path: str, environ: Mapping[str, str]) -> dict[str, CameraAddress]:
    """Return the addresses of a file by camera. Raises InvalidFieldError."""
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
    """Return the address in the environment by its camera. Raises InvalidFieldError."""
    name, url = environ.get("CAMERA", ""), environ.get("SOURCE_URL", "")
    if file := environ.get("SOURCE_URL_FILE"):
        url = content("SOURCE_URL_FILE", file)
    if not name:
        raise InvalidFieldError("CAMERA", name, "set the camera: --camera NAME=URL, or CAMERA and SOURCE_URL")
    username, password = login(environ)
    return {check_label("CAMERA", name): parse(url, username=username, password=password)}
