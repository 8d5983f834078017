"""The page of all commands: usage, arguments, options with their defaults, and examples, from the commands' help."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from typing import Any

import click

from examples.digits import demo
from halimede.cli.app import COMMANDS, load
from halimede.serving import settings
from halimede.serving.router import server as router
from scripts.reference.markdown import code, document, prose, table
from services import main as system
from services.gm import main as gm
from services.lc import main as lc
from services.worker import app as worker
from services.worker import camera

SOURCE = "the commands of halimede/cli"
COLUMNS = ("option", "default", "meaning")
#: commands that are programs with a command line of their own (``halimede.programs``)
PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "halimede up": system.parser,
    "halimede demo": demo.parser,
    "halimede gm": gm.parser,
    "halimede lc": lc.parser,
    "halimede worker": worker.parser,
    "halimede camera": camera.parser,
    "halimede serve": settings.parser,
    "halimede router": router.parser,
}
ABOUT = """\
`halimede COMMAND --help` shows the same. [The operator's commands](../commands.md) has them by purpose.

Commands that connect to a broker have the options `--broker HOST:PORT` and `--credentials DIR`, which stand before or \
after the command. Without them the variables `HALIMEDE_BROKER` and `HALIMEDE_CREDENTIALS` apply, then the system that \
runs here.

| exit code | meaning |
| - | - |
| 0 | done |
| 1 | a failure or a problem, including a refused name or value |
| 2 | an option or argument that cannot be parsed |
| 130 | ended by Ctrl-C |"""
#: explained once above
COMMON = {"--broker", "--credentials", "--help"}


def pages() -> dict[str, str]:
    """Return the page."""
    rows = [[f"[`halimede {name}`](#halimede-{name})", prose(text)] for name, text in COMMANDS.items()]
    sections = [section for name in COMMANDS for section in _command(f"halimede {name}", load(name))]
    return {"commands": document("Commands", SOURCE, ABOUT, table(["command", "meaning"], rows), *sections)}


def _command(name: str, command: Any) -> Iterator[str]:
    """Yield the section of a command, and those of its subcommands."""
    if name in PARSERS:
        yield from _parser(name)
        return
    level = "#" * (name.count(" ") + 1)
    yield f"{level} {name}"
    about, _, examples = (command.help or "").partition("Examples:")
    yield "\n\n".join(prose(part) for part in about.replace("\b", "").split("\n\n") if part.strip())
    if hasattr(command, "commands"):
        for sub, each in command.commands.items():
            yield from _command(f"{name} {sub}", each)
        return
    context = click.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{name} {usage}\n```"
    if rows := [row for each in command.params for row in _parameter(each, context)]:
        yield table(COLUMNS, rows)
    if examples:
        yield _examples(examples)


def _parameter(parameter: Any, context: click.Context) -> Iterator[list[str]]:
    """Yield the row of an argument or option."""
    if set(parameter.opts) & COMMON or getattr(parameter, "hidden", False):
        return
    if parameter.param_type_name == "argument":
        name = parameter.make_metavar(context)
    else:
        metavar = "" if parameter.is_flag else " " + parameter.make_metavar(context)
        name = ", ".join([*parameter.opts, *parameter.secondary_opts]) + metavar
    default = "required" if parameter.required else _default(parameter.default)
    yield [code(name), default, prose(parameter.help or "")]


def _default(value: Any) -> str:
    if value is None or value == "" or value is False or callable(value):
        return ""
    return code(str(getattr(value, "value", value)))


def _parser(name: str) -> Iterator[str]:
    """Yield the section of a program with a parser of the standard library."""
    made = PARSERS[name]()
    yield f"## {name}"
    yield prose(made.description or "")
    rows = []
    for action in made._actions:  # noqa: SLF001 (argparse shows them in no other way)
        if set(action.option_strings) & COMMON or not (action.help or action.metavar):
            continue
        metavar = str(action.metavar or (action.dest.upper().replace("_", "-") if action.nargs != 0 else ""))
        names = ", ".join(action.option_strings)
        default = "required" if action.required and action.option_strings else ""
        help_text = (action.help or "") % {"default": action.default, "prog": name}
        rows.append([code(" ".join(filter(None, [names, metavar]))), default, prose(help_text)])
    yield table(COLUMNS, rows)


def _examples(text: str) -> str:
    lines = [re.sub(r"^ {1,6}", "", line).rstrip() for line in text.replace("\b", "").splitlines()]
    return "```text\n" + "\n".join(line for line in lines if line) + "\n```"
