"""Runs functions of a user's Python files as steps of pre-processing, and as the post-processing of a model.

The files are in the model's folder, so they come with its archive: one download, one digest, one rollout. A script is
the user's code and runs with the rights of its process. It is called only where a model is called: in the model's
thread, under its watchdog. Where the kernel has Landlock, that thread can neither write files nor use TCP. If a script
fails on a sample, only that sample fails, and the error names the field of the spec.

Files are compiled here and not imported: an import would write into the model's folder, and keep modules of models that
are gone.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from halimede.api.model import ModelSpec
from halimede.api.processing import Postprocess, PostprocessScript, ReadText, Script, scripts_of
from halimede.errors import describe_exception, shorten_middle
from halimede.inference import preprocess
from halimede.inference.coordinates import map_coordinates
from halimede.inference.decoders.anchors import load_anchors
from halimede.inference.decoders.ctc import load_alphabet
from halimede.inference.geometry import Geometry
from halimede.inference.model import Array, ModelError, SampleError
from halimede.inference.session import import_runtime
from halimede.inference.user_answers import as_prediction
from halimede.messages import Prediction
from halimede.messages.file_facts import TrialReason
from halimede.system.landlock import forbid_writing

#: most bytes of a script
MAX_SCRIPT = 1024 * 1024
#: most characters of an error
MAX_ERROR = 512
#: part of the error about a missing file
PACK_FIX = "pack it into one archive (tar, tar.gz, zip) with the model"
#: numbers in the names of the modules that are made of scripts
_numbers = itertools.count()
#: called with a script's field, function and file before it runs, and with an empty text after it
Report = Callable[[str], None]


class ScriptError(ModelError):
    """A script cannot be loaded, or fails on a blank frame. The text names the field of the spec."""

    reason = TrialReason.SCRIPT


class ScriptSampleError(SampleError):
    """A script failed on a sample. The text names the field of the spec."""


class ScriptFunction:
    """A function of a user's file that raises ScriptSampleError alone.

    ``field``: where the spec names the function. ``path``: the file. ``name``: of the function ``call``. ``report``: is
    called before and after each run.
    """

    def __init__(self, field: str, path: Path, name: str, call: Callable[..., Any], report: Report) -> None:
        self._title = f"{field}: {name} of {path.name}"
        self._path = path
        self._call = call
        self._report = report

    def __call__(self, *arguments: object) -> Any:
        """Return what the function returns. Raises ScriptSampleError in place of anything that the function raises."""
        return _run_guarded(lambda: self._call(*arguments), self.error, self._title, self._path, self._report)

    def error(self, text: str) -> ScriptSampleError:
        """Return the error with this text, after the field and the function's name, for a caller to raise."""
        return ScriptSampleError(shorten_middle(f"{self._title} {text}", MAX_ERROR))


class LoadedScript(Script, kw_only=True):
    """A step ``Script`` of pre-processing whose function is loaded.

    Attributes:
        call: the function; it gets the picture and returns another array.
        keeps_size: the function must not change height and width, because boxes are mapped back to the frame.

    """

    call: ScriptFunction
    keeps_size: bool


class LoadedPostprocessScript(PostprocessScript, kw_only=True):
    """A ``PostprocessScript`` whose function is loaded: ``call``, which ``ScriptReader`` calls."""

    call: ScriptFunction


@preprocess.run.register
def _(step: LoadedScript, image: Array) -> Array:
    """Return the array that the script makes of a picture. Raises ScriptSampleError.

    The script gets a plain read-only array: if a batch fails, it is called again with the same arrays.
    """
    call, picture = step.call, np.asarray(image).view()
    picture.setflags(write=False)
    result = call(picture)
    if not isinstance(result, np.ndarray):
        raise call.error(f"returned {type(result).__name__}: return a NumPy array")
    if result.dtype.kind not in "uif" or not result.size:
        raise call.error(f"returned an array of {result.dtype} {list(result.shape)}: return whole or floating numbers")
    if step.keeps_size and result.shape[:2] != picture.shape[:2]:
        text = "boxes are mapped back to the frame, so keep height and width, and resize with a declared step"
        raise call.error(f"returned {list(result.shape)} for {list(picture.shape)}: {text}")
    return result


class ScriptReader:
    """A ``Reader`` (file_model) of the outputs ``names`` that calls a script.

    ``call``: the script's function. ``labels``: names of the classes; empty: not declared.

    The script gets the outputs by name, as the model returns them for one sample (with a first axis of 1), and the
    frame's height and width; None if the frame is no picture. Coordinates in its answer are mapped back to the frame by
    the sample's geometry.
    """

    def __init__(self, names: Sequence[str], call: ScriptFunction, labels: Sequence[str]) -> None:
        self.names: tuple[str, ...] = tuple(names)
        self._call = call
        self._labels = tuple(labels)

    def split(self, outputs: Sequence[Array], count: int) -> list[tuple[Array, ...]]:
        """Return each sample's part of the outputs, in order. Raises SampleError if a first axis is not ``count``."""
        if count == 1:
            return [tuple(outputs)]
        if any(not output.ndim or len(output) != count for output in outputs):
            shapes = ", ".join(f"{name} {list(output.shape)}" for name, output in zip(self.names, outputs, strict=True))
            raise SampleError(f"the model gives {shapes}, which are no outputs of {count} samples")
        return [tuple(output[i : i + 1] for output in outputs) for i in range(count)]

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:
        """Return the script's answer as a Prediction, in pixels of the frame. Raises SampleError."""
        size = (geometry.y.frame, geometry.x.frame) if geometry else None
        answer = self._call(dict(zip(self.names, part, strict=True)), size)
        try:
            prediction = as_prediction(answer, self._labels)
        except SampleError as error:
            raise self._call.error(f"failed: {error}") from error
        return map_coordinates(prediction, geometry.back) if geometry and geometry.moved else prediction


