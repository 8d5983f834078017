"""``Predictor``: the methods of a JointModel, which take samples from any thread and event loop and return answers."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, overload

import numpy as np
from PIL import Image

from halimede.bus.mqtt import MqttSettings
from halimede.codec import MAX_BYTES
from halimede.errors import DecodeError, HalimedeError, InvalidFieldError, TooLargeError
from halimede.frames.encodings import DTYPES, PILLOW_ERRORS
from halimede.frames.orientation import upright
from halimede.frames.payloads import new_frame, open_payload, pack
from halimede.inference import Array
from halimede.joint_model.answer import Answer
from halimede.joint_model.background_loop import BackgroundLoop, quiet_logs
from halimede.joint_model.in_process_edge import closed_error
from halimede.joint_model.tiers import TierPlan

#: default seconds for one sample in total, and least seconds for one call of a model
TIMEOUT_S, MODEL_S = 60.0, 60.0
#: most samples of a batch that are in progress
MAX_AHEAD = 96
#: what users may give: an array, a Pillow image, a path (str or PathLike), the bytes of a JPEG or PNG, or numbers
Sample: TypeAlias = "Array | Image.Image | str | os.PathLike[str] | bytes | bytearray | memoryview | Sequence[float]"
#: what to do about an invalid sample
SAMPLE_FIX = "give a NumPy array, a Pillow image, the path of a JPEG or PNG, or its bytes"
#: most elements of an axis in a frame
MAX_AXIS = 65_535
#: the error of a sample with too many bytes
TOO_LARGE = f"it is over {MAX_BYTES >> 20} MiB: give it as a JPEG or PNG, or make it smaller"


class Predictor:
    """Answers samples by a plan; over ``broker``, or all in this process (None).

    It opens at the first sample, or with ``open``, ``with`` or ``async with``. ``timeout_s`` is the default of each
    call, ``node`` the name of this machine in messages. Raises InvalidFieldError for an invalid ``timeout_s``.
    """

    def __init__(self, plan: TierPlan, broker: MqttSettings | None, *, timeout_s: float, node: str = "here") -> None:
        self._timeout_s = _check_timeout(timeout_s)
        self._make = partial(BackgroundLoop, plan, broker, node, max(MODEL_S, timeout_s))
        self._engine: BackgroundLoop | None = None
        self._closed = False
        self._lock = threading.Lock()

    # --- answers --------------------------------------------------------------------------------------------------

    def predict(self, x: Sample, *, timeout_s: float | None = None) -> Answer:
        """Answer one sample: an array or numbers, a Pillow image, the path of a JPEG or PNG, or its bytes. Blocks.

        Raises InvalidFieldError for an invalid sample, NoAnswerError if no model could answer it, TimeoutError after
        ``timeout_s`` seconds, and HalimedeError if the models cannot be opened, or were closed.
        """
        return _wait(self._submit(x, "x", timeout_s))

    async def apredict(self, x: Sample, *, timeout_s: float | None = None) -> Answer:
        """Answer one sample, as ``predict`` does, without blocking the event loop."""
        await self._aopen()
        return await asyncio.wrap_future(self._submit(x, "x", timeout_s))

    @overload
    def predict_batch(
        self, xs: Iterable[Sample], *, timeout_s: float | None = ..., return_errors: Literal[False] = ...
    ) -> list[Answer]: ...
    @overload
    def predict_batch(
        self, xs: Iterable[Sample], *, timeout_s: float | None = ..., return_errors: Literal[True]
    ) -> list[Answer | HalimedeError | TimeoutError]: ...
    def predict_batch(
        self, xs: Iterable[Sample], *, timeout_s: float | None = None, return_errors: bool = False
    ) -> Any:
        """Return the answers to samples, in their order; models get several samples at a time. Blocks.

        The first error, of those of ``predict``, is raised; with ``return_errors`` each error is in the place of its
        sample's answer. ``timeout_s`` applies to each sample.
        """
        futures: list[Future[Answer]] = []
        under_way: set[Future[Answer]] = set()
        try:
            for i, x in enumerate(xs):
                if len(under_way) >= MAX_AHEAD:
                    _, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                futures.append(self._submit(x, f"xs[{i}]", timeout_s))
                under_way.add(futures[-1])
            return [_outcome(future, keep=return_errors) for future in futures]
        finally:
            for future in futures:
                future.cancel()

    @overload
    async def apredict_batch(
        self, xs: Iterable[Sample], *, timeout_s: float | None = ..., return_errors: Literal[False] = ...
    ) -> list[Answer]: ...
    @overload
    async def apredict_batch(
        self, xs: Iterable[Sample], *, timeout_s: float | None = ..., return_errors: Literal[True]
    ) -> list[Answer | HalimedeError | TimeoutError]: ...
    async def apredict_batch(
        self, xs: Iterable[Sample], *, timeout_s: float | None = None, return_errors: bool = False
    ) -> Any:
        """Return the answers to samples, as ``predict_batch`` does, without blocking the event loop."""
        await self._aopen()
        slots = asyncio.Semaphore(MAX_AHEAD)

        async def predict_sample(i: int, x: Sample) -> Answer:
            try:
                return await asyncio.wrap_future(self._submit(x, f"xs[{i}]", timeout_s))
            finally:
                slots.release()

        tasks: list[asyncio.Task[Answer]] = []
        try:
            for i, x in enumerate(xs):
                await slots.acquire()
                tasks.append(asyncio.create_task(predict_sample(i, x)))
            await asyncio.gather(*tasks, return_exceptions=return_errors)
            return [_outcome(task, keep=return_errors) for task in tasks]
        finally:
            for task in tasks:
                task.cancel()

    # --- life -----------------------------------------------------------------------------------------------------

    def open(self) -> Self:
        """Open the models now, not at the first sample; block until they are open.

        Raises HalimedeError, and ImportError for a missing library.
        """
        self._open_engine()
        return self

    def close(self) -> None:
        """Answer pending samples, and close the models; block until they are closed, at most some seconds.

        It cannot be opened again.
        """
        with self._lock:
            self._closed = True
            engine, self._engine = self._engine, None
        if engine and engine.pid == os.getpid():
            engine.stop()
            engine.join()

    async def aclose(self) -> None:
        """Close the models, as ``close`` does, without blocking the event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self._aopen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _aopen(self) -> None:
        """Open the models, as ``open`` does, without blocking the event loop."""
        if self._engine is None:
            await asyncio.to_thread(self._open_engine)

    def _open_engine(self) -> BackgroundLoop:
        """Return the running background loop; start it if it does not run. Raises HalimedeError and ImportError."""
        with self._lock:
            if self._closed:
                raise closed_error()
            if self._engine is None:
                quiet_logs()
                engine = self._make()
                engine.start()
                self._engine = engine
                weakref.finalize(self, engine.stop).atexit = False
            if self._engine.pid != os.getpid():
                raise HalimedeError("this JointModel was opened before the process forked: open it in each process")
            return self._engine

    def _submit(self, x: Sample, field: str, timeout_s: float | None) -> Future[Answer]:
        """Submit a sample to the models, which are opened if needed; return the future of its answer.

        ``field`` names the sample in errors. Raises InvalidFieldError for an invalid ``timeout_s``, and what ``open``
        raises.
        """
        limit = self._timeout_s if timeout_s is None else _check_timeout(timeout_s)
        return self._open_engine().submit(partial(payload, x, field), field, limit)


