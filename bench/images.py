"""Container images: sizes, layers of their own, and the time to the first line of the log.

    python -m bench.images                                     prints a table and writes build/bench/images.json
    python -m bench.images --rounds 3 --name my.registry/gm    other images; a name ends with its target

Start time is from the engine's `run` to the first line of the log: Python and all imports are done by then. It has the
engine's own time in it, which the row `python` shows: the base image with a program that prints a line. Containers have
no network: each says that it cannot reach a broker, or serves. An update of halimede alone transfers the layer `wheel`.
"""

from __future__ import annotations

import argparse
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from bench import results
from examples.digits import train
from tests.dockerfile import FILE, tags

OUT = results.FOLDER / "images.json"
BASE = FILE.read_text().partition("\nFROM ")[2].split()[0]
BROKER = "mqtt://127.0.0.1:1"
MODELS = "/models"
WORKER = {"WORKER_NAME": "w", "NODE_NAME": "n", "SERVICE_NAME": "s", "MODEL_URL": f"{MODELS}/big.onnx"}
CLOUD = [word for name, value in {**WORKER, "HALIMEDE_BROKER": BROKER}.items() for word in ("-e", f"{name}={value}")]
LC = ["--node", "edge0", "--broker", BROKER]
#: by target: options of the engine, and arguments of the image
RUNS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "python": ((), ("python", "-c", "print()")),
    "gm": ((), ("--broker", BROKER)),
    "lc": ((), LC),
    "worker": (CLOUD, ("cloud",)),
    "worker-reid": (CLOUD, ("cloud",)),
    "serve": ((), ()),
    "camera": ((), ("--camera", "door=/dev/none", "--broker", BROKER)),
    "node": ((), LC),
}
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
#: seconds for one start
TIMEOUT = 60.0


def output(*command: str) -> str:
    """Run a command of the engine."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT).stdout


def size(engine: str, image: str) -> int:
    """Return the bytes of all layers."""
    return int(output(engine, "image", "inspect", "--format", "{{.Size}}", image))


def wheel_bytes(engine: str, image: str) -> float:
    """Return the bytes of the newest layer that holds anything: the project's wheel."""
    told = output(engine, "history", "--format", "{{.Size}}", image)
    sizes = [float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+) ?(B|kB|MB|GB)\b", told)]
    return next(each for each in sizes if each > 1e6)


def start_s(engine: str, image: str, options: Sequence[str], arguments: Sequence[str]) -> float:
    """Start a container, and return the seconds until its first log line."""
    name = f"bench-{secrets.token_hex(4)}"
    command = [engine, "run", "--rm", "--network", "none", "--name", name, "-v", f"{train.FOLDER}:{MODELS}:ro"]
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, *options, image, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        # lines of the engine itself begin with time=
        if line.startswith(("{", "\n")):
            took = time.monotonic() - began
            subprocess.run([engine, "rm", "--force", name], capture_output=True, check=False, timeout=TIMEOUT)
            process.communicate(timeout=TIMEOUT)
            return took
    raise SystemExit(f"Error: {image} ended without a log line")


def measure(engine: str, image: str, target: str, rounds: int) -> dict[str, Any]:
    """Measure one image."""
    options, arguments = RUNS[target]
    times = [start_s(engine, image, options, arguments) for _ in range(rounds)]
    wheel = wheel_bytes(engine, image)
    return {"bytes": size(engine, image), "wheel_bytes": wheel, "start_s": round(median(times), 2)}


def main() -> None:
    """Measure all images, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="podman", help="podman or docker (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="starts of each (default: %(default)s)")
    parser.add_argument("--name", action="append", help="an image whose name ends with a target; repeatable")
    given = parser.parse_args()
    names = {name.rpartition("/")[2].partition(":")[0]: name for name in given.name or ()} or tags()
    if unknown := set(names) - set(RUNS):
        sys.exit(f"Error: --name: {', '.join(sorted(unknown))}: the name of an image ends with {', '.join(RUNS)}")
    found = {
        name: measure(given.engine, image, name, given.rounds) for name, image in {"python": BASE, **names}.items()
    }
    base = found["python"]["bytes"]
    print("| image | MB above its base | MB of an update | s to its first log line |\n|---|---|---|---|")
    for name, row in found.items():
        above, wheel = (row["bytes"] - base) / 1e6, row["wheel_bytes"] / 1e6
        print(f"| `{name}` | {above:.0f} | {f'{wheel:.0f}' if above else ''} | {row['start_s']:.1f} |")
    results.write(OUT, found)


if __name__ == "__main__":
    main()