def bind(spec: ModelSpec, model: Path, report: Report = lambda _: None) -> ModelSpec:
    """Return a spec with its scripts, anchors (of SSD detectors) and alphabet (of readers of text) loaded.

    ``model``: the model's file or folder; scripts and anchors are in its folder, the alphabet may be in the file. A
    script that several fields name is loaded once. ``report``: told which script runs. Raises ModelError.
    """
    model = model.resolve()
    folder = model if model.is_dir() else model.parent
    modules: dict[str, ModuleType] = {}

    def load(field: str, script: Script | PostprocessScript) -> ScriptFunction:
        """Return the function of a script that the spec names in ``field``. Raises ModelError."""
        path = folder / script.file
        if script.file not in modules:
            modules[script.file] = _load(field, path, report)
        call = getattr(modules[script.file], script.function, None)
        if not callable(call):
            names = [name for name, item in vars(modules[script.file]).items() if _is_own(item, modules[script.file])]
            has = f"it has {', '.join(names[:5])}" if names else "it has none"
            raise ScriptError(f"{field}.function: {path.name} has no function {script.function}: {has}")
        return ScriptFunction(field, path, script.function, call, report)

    post = spec.postprocess
    boxes = post is not None and post.task == "detection" and post.script is None
    steps = list(spec.preprocess)
    for i, step in enumerate(steps):
        if isinstance(step, Script):
            call = load(f"spec.preprocess[{i}]", step)
            steps[i] = LoadedScript(file=step.file, function=step.function, call=call, keeps_size=boxes)
    if post and post.script:
        call = load("spec.postprocess.script", post.script)
        loaded = LoadedPostprocessScript(file=post.script.file, function=post.script.function, call=call)
        post = msgspec.structs.replace(post, script=loaded)
    elif post:
        post = _with_data(post, folder, model, spec.format)
    return msgspec.structs.replace(spec, preprocess=steps, postprocess=post)


def _with_data(post: Postprocess, folder: Path, model: Path, file_format: str) -> Postprocess:
    """Return a post-processing with its anchors and its alphabet read. Raises ModelError."""
    if post.boxes and post.boxes.anchors:
        anchors = load_anchors(post.boxes.anchors, folder)
        post = msgspec.structs.replace(post, boxes=msgspec.structs.replace(post.boxes, anchors=anchors))
    if post.task == "text":
        post = msgspec.structs.replace(post, text=load_alphabet(post.text or ReadText(), model, file_format))
    return post


def confine(spec: ModelSpec) -> None:
    """Take the right to write files and to use TCP from the calling thread, if the model has scripts.

    Callers do so first in the thread that opens the model and in each thread that calls the model: scripts run in no
    other thread. There is no effect where the kernel has no Landlock. The runtime of the model's format is imported
    before, because the import of TensorFlow needs a folder that it can write to.
    """
    if next(scripts_of(spec.preprocess, spec.postprocess), None):
        with contextlib.suppress(ModelError):  # who opens the model reports it
            import_runtime(spec.format)
        forbid_writing()


def _load(field: str, path: Path, report: Report) -> ModuleType:
    """Run a file as a module and return the module. Raises ModelError, which names ``field``."""
    try:
        source = _read(path)
    except OSError as error:
        raise ScriptError(
            f"{field}.file: there is no readable file {path.name} in the model's folder: {PACK_FIX}"
        ) from error
    if len(source) > MAX_SCRIPT:
        raise ScriptError(f"{field}.file: {path.name} has more than {MAX_SCRIPT} bytes: is it a script?")
    module = ModuleType(f"halimede_script_{next(_numbers)}")
    module.__file__ = str(path)
    title = f"{field}: {path.name}"
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ScriptError(f"{title} is not valid Python: {text}{line}") from error
    sys.modules[module.__name__] = module  # dataclasses look up the module of their annotations
    try:
        _run_guarded(lambda: exec(code, vars(module)), lambda text: ScriptError(f"{title} {text}"), title, path, report)  # noqa: S102
    except ScriptError as error:
        if isinstance(error.__cause__, ImportError):  # only where the worker runs it is known what is installed
            raise ModelError(f"{error}: install it where the workers run") from error
        raise
    finally:
        del sys.modules[module.__name__]
    return module


def _read(path: Path) -> bytes:
    """Return at most MAX_SCRIPT + 1 bytes of a regular file. Raises OSError."""
    if not path.is_file():  # opening a pipe would wait
        raise FileNotFoundError
    with path.open("rb") as file:
        return file.read(MAX_SCRIPT + 1)


def _run_guarded(
    work: Callable[[], Any], error_of: Callable[[str], Exception], title: str, path: Path, report: Report
) -> Any:
    """Return what ``work``, a user's code in the file ``path``, returns; ``report`` is called with ``title`` before.

    Whatever it raises becomes the error that ``error_of`` makes of a text, which has the exception and the line. Only a
    KeyboardInterrupt of the main thread is raised as it is.
    """
    report(title)
    try:
        return work()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # of the terminal
        lines = [
            line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)
        ]
        where = f" (line {lines[-1]})" if lines else ""
        raise error_of(shorten_middle(f"raised {describe_exception(error)}", MAX_ERROR // 2) + where) from error
    finally:
        report("")


def _is_own(value: object, module: ModuleType) -> bool:
    """Whether a value of a module is a function or a class that the module defines itself."""
    return callable(value) and getattr(value, "__module__", "") == module.__name__
