"""The fuzzer finds what there is to find, and in a short run nothing in the code; `make fuzz` runs for long."""

from __future__ import annotations

import random
import signal
import sys

import pytest

from tests.fuzz import corpus, targets
from tests.fuzz.decoder import CrashedError, DecoderProcess
from tests.fuzz.loop import FailedError, Fuzzer

#: inputs: a stream is cut in many ways
RUNS = {"stream": 150, "packet": 1000, "properties": 1000}


@pytest.mark.parametrize("name", targets.TARGETS)
def test_the_parser_stands_what_the_fuzzer_makes_of_each_kind_of_packet(name: str) -> None:
    fuzzer = Fuzzer(name, targets.TARGETS[name], corpus.MODULES, random.Random(8))
    fuzzer.seed(corpus.seeds(name))
    known = len(fuzzer.edges)
    fuzzer.run(60, RUNS[name])
    assert len(fuzzer.edges) > known


def test_the_decoder_stands_spoiled_pictures_at_each_scale() -> None:
    with DecoderProcess() as decoder:
        fuzzer = Fuzzer(corpus.PICTURE, decoder, corpus.MODULES, random.Random(8), corpus.LONGEST_PICTURE)
        fuzzer.seed(corpus.seeds(corpus.PICTURE))
        known = len(fuzzer.edges)
        fuzzer.run(60, 300)
    assert len(fuzzer.edges) > known
    assert decoder.slowest[0] > 0


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import os; os.abort()", f"code {-signal.SIGABRT}"),
        ("import os; os.read(0, 4); raise ValueError('spoiled')", "code 1 ValueError: spoiled"),
        pytest.param("import time; time.sleep(600)", "it hangs: code -9", marks=pytest.mark.slow),
    ],
)
def test_a_decoder_that_crashes_or_hangs_is_seen(code: str, text: str) -> None:
    with DecoderProcess((sys.executable, "-c", code), wait_s=2) as decoder, pytest.raises(CrashedError, match=text):
        decoder(b"\xff\xd8\xff")


def breaks(data: bytes) -> None:
    """Break deep inside: noise alone gets there once in 2^32 inputs."""
    if data[:1] != b"\x81":
        return
    if data[1:2] != b"\x2a":
        return
    if data[2:3] != b"\x26":
        return
    if data[3:4] == b"\xd0":
        raise ZeroDivisionError


def test_the_fuzzer_gets_step_by_step_to_a_fault_and_makes_its_input_short() -> None:
    fuzzer = Fuzzer("breaks", breaks, [__file__], random.Random(8))
    fuzzer.seed([b"some input"])
    with pytest.raises(FailedError) as caught:
        fuzzer.run(60, 200_000)
    assert caught.value.data == b"\x81\x2a\x26\xd0"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
