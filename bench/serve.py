"""The inference server compared with MLServer, and new versions of a model under load.

Both run all the time, each on one processor core; the clients have another. They are asked in turn, round by round,
by the same clients with the same bytes, so that what the machine does otherwise hits both. MLServer gets its own
environment below build/peers, its fastest settings for a small model (no worker processes, no metrics endpoint in the
way) and the runtime in ``serve_peer.py``. Then a model is replaced under 200 requests a second (``serve_rollout.py``).
Exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import results, serve_rollout
from bench import serve_load as load
from bench.results import ROOT
from halimede.serving.grpc_handlers import InferRequest
from tests.ports import free_port

PEERS = ROOT / "build" / "peers"
PINS = ("mlserver==1.7.1", "setuptools<81")
OUT = results.FOLDER / "serve.json"
MODEL = ROOT / "examples" / "digits" / "models" / "small.onnx"
NAMES = ("halimede", "mlserver")
#: what is asked of us: times MLServer's rate, and its median answer
RATE, P50 = 1.5, 0.7
START_S = 120.0
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def peer() -> Path:
    """Return the Python that has MLServer, installed on first use."""
    python = PEERS / "mlserver" / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", "import mlserver, onnxruntime"], check=False).returncode:
        print("==> installing MLServer below build/peers (a minute or two the first time)", flush=True)
        shutil.rmtree(python.parents[1], ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        ours = [p for p in (ROOT / "constraints.txt").read_text().split() if p.startswith(("onnxruntime=", "numpy="))]
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PINS, *ours]
        subprocess.run(install, check=True)
    return python


@contextlib.contextmanager
def halimede(model: Path, core: set[int], *options: str) -> Iterator[tuple[int, int]]:
    """Run our server; yields its ports for REST and gRPC."""
    rest, rpc = free_port(), free_port()
    command = [sys.executable, "-m", "halimede", "serve", f"bench={model}", *options]
    command += ["--http", f"127.0.0.1:{rest}", "--grpc", f"127.0.0.1:{rpc}"]
    with running(command, {}, core, rest):
        yield rest, rpc


@contextlib.contextmanager
def mlserver(model: Path, core: set[int], python: Path) -> Iterator[tuple[int, int]]:
    """Run MLServer; yields its ports for REST and gRPC."""
    rest, rpc = free_port(), free_port()
    folder = PEERS / "model"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("serve_peer.py"), folder / "serve_peer.py")
    (folder / "settings.json").write_text(
        json.dumps(
            {"host": "127.0.0.1", "http_port": rest, "grpc_port": rpc, "metrics_endpoint": None, "debug": False,
             "parallel_workers": 0, "use_structured_logging": False, "grpc_max_message_length": 1 << 25}
        )
    )  # fmt: skip
    (folder / "model-settings.json").write_text(
        json.dumps({"name": "bench", "implementation": "serve_peer.OnnxRuntime", "parameters": {"uri": str(model)}})
    )
    command = [str(python.with_name("mlserver")), "start", str(folder)]
    with running(command, {"PYTHONPATH": str(folder)}, core, rest):
        yield rest, rpc


@contextlib.contextmanager
def running(command: list[str], told: dict[str, str], core: set[int], port: int) -> Iterator[None]:
    log = OUT.with_name(f"{Path(command[0]).name}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env={**os.environ, **ALONE, "HALIMEDE_LOG_LEVEL": "WARNING", **told}, stdout=file, stderr=file,
            cwd=ROOT,
        )  # fmt: skip
        os.sched_setaffinity(process.pid, core)  # before it has threads
        try:
            until = time.monotonic() + START_S
            while not _ready(port):
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"{command[0]} does not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/bench/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def requests(count: int) -> tuple[bytes, bytes]:
    """Return one request as REST JSON and as gRPC: a picture of 64 values."""
    row = np.linspace(0, 1, 64 * count, dtype=np.float32).reshape(count, 64).round(3)
    tensor = {"name": "X", "shape": [count, 64], "datatype": "FP32", "data": row.ravel().tolist()}
    body = json.dumps({"inputs": [tensor]}).encode()
    packed = InferRequest(model_name="bench", raw_input_contents=[row.tobytes()])
    packed.inputs.add(name="X", datatype="FP32", shape=[count, 64])
    return load.post("/v2/models/bench/infer", body, Content_Type="application/json"), packed.SerializeToString()


async def measure(ports: dict[str, tuple[int, int]], rounds: int, seconds: float) -> dict[str, Any]:
    """Ask all in turn; return medians over the rounds, by protocol and number of clients."""
    rest_request, rpc_request = requests(1)
    ways: dict[str, Callable[[str, int, float], Any]] = {
        "rest": lambda name, clients, s: load.rest(ports[name][0], rest_request, clients, s),
        "grpc": lambda name, clients, s: load.rpc(ports[name][1], rpc_request, clients, s),
    }
    found: dict[tuple[str, int, str], list[load.Taken]] = {}
    for number in range(-1, rounds):
        for way, ask in ways.items():
            for clients in (1, 16):
                for name in NAMES if number % 2 else reversed(NAMES):
                    taken = await ask(name, clients, seconds if number >= 0 else 0.5)
                    if taken.failed:
                        raise SystemExit(f"{name}: {taken.failed} of its {way} requests failed")
                    if number >= 0:  # the first is to warm up
                        found.setdefault((way, clients, name), []).append(taken)
    return {
        way: {
            str(clients): {name: _figures(found[way, clients, name]) for name in NAMES}
            for clients in (1, 16)
        }
        for way in ways
    }  # fmt: skip


def _figures(rounds: list[load.Taken]) -> dict[str, float]:
    return {
        "p50_ms": round(statistics.median(each.p50_ms for each in rounds), 4),
        "p99_ms": round(statistics.median(each.quantile_ms(0.99) for each in rounds), 4),
        "rate": round(statistics.median(each.rate for each in rounds), 1),
    }


def table(found: dict[str, Any]) -> bool:
    """Print what was found; return whether the targets are met: REST's, for most of gRPC's time is its own."""
    print(f"\n{'':8}{'clients':>8}{'':>12}{'answers/s':>12}{'p50 ms':>10}{'p99 ms':>10}")
    met = True
    for way, by_clients in found.items():
        for clients, both in by_clients.items():
            for name in NAMES:
                row = both[name]
                print(f"{way:8}{clients:>8}{name:>12}{row['rate']:>12.0f}{row['p50_ms']:>10.3f}{row['p99_ms']:>10.3f}")
            rate = both["halimede"]["rate"] / both["mlserver"]["rate"]
            p50 = both["halimede"]["p50_ms"] / both["mlserver"]["p50_ms"]
            good = rate >= RATE and p50 <= P50
            met = met and (good or way != "rest")
            print(f"{'':16}{'':>12}{rate:>10.2f} x{p50:>8.2f} x  {'ok' if good else 'MISSED'}")
    print(f"\ntargets: at least {RATE} x its rate, at most {P50} x its median, at 1 and 16 clients over REST")
    print("gRPC stands beside it: most of its time is gRPC's own")
    return met


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one round of one server (default 3)")
    given = parser.parse_args()
    python = peer()
    cores = sorted(os.sched_getaffinity(0))
    server, clients = {cores[0]}, set(cores[1:]) or {cores[0]}
    os.sched_setaffinity(0, clients)
    with halimede(MODEL, server) as ours, mlserver(MODEL, server, python) as theirs:
        found = asyncio.run(measure({"halimede": ours, "mlserver": theirs}, given.rounds, given.seconds))
    met = table(found)
    os.sched_setaffinity(0, cores)
    met = serve_rollout.meets_target(running, given.rounds, given.seconds) and met
    results.write(OUT, {"clients": found["rest"], "grpc": {"clients": found["grpc"]}})
    print(f"written to {OUT.relative_to(ROOT)}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