def _check_timeout(timeout_s: float) -> float:
    """Return the number of seconds if it is valid. Raises InvalidFieldError."""
    if not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise InvalidFieldError("timeout_s", timeout_s, "give seconds, more than 0")
    return timeout_s


def _wait(future: Future[Answer]) -> Answer:
    """Block until an answer is there; if the caller is interrupted, its sample is cancelled."""
    try:
        return future.result()
    except BaseException:
        future.cancel()  # Ctrl-C: the answer is no longer needed
        raise


def _outcome(future: Future[Answer] | asyncio.Task[Answer], *, keep: bool) -> Answer | HalimedeError | TimeoutError:
    """Return an answer, and with ``keep`` also its error; else raise the error."""
    try:
        return future.result()
    except (HalimedeError, TimeoutError) as error:
        if keep:
            return error
        raise


def payload(sample: Sample, field: str = "x") -> bytes:
    """Return a sample as a camera message: a picture file or a msgpack frame. Raises InvalidFieldError on ``field``."""
    if isinstance(sample, bytes | bytearray | memoryview):
        return _check_picture(bytes(sample), field, f"{len(sample)} bytes")
    if isinstance(sample, str | os.PathLike):
        return _read(Path(sample), field)
    if isinstance(sample, Image.Image):
        sample = _pixels(sample, field)
    return _pack(_array(sample, field), field)


