"""Fuzz the lean client's parser and the decoding of pictures: `make fuzz`.

What fails is written to build/fuzz, and fails again from there.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from halimede.bus.mqtt5 import buffers
from tests.fuzz.corpus import LONGEST_PICTURE, MODULES, PICTURE, seeds
from tests.fuzz.decoder import DecoderProcess
from tests.fuzz.loop import LONGEST, FailedError, Fuzzer
from tests.fuzz.targets import TARGETS

FAILURES = Path("build/fuzz")
#: bytes
LARGE, ROOM = 64, 128


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument("--seed", type=int, default=None, help="the same inputs again, as far as time allows")
    parser.add_argument("--target", choices=[*TARGETS, PICTURE], help="only this one")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else time.time_ns() % 10**6
    print(f"seed {seed}")
    # inputs are short: what is large has to be as well
    buffers.LARGE, buffers.SHARED_BYTES = LARGE, ROOM
    failed = False
    with DecoderProcess() as decoder:
        targets: dict[str, Callable[[bytes], None]] = {**TARGETS, PICTURE: decoder}
        chosen = [args.target] if args.target else list(targets)
        for name in chosen:
            longest = LONGEST_PICTURE if name == PICTURE else LONGEST
            fuzzer = Fuzzer(name, targets[name], MODULES, random.Random(seed), longest)
            try:
                fuzzer.seed([*seeds(name), *(path.read_bytes() for path in sorted(FAILURES.glob(f"{name}-*")))])
                fuzzer.run(args.seconds / len(chosen))
            except FailedError as failure:
                failed = True
                FAILURES.mkdir(parents=True, exist_ok=True)
                path = FAILURES / f"{name}-{abs(hash(failure.data)):x}"
                path.write_bytes(failure.data)
                traceback.print_exception(failure.__cause__)
                print(f"{name}: fails at {failure.data.hex()}, written to {path}")
            print(f"{name:10} {fuzzer.runs:8} inputs, {len(fuzzer.kept):4} kept, {len(fuzzer.edges):4} edges")
        if decoder.slowest[0]:
            seconds, data = decoder.slowest
            print(f"slowest picture: {seconds * 1000:.1f} ms of processor time at all scales, {len(data)} bytes")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
