"""The command ``halimede``: ``commands/NAME.py`` has ``halimede NAME``, and is imported when that is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from halimede.cli import INTERRUPTED
from halimede.cli import options as o

#: each command, and the first line of its help: the list of all commands comes without importing one
COMMANDS = {
    "apply": "Create or change what manifests describe.",
    "get": "Show resources.",
    "describe": "Show everything about one resource: spec, conditions, nodes, metrics, events.",
    "delete": "Delete a resource, all that manifests describe, or a node that will not come back.",
    "nodes": "Show the nodes.",
    "version": "Show the version of this command and of the global manager.",
    "events": "Show what happened. With -f, JSON is one document a line, and a GM that is away is waited for.",
    "logs": "Show what workers wrote, on all nodes at once. Followed workers may restart or move, and logs be rotated.",
    "results": "Show final answers as they come. A frame that was answered again after a broken "
    "connection is shown once.",
    "publish": "Publish pictures, a video or a stream as a camera. Pictures are all checked before the first "
    "one is sent.",
    "status": "Show on one screen whether all is well, and what to do next. Exit code 0: all is well, 1: something "
    "is not.",
    "top": "Watch nodes, services, rates, latencies and cloud workers, until Ctrl-C.",
    "doctor": "Check everything that can be checked from here, and say what to do. Exit code 1: there is a problem.",
    "drain": "Empty a node for maintenance. Its workers finish what they have; nothing is placed on it until "
    "`uncordon`.",
    "uncordon": "Let a drained node be used again. What belongs there comes back by itself.",
    "rollback": "Go back to an earlier version of a Model or InferenceModel: the one before, or the one that is named.",
    "record": "Write a camera's frames into a new folder, with the times at which they came. "
    "Edge workers get them all the same.",
    "replay": "Publish a recording as the camera did, or a plain folder of pictures in the order of their names.",
    "upload": "Send results, weights or hard samples to a store, and print the SHA-256 and address of each file "
    "that arrived.",
    "trace": "Show one frame's way: its steps at the edge and in the cloud, and how long each took.",
    "serve": "Answer requests for models by the Open Inference Protocol, over REST and gRPC, until Ctrl-C.",
    "router": "Ask the model at the edge, and the one in the cloud where mining calls a sample hard, until Ctrl-C.",
    "seen": "Show where somebody was seen, in a service that re-identifies. Times are those of the cameras' clocks.",
    "calibrate": "Choose what goes to the cloud for what is wanted: a share, a risk, or a deadline.",
    "evaluate": "Measure a service on data that its models have not seen: each tier alone, and together at any upload "
    "ratio.",
    "certs": "Certificates and access rules of a site with a broker of its own.",
    "blob": "Files over the bus, by digest: models and datasets for nodes that reach nothing but the broker.",
    "hard": "Hard samples that edge workers keep (keepHardSamples): look at them, and bring them here to train on.",
}
#: commands of the groups that connect to a broker
SUBCOMMANDS = {"blob": ("put", "list", "get", "delete"), "hard": ("list", "show", "export")}


class LazyGroup(TyperGroup):
    """A group of commands whose modules are imported when they are called: help and completion come at once."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name=name, help=text) for name, text in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name, command and arguments of a command line; the module is imported now."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


def load(name: str) -> Any:
    """Return the command that ``commands/NAME.py`` declares: a function, or a Typer with settings of its own."""
    declared: Any = getattr(import_module(f"halimede.cli.commands.{name}"), name)
    if not isinstance(declared, typer.Typer):
        function, declared = declared, typer.Typer(add_completion=False, rich_markup_mode="rich")
        declared.command()(function)
    return typer.main.get_command(declared)


app = typer.Typer(
    name="halimede",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def start() -> int:
    """Run the command line; return the exit code."""
    try:
        app()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


@app.callback()
def root(ctx: typer.Context, broker: o.Broker = "", credentials: o.Credentials = "") -> None:
    """Edge-cloud collaborative inference on an MQTT v5 bus.

    \b
    Start a system on this machine with `make up`, then:
      halimede apply -f examples/digits/
      halimede get ji -w
      halimede publish pictures/ --camera cam0
      halimede results -f digits
      halimede status
      halimede doctor
    """
    given = {name: value for name, value in (("broker", broker), ("credentials", credentials)) if value}
    if given:
        ctx.default_map = dict.fromkeys(COMMANDS, given)
        ctx.default_map |= {group: dict.fromkeys(names, given) for group, names in SUBCOMMANDS.items()}
