"""``halimede camera``: the command line of a process that publishes frames of cameras which speak no MQTT."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from halimede import log as logging
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cameras import camera_group
from halimede.cameras.settings import ProcessSettings, read
from halimede.cli.broker_address import find
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.system.runtime import stop_on_signal

#: exit code of a user's mistake: a supervisor need not restart the process before a setting changes
MISTAKE = 2

#: the end of the help: examples, sources, environment variables and exit codes
ENVIRONMENT = """\
Examples:
  halimede camera --camera door=rtsp://10.0.0.7/stream1 --fps 10
  halimede camera --camera desk=/dev/video0 --max-width 640
  halimede camera --camera door=@/etc/halimede/door.url

sources:
  rtsp://host/path, rtsps://...     over TCP
  http://host/path, https://...     MJPEG (multipart)
  /dev/video0                       USB and other V4L2 devices
  /path/of/a/video.mp4              a video file at its own speed
  /path/of/a/folder                 JPEG and PNG files in the order of their names

environment (options take precedence; see docs/cameras.md):
  CAMERA, SOURCE_URL or SOURCE_URL_FILE            one camera without --camera
  SOURCE_USERNAME, SOURCE_PASSWORD or SOURCE_PASSWORD_FILE   for addresses without a user
  CAMERA_FPS, CAMERA_MAX_WIDTH, CAMERA_MAX_BYTES, CAMERA_QUALITY, CAMERA_QOS, CAMERA_BARE, SOURCE_LOOP
  CAMERA_OPEN_S, CAMERA_STALL_S                    seconds to open it, and without a frame until it is stalled
  CAMERA_RETURN_S                                  seconds for which frames wait for a worker's return (default 30)
  CAMERA_START                                     when the first frame of a file is due (seconds since 1970)
  NAMESPACE, NODE_NAME, HALIMEDE_BROKER, HALIMEDE_CREDENTIALS, HALIMEDE_HTTP

exit code: 0 after SIGTERM or SIGINT, or when all files have been played; 1 when it cannot run, or when a frame had no
subscriber, also after SIGTERM or SIGINT; 2 after a mistake that you can correct (see the last line)
"""
#: the environment variable that each option sets, by the option's name
VARIABLES = {
    "fps": "CAMERA_FPS",
    "max_width": "CAMERA_MAX_WIDTH",
    "quality": "CAMERA_QUALITY",
    "qos": "CAMERA_QOS",
    "stall": "CAMERA_STALL_S",
    "return_timeout": "CAMERA_RETURN_S",
    "start": "CAMERA_START",
    "namespace": "NAMESPACE",
    "broker": "HALIMEDE_BROKER",
    "credentials": "HALIMEDE_CREDENTIALS",
    "http": "HALIMEDE_HTTP",
}


def parser() -> argparse.ArgumentParser:
    """Return the definition of the command line, from which the documents are made as well."""
    command = argparse.ArgumentParser(
        prog="halimede camera",
        description="Publish the frames of cameras that do not support MQTT.",
        epilog=ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("--camera", action="append", default=[], metavar="NAME=URL", help="a camera; NAME=@FILE: its URL is in a file")
    add("--cameras", default="", metavar="FILE", help="a JSON object of names and URLs")
    add("--fps", help="maximum of frames a second; 0: all (default 30)")
    add("--max-width", help="scale wider pictures down to this width in pixels; 0: never (default)")
    add("--quality", help="JPEG quality of pictures that must be encoded: 1 to 100 (default 85)")
    add("--qos", help="1 (default): the broker acknowledges each frame; 0: it does not")
    add("--bare", action="store_true", help="publish plain JPEG, without id, number and time")
    add("--loop", action="store_true", help="repeat files")
    add("--start", help="when the first frame of files is due, in seconds since 1970")
    add("--stall", help="seconds without a frame after which a source counts as stalled (default 5)")
    add(
        "--return-timeout",
        metavar="SECONDS",
        help="if no worker reads a camera any more: how long frames of a file wait for one, while frames of a live "
        "source are skipped for newer ones, before they count as without subscriber; not with --qos 0 (default 30)",
    )
    add("--namespace", help="the namespace (default: default)")
    add(
        "--broker",
        help="host:port, mqtt://host:port or mqtts://host:port; several in turn: a:1883,b:1883 (default: the system "
        "running here)",
    )
    add("--credentials", help="folder of credentials, or with such a folder for each camera")
    add("--http", help="host:port of health and metrics; off: none (default)")
    return command


def environment(options: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the values of options in place of their variables."""
    values = {variable: getattr(options, name) for name, variable in VARIABLES.items()}
    flags = {"CAMERA_BARE": options.bare, "SOURCE_LOOP": options.loop}
    return {
        **environ,
        **{variable: value for variable, value in values.items() if value is not None},
        **{variable: "1" for variable, is_set in flags.items() if is_set},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cameras until they are stopped; return the exit code that ``ENVIRONMENT`` describes.

    ``arguments``: of the command line; None: those of this process.
    """
    return run(parser().parse_args(arguments), os.environ)


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Run cameras by options of ``parser``; return the exit code. Errors are printed to stderr."""
    try:
        settings = read(environment(options, environ), options.camera, options.cameras)
        brokers = {camera.name: broker_of(settings, camera.name, environ) for camera in settings.cameras}
        named = settings.cameras[0].name if len(settings.cameras) == 1 else "cameras"
        logging.configure(service=f"{settings.namespace}/{named}")
        return asyncio.run(_run(settings, brokers))
    except InvalidFieldError as error:
        print(f"halimede camera: {error}", file=sys.stderr)
        return MISTAKE
    except HalimedeError as error:
        print(f"halimede camera: {error}", file=sys.stderr)
        return 1


def broker_of(settings: ProcessSettings, camera: str, environ: Mapping[str, str]) -> MqttSettings:
    """Return the broker's address and credentials for a camera. Raises HalimedeError if no broker is found.

    The credentials are those in a folder of the camera's name, if there is one. Without a configured broker it is that
    of the system on this machine.
    """
    credentials = settings.credentials
    if credentials and (own := Path(credentials).expanduser() / camera).is_dir():
        credentials = str(own)
    if settings.broker:
        return MqttSettings.from_url(settings.broker, credentials=credentials)
    return find(environment={**environ, "HALIMEDE_CREDENTIALS": ""}, credentials=credentials).settings


async def _run(settings: ProcessSettings, brokers: Mapping[str, MqttSettings]) -> int:
    """Run cameras until a signal, or the end of all files; return 1 if frames had no subscriber, else 0.

    Frames without a subscriber are printed to stderr. Raises HalimedeError.
    """
    stop = stop_on_signal()
    unheard = await camera_group.run(settings, lambda client_id, camera: MqttBus(client_id, brokers[camera]), stop)
    for camera, frames in unheard.items():
        print(
            f"halimede camera: {frames} frames of camera {camera} had no subscriber: no edge worker of namespace "
            f"{settings.namespace} read it (see `halimede get ji -A`, `halimede get mei -A`)",
            file=sys.stderr,
        )
    return 1 if unheard else 0