def _pixels(image: Image.Image, field: str) -> Array:
    """Return the pixels of a Pillow image, ``(height, width[, 3]) uint8``. Raises InvalidFieldError."""
    try:
        return np.asarray(image if image.mode in {"L", "RGB"} else image.convert("RGB"))
    except PILLOW_ERRORS as error:  # Pillow reads a file only when its pixels are accessed
        raise InvalidFieldError(field, image, f"it cannot be read: {error}") from error


def _read(path: Path, field: str) -> bytes:
    """Return a picture file, turned upright by its EXIF orientation. Raises InvalidFieldError."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe or a device may have no end
            raise InvalidFieldError(field, str(path), f"it is no file: {SAMPLE_FIX}")
        if path.stat().st_size > MAX_BYTES:
            raise InvalidFieldError(field, str(path), TOO_LARGE)
        return upright(_check_picture(path.read_bytes(), field, str(path)))
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        cause = error.strerror if isinstance(error, OSError) else error
        raise InvalidFieldError(field, str(path), f"it cannot be read: {cause}") from error


def _check_picture(data: bytes, field: str, shown: str) -> bytes:
    """Return ``data`` if it is a picture file; else raise InvalidFieldError with ``shown`` as the value."""
    try:
        frame = open_payload(data, "")
    except DecodeError as error:
        raise InvalidFieldError(field, shown, f"{error}: {SAMPLE_FIX}") from error
    if frame.encoding == "raw":
        raise InvalidFieldError(field, shown, f"it is no JPEG or PNG: {SAMPLE_FIX}")
    return data


def _array(sample: Any, field: str) -> Array:
    """Return a sample as an array that a frame can have. Raises InvalidFieldError."""
    try:
        array = np.asarray(sample)
    except (ValueError, TypeError) as error:
        raise InvalidFieldError(field, type(sample).__name__, SAMPLE_FIX) from error
    if array.dtype == np.bool_:
        array = array.astype(np.uint8)
    if array.dtype.kind not in "iuf" or not 1 <= array.ndim <= 4 or 0 in array.shape:
        raise InvalidFieldError(field, f"{type(sample).__name__} {array.dtype} {array.shape}", SAMPLE_FIX)
    shown = f"{array.dtype} {array.shape}"
    if array.dtype.name not in DTYPES:
        raise InvalidFieldError(field, shown, f"make it one of {', '.join(DTYPES)}")
    if array.nbytes > MAX_BYTES:  # before any copy: a view of few bytes may represent terabytes
        raise InvalidFieldError(field, shown, TOO_LARGE)
    if max(array.shape) > MAX_AXIS:
        raise InvalidFieldError(field, shown, f"give it axes of at most {MAX_AXIS}: reshape it")
    return array


def _pack(array: Array, field: str) -> bytes:
    """Return an array as a msgpack frame. Raises InvalidFieldError if it is too large."""
    try:
        return pack(new_frame(array))
    except TooLargeError as error:
        raise InvalidFieldError(field, f"{array.dtype} {array.shape}", TOO_LARGE) from error
