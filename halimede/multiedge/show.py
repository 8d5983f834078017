"""Prints the graph of an application: its stages and its joint.

    python -m halimede.multiedge.show reid -p detect=motion
    python -m halimede.multiedge.show --entry count:application

No model is loaded: stages and the joint are made with empty models, and the joint is not opened. So names, parameters
and the module of a user's own application can be tested before a resource is applied.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from halimede.errors import HalimedeError, InvalidFieldError
from halimede.multiedge.application import Application, StagesModel, accepts_all, create
from halimede.multiedge.stage import Joint, JointTools, Parameters, Stage, Tools

M = TypeVar("M", bound=Stage | Joint)
#: arrows within a worker, and from several workers to one
THEN, TOGETHER = " -> ", " => "


@dataclass(frozen=True, slots=True)
class Summary:
    """The name of a stage or a joint, and its purpose as ``text`` in one line."""

    name: str
    text: str


def parts(application: Application, parameters: Parameters) -> tuple[list[Summary], Summary | None]:
    """Return the stages of an application, and its joint (None without one).

    Raises InvalidFieldError for invalid parameters.
    """
    models = dict.fromkeys(("model", "detector"), StagesModel([], {}))
    tools = Tools(models, parameters, worker="edge", node="edge")
    stages = [_summarize(make, tools) for make in application.stages]
    if application.joint is None:
        return stages, None
    with tempfile.TemporaryDirectory() as folder:
        return stages, _summarize(application.joint, JointTools(parameters, Path(folder), models))


def graph(name: str, application: Application, parameters: Parameters) -> str:
    """Return the graph as text: one line, and below it the summary of each stage and of the joint.

    ``name``: of the application, for the line. Raises InvalidFieldError for invalid parameters.
    """
    stages, joint = parts(application, parameters)
    line = THEN.join(["source", *(stage.name for stage in stages)])
    line += f"{TOGETHER}{joint.name}{THEN}sink" if joint else f"{THEN}sink"
    where = "an edge worker" + (", or a peer that would be done sooner" if application.share else "")
    lines = [f"{name}: {line}", "", f"{where}, for each frame:", *_describe(stages)]
    if joint:
        which = "all findings" if application.joins is accepts_all else "findings that are worth it"
        lines += ["", f"the joint worker, for {which} of all workers:", *_describe([joint])]
    return "\n".join(lines)


def _summarize(make: Callable[..., M], tools: Tools | JointTools) -> Summary:
    """Make a stage or a joint, close it, and return its summary: the first paragraph of its class's docstring."""
    component = make(tools)
    try:
        summary = (inspect.getdoc(type(component)) or "").split("\n\n")[0]
    finally:
        if isinstance(component, Stage):  # a joint that was not opened has nothing to close
            component.close()
    return Summary(type(component).__name__.lower(), " ".join(summary.split()))


def _describe(parts: Sequence[Summary]) -> list[str]:
    """Return a line for each stage or joint, with the names in one column."""
    width = max((len(summary.name) for summary in parts), default=0)
    return [f"  {summary.name:{width}}  {summary.text}".rstrip() for summary in parts]


def main() -> int:
    """Print the graph that the command line asks for; return 1 if the application or its parameters are refused."""
    parser = argparse.ArgumentParser(
        prog="python -m halimede.multiedge.show", description="Print the graph of an application."
    )
    parser.add_argument("name", nargs="?", default="", help="reid, fusion, balance, or one that is installed")
    parser.add_argument("--entry", default="", metavar="MODULE:OBJECT", help="a user's own application")
    parser.add_argument("-p", "--parameter", action="append", default=[], metavar="KEY=VALUE", help="may be repeated")
    options = parser.parse_args()
    if bool(options.name) == bool(options.entry):
        parser.error("give the name of an application, or --entry")
    try:
        parameters = Parameters(dict(_pair(text) for text in options.parameter))
        print(graph(options.name or options.entry, create(options.name, options.entry, parameters), parameters))
    except HalimedeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _pair(text: str) -> tuple[str, str]:
    """Return the key and the value of ``KEY=VALUE``. Raises InvalidFieldError."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InvalidFieldError("--parameter", text, "write KEY=VALUE")
    return key, value


if __name__ == "__main__":
    sys.exit(main())
