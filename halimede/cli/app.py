"""The command line of ``halimede``: the list of all commands, and the options before a command.

``commands/NAME.py`` implements ``halimede NAME``, unless ``MODULES`` names another module, or NAME is one of the
programs (``halimede.programs``). The module is imported only when that command is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from halimede import __version__, programs
from halimede.cli import INTERRUPTED
from halimede.cli import options as o

#: each command and the first line of its help, so that the list of all commands imports no command
COMMANDS = {
    "up": "Run a whole system on this machine until Ctrl-C: a broker, the global manager, and nodes.",
    "demo": "Answer handwritten digits on two edge nodes and one cloud node; ends with a report.",
    "apply": "Create or update the resources in manifests.",
    "get": "Show resources.",
    "describe": "Show everything about one resource: spec, conditions, nodes, metrics, events.",
    "explain": "Explain the fields of a kind: types, limits, defaults and meanings.",
    "delete": "Delete a resource, all resources in manifests, or a node that is gone for good.",
    "nodes": "Show the nodes.",
    "version": "Show the version of this command and of the global manager.",
    "events": "Show events. With -f, follow them, one JSON document a line; it reconnects when GM is back.",
    "logs": "Show the logs of a service's workers on all nodes, also across restarts and log rotations.",
    "results": "Show final answers as they arrive. An answer that is repeated after a lost connection is shown once.",
    "publish": "Publish pictures, a video or a stream as a camera. All pictures are checked first.",
    "status": "Show the state of the system on one screen, and what to do next. Exit code 0: no problem, 1: a problem.",
    "top": "Watch nodes, services, rates, latencies and cloud workers, until Ctrl-C.",
    "doctor": "Check the whole system from this machine, and print what to do. Exit code 1: there is a problem.",
    "drain": "Drain a node for maintenance. Its workers answer what they accepted; it stays empty until `uncordon`.",
    "uncordon": "Make a drained node schedulable again. Its workers start again.",
    "rollback": "Return to an earlier version of a Model or InferenceModel: the previous one, or the named one.",
    "loop": "Show the learning loop of a service: its state, versions, counts and last rounds; or begin a round.",
    "record": "Write a camera's frames into a new folder, with their times. Edge workers still receive the frames.",
    "replay": "Publish a recording with its original timing, or a folder of pictures in the order of their names.",
    "upload": "Send files to a store, and print the SHA-256 and address of each file that arrived.",
    "trace": "Show the steps of one frame at the edge and in the cloud, and their times.",
    "gm": "Run the global manager: it keeps resources, and sends each node its part.",
    "lc": "Run the local controller of one node: it downloads models and runs workers.",
    "worker": "Run one worker of a service, with settings from its environment, as the local controller starts it.",
    "camera": "Publish the frames of cameras that do not support MQTT: RTSP, USB, MJPEG, files.",
    "serve": "Serve models over the Open Inference Protocol, REST and gRPC, until Ctrl-C.",
    "router": "Forward requests to the model at the edge, and hard ones to the cloud, until Ctrl-C.",
    "bridge": "Connect a system with another one over MQTT, such as Home Assistant, until Ctrl-C.",
    "seen": "Show the sightings of an identity, in a service with re-identification. Times are those of the cameras.",
    "inspect": "Show a model's inputs and outputs, propose a Model for it, and answer a picture with that.",
    "models": "Write the Model of a model's file, as `inspect` proposes it or as a preset says.",
    "calibrate": "Calibrate which samples go to the cloud, for an upload share, a risk, costs, or a deadline.",
    "evaluate": "Evaluate a service on new data: each tier alone, and all together at each upload ratio.",
    "certs": "Manage the certificates and access rules of a site with its own broker.",
    "blob": "Transfer files over the bus, by digest: models and datasets for nodes that reach only the broker.",
    "hard": "List, show, label and export the hard samples that edge workers store (keepHardSamples).",
}
#: the groups of the list of all commands, in its order; each command is in exactly one
GROUPS = {
    "Whole systems": "demo up",
    "Resources": "apply get describe explain delete rollback",
    "Frames and answers": "publish record replay results trace seen hard",
    "State and maintenance": "status top doctor events logs nodes drain uncordon",
    "Models and data": "inspect models calibrate evaluate loop upload blob",
    "Servers": "gm lc worker camera serve router bridge",
    "This installation": "certs version",
}
#: the group of each command
GROUP_OF = {name: title for title, names in GROUPS.items() for name in names.split()}
#: modules of commands that are no programs and have no module of their own in ``commands``
MODULES = {
    "nodes": "halimede.cli.commands.get",
    "uncordon": "halimede.cli.commands.drain",
    "bridge": "halimede.bridges.command",
}
#: subcommands that connect to a broker, by their command: they inherit ``--broker`` and ``--credentials``
SUBCOMMANDS = {
    "blob": ("put", "list", "get", "delete"),
    "hard": ("list", "show", "label", "export"),
    "bridge": ("homeassistant",),
}


class LazyGroup(TyperGroup):
    """A Typer group whose commands are imported only when they are called, so that help and completion are fast."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            name: TyperCommand(name=name, help=text, rich_help_panel=GROUP_OF.get(name))
            for name, text in (GROUP_OF | COMMANDS).items()  # in the order of the groups
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name, the command and its arguments of a command line; import the command's module (Click)."""
        name, command, arguments = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, arguments


def load(name: str) -> Any:
    """Return the Click command of a name in ``COMMANDS``: of its module, or one that runs a program."""
    if name in programs.PROGRAMS:
        return _program(name)
    declared: Any = getattr(import_module(MODULES.get(name, f"halimede.cli.commands.{name}")), name)
    if not isinstance(declared, typer.Typer):
        function, declared = declared, typer.Typer(add_completion=False, rich_markup_mode="rich")
        declared.command()(function)
    return typer.main.get_command(declared)


def _program(name: str) -> Any:
    """Return a command that runs a program with all its options, also --help: a program has its own command line."""

    def run(ctx: typer.Context) -> None:
        options = [f"--{option}={value}" for option, value in (ctx.default_map or {}).items()]  # of `halimede --broker`
        raise typer.Exit(programs.run(name, [*options, *ctx.args]))

    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    declared = typer.Typer(add_completion=False, rich_markup_mode="rich")
    declared.command(help=COMMANDS[name], context_settings=settings, add_help_option=False)(run)
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
    """Run the command line of this process; return the exit code."""
    try:
        app()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def show_version(is_set: bool) -> None:  # noqa: FBT001  # the callback of an option
    """Print the version of this command and raise typer.Exit, if the option is set."""
    if is_set:
        print(f"halimede {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
    version: Annotated[  # noqa: ARG001  # its callback acts
        bool, typer.Option("--version", help="Show the version of this command.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Edge-cloud collaborative inference on an MQTT v5 bus.

    \b
    Start a system on this machine with `halimede up`, then:
      halimede demo --files digits
      halimede apply -f digits/
      halimede get ji -w
      halimede publish digits/pictures/ --camera cam0
      halimede results -f digits
      halimede status
      halimede doctor
    """
    options = {name: value for name, value in (("broker", broker), ("credentials", credentials)) if value}
    if options:
        ctx.default_map = dict.fromkeys(COMMANDS, options)
        ctx.default_map |= {group: dict.fromkeys(names, options) for group, names in SUBCOMMANDS.items()}
