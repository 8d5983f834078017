"""The commands on resources as a shell sees them. Each imports what it needs when it runs: help comes at once."""

from __future__ import annotations

from typing import Annotated

import typer

from halimede.cli import INTERRUPTED, completion
from halimede.cli import options as o
from halimede.cli.commands import (
    blob,
    calibrate,
    certs,
    evaluate,
    hard_samples,
    operate,
    seen,
    serve,
    streams,
    tapes,
    trace_command,
)
from halimede.cli.commands import upload as files
from halimede.cli.runner import run

NODES = frozenset({"nodes", "node", "no"})

app = typer.Typer(
    name="halimede",
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
        ctx.default_map = {**dict.fromkeys(COMMANDS, given), "blob": dict.fromkeys(blob.COMMANDS, given)}
        ctx.default_map["hard"] = dict.fromkeys(hard_samples.COMMANDS, given)


@app.command()
def apply(
    files: o.Files = None,
    more: o.MoreFiles = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="For resources that name none.", show_default=False)
    ] = "",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Create or change what manifests describe.

    Everything is checked before anything is sent. Models and Datasets go first. A relative url in a Model or Dataset
    is relative to its manifest.

    \b
    Examples:
      halimede apply -f examples/digits/
      halimede apply -f model.yaml -f service.yaml -n factory
      cat service.yaml | halimede apply -f -
    """
    paths = _paths(files, more)

    async def command() -> int:
        from halimede.cli.commands import apply as room

        return await room.apply(o.address(broker, credentials), paths, o.namespace_of(namespace) if namespace else "")

    run(command)


@app.command()
def get(
    kind: o.KindArgument,
    name: o.NameArgument = "",
    namespace: o.Namespace = "default",
    everywhere: o.AllNamespaces = False,
    output: o.OutputOption = o.OutputFormat.TABLE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing changes until Ctrl-C.")] = False,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show resources.

    \b
    Examples:
      halimede get ji
      halimede get models -A -o wide
      halimede get ji digits -o yaml
      halimede get ji -w
    """
    if not name and kind in NODES:
        return nodes(output, broker, credentials)
    if not name and kind in {"events", "event", "ev"}:
        form = o.OutputFormat.JSON if output is o.OutputFormat.JSON else o.OutputFormat.TABLE
        return streams.events(namespace=namespace, output=form, follow=watch, broker=broker, credentials=credentials)

    async def command() -> None:
        from halimede.cli.commands import get as room
        from halimede.cli.output import Format

        found, called = o.target(kind, name)
        if called and everywhere:
            raise typer.BadParameter("a name is looked up in one namespace: leave out -A")
        where = o.namespace_of(namespace, everywhere=everywhere)
        if not watch:
            return await room.get(o.address(broker, credentials), found, called, where, Format(output))
        from halimede.cli.commands.watch import watch as watching

        return await watching(o.address(broker, credentials), found, called, where, Format(output))

    return run(command)


@app.command()
def describe(
    kind: o.KindArgument,
    name: o.NameArgument = "",
    namespace: o.Namespace = "default",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show everything about one resource: spec, conditions, nodes, metrics, events.

    \b
    Examples:
      halimede describe ji digits
      halimede describe model/digits-small -n factory
    """

    async def command() -> None:
        from halimede.cli.commands import describe as room

        found, called = o.target(kind, name)
        if not called:
            raise typer.BadParameter("say which one: KIND NAME")
        await room.describe(o.address(broker, credentials), found, called, o.namespace_of(namespace))

    run(command)


@app.command()
def delete(
    kind: Annotated[
        str, typer.Argument(metavar="[KIND]", help="As in get.", show_default=False, autocompletion=completion.kinds)
    ] = "",
    name: o.NameArgument = "",
    files: o.Files = None,
    namespace: o.Namespace = "default",
    wait: Annotated[bool, typer.Option(help="Wait until it is gone: its workers have stopped.")] = True,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait.")] = 60.0,
    ignore_not_found: Annotated[
        bool, typer.Option("--ignore-not-found", help="What is not there is no error.")
    ] = False,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Delete a resource, all that manifests describe, or a node that will not come back.

    \b
    Examples:
      halimede delete ji digits
      halimede delete -f examples/digits/
      halimede delete model/digits-small --no-wait
      halimede delete node edge7
    """
    if bool(files) == bool(kind):
        raise typer.BadParameter("give KIND NAME or -f FILE")

    async def command() -> int:
        from halimede.cli.commands import apply as room
        from halimede.names import Key, check_name

        where = o.namespace_of(namespace)
        if files:
            keys = room.keys(files, where)
        elif kind.partition("/")[0] in NODES:
            node = check_name("NAME", kind.partition("/")[2] or name)
            return await room.delete_node(o.address(broker, credentials), node, ignore_missing=ignore_not_found)
        else:
            found, called = o.target(kind, name)
            if not called:
                raise typer.BadParameter("say which one: KIND NAME")
            keys = [Key(found.plural, where, called)]
        return await room.delete(
            o.address(broker, credentials), keys, wait=wait, timeout_s=timeout, ignore_missing=ignore_not_found
        )

    run(command)


@app.command()
def nodes(
    output: o.OutputOption = o.OutputFormat.TABLE, broker: o.Broker = "", credentials: o.Credentials = ""
) -> None:
    """Show the nodes.

    \b
    Examples:
      halimede nodes
      halimede nodes -o json
    """

    async def command() -> None:
        from halimede.cli.commands import get as room
        from halimede.cli.output import Format

        await room.nodes(o.address(broker, credentials), Format(output))

    run(command)


@app.command()
def version(broker: o.Broker = "", credentials: o.Credentials = "") -> None:
    """Show the version of this command and of the global manager.

    \b
    Examples:
      halimede version
      halimede version --broker 10.0.0.7:1883
    """

    async def command() -> int:
        from halimede.cli.commands import get as room

        return await room.version(o.address(broker, credentials))

    run(command)


def _paths(files: list[str] | None, more: list[str] | None) -> list[str]:
    if not files:
        raise typer.BadParameter("give -f FILE, -f FOLDER or -f - for standard input")
    return [*files, *(more or [])]


streams.add_to(app)
certs.add_to(app)
blob.add_to(app)
operate.add_to(app)
tapes.add_to(app)
files.add_to(app)
trace_command.add_to(app)
serve.add_to(app)
seen.add_to(app)
hard_samples.add_to(app)
calibrate.add_to(app)
evaluate.add_to(app)
COMMANDS = tuple(command.name or command.callback.__name__ for command in app.registered_commands if command.callback)
