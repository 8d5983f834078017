"""Processes of bench.camera that read the frames of live cameras themselves.

    python -m bench.camera_peers opencv|joint|mlserver FOLDER

``opencv``: a loop over all cameras with OpenCV and ONNX Runtime. ``joint``: a JointModel in one process, with a thread
for each camera. ``mlserver``: MLServer as a child, and a client with a thread for each camera that sends the decoded
picture as a tensor over gRPC. Each prints ``ready``, then a JSON line for each round that it reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from bench.camera_frames import written_jpegs
from bench.camera_live import LiveCamera, LiveRound, Tally
from bench.camera_model import DECODE, Detector

#: answers a JPEG
Answer = Callable[[bytes], object]
#: what drops pictures that nobody takes
SKIPPED = "skipped for a newer one"
#: seconds until a request to MLServer counts as lost
TIMEOUT_S = 60.0


def one_loop(live: LiveRound, files: Sequence[bytes], answer: Answer) -> Tally:
    """Answer the cameras in turn, each its newest picture."""
    tally, start = Tally(), time.monotonic()
    cameras = [LiveCamera(name, live, start) for name in live.cameras]
    while running := [camera for camera in cameras if not camera.over]:
        answered = [answer_newest(camera, live, files, answer, tally) for camera in running]
        if not any(answered):
            time.sleep(max(0.0, min(camera.due() for camera in running) - time.monotonic()))
    tally.offered = live.ticks * len(cameras)
    tally.dropped[SKIPPED] = sum(camera.skipped for camera in cameras)
    return tally


def in_threads(live: LiveRound, files: Sequence[bytes], answer: Answer) -> Tally:
    """Answer each camera in a thread of its own."""
    with ThreadPoolExecutor(len(live.cameras)) as pool:
        tallies = list(pool.map(lambda name: one_loop(replace(live, cameras=[name]), files, answer), live.cameras))
    tally = Tally()
    for counted in tallies:
        tally.include(counted)
    return tally


def answer_newest(camera: LiveCamera, live: LiveRound, files: Sequence[bytes], answer: Answer, tally: Tally) -> bool:
    """Answer a camera's newest picture; return whether there was one."""
    number = camera.newest()
    if number is None:
        return False
    answer(files[number % len(files)])
    answered = time.monotonic()
    tally.add(camera.name, answered - camera.due(number), in_time=answered <= camera.due(live.ticks))
    return True


@contextlib.contextmanager
def opencv(detector: Detector) -> Iterator[Answer]:
    """Yield what answers by OpenCV and ONNX Runtime, as one writes it: decode, run, read the boxes."""
    session, read = detector.session(), detector.reader
    (port,) = session.get_inputs()

    def answer(data: bytes) -> int:
        outputs = session.run(detector.outputs, {port.name: read(data)})
        return detector.boxes(dict(zip(detector.outputs, map(np.asarray, outputs), strict=True)))

    yield answer


@contextlib.contextmanager
def joint(detector: Detector) -> Iterator[Answer]:
    """Yield what answers by a JointModel of this model alone."""
    from halimede import JointModel  # noqa: PLC0415  # no other kind needs it

    with JointModel(detector.path, decode=DECODE, **detector.processing) as model:
        yield model.predict


@contextlib.contextmanager
def mlserver(detector: Detector) -> Iterator[Answer]:
    """Yield what answers by MLServer: the client decodes the picture, and sends a tensor of floats."""
    import grpc  # noqa: PLC0415  # no other kind needs it

    from bench import serve  # noqa: PLC0415
    from halimede.serving.grpc_handlers import InferRequest, InferResponse  # noqa: PLC0415

    name = "input.1" if detector.is_detector else "x"
    limits = [("grpc.max_receive_message_length", 1 << 25), ("grpc.max_send_message_length", 1 << 25)]
    read = detector.reader
    with contextlib.ExitStack() as stack:
        server = serve.mlserver(Path(detector.path), os.sched_getaffinity(0), serve.peer())
        _, port = stack.enter_context(server)
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}", options=limits))
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

        def answer(data: bytes) -> int:
            tensor = read(data)
            request = InferRequest(model_name="bench", raw_input_contents=[tensor.tobytes()])
            request.inputs.add(name=name, datatype="FP32", shape=tensor.shape)
            reply = InferResponse.FromString(call(request.SerializeToString(), timeout=TIMEOUT_S))
            return detector.boxes(dict(arrays_of(reply)))

        yield answer


def arrays_of(reply: object) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the outputs of an answer of MLServer, raw or typed."""
    raw = list(reply.raw_output_contents)  # type: ignore[attr-defined]
    for i, output in enumerate(reply.outputs):  # type: ignore[attr-defined]
        values = np.frombuffer(raw[i], np.float32) if raw else np.array(output.contents.fp32_contents, np.float32)
        yield output.name, values.reshape(tuple(output.shape))


KINDS = {"opencv": (opencv, one_loop), "joint": (joint, in_threads), "mlserver": (mlserver, in_threads)}


def main(kind: str, folder: str) -> None:
    """Be one of the processes until standard input ends."""
    cv2.setNumThreads(1)
    files = written_jpegs(Path(folder))
    opened, run = KINDS[kind]
    with opened(Detector.load(Path(folder))) as answer:
        for data in files:
            answer(data)
        print("ready", flush=True)
        for line in sys.stdin:
            live = LiveRound(**json.loads(line))
            print(json.dumps(run(live, files, answer).summary(live)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
