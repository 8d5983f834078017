"""The commands on hard samples that edge workers keep, as a shell sees them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halimede.cli import completion
from halimede.cli import options as o
from halimede.cli.runner import run

if TYPE_CHECKING:
    from halimede.messages import KeptRequest


class Truth(StrEnum):
    """Whose answer a data set takes for the truth."""

    EDGE = "edge"
    CLOUD = "cloud"


class ExportLayout(StrEnum):
    """Forms of a data set."""

    FOLDER = "folder"
    COCO = "coco"


class Answerer(StrEnum):
    """Who gave the final answer."""

    ANY = "any"
    EDGE = "edge"
    CLOUD = "cloud"


Service = Annotated[
    str, typer.Argument(metavar="[SERVICE]", help="Only of this service.", autocompletion=completion.services)
]
CameraOption = Annotated[str, typer.Option(metavar="NAME", help="Only of this camera.", show_default=False)]
NodeOption = Annotated[
    str,
    typer.Option(metavar="NAME", help="Only on this node.", show_default=False, autocompletion=completion.nodes),
]
LabelOption = Annotated[
    str, typer.Option(metavar="TEXT", help="Only where either answer, or a box of it, is this.", show_default=False)
]
ReasonOption = Annotated[
    str,
    typer.Option(metavar="WORD", help="Only degraded for this reason: no-cloud, deadline, ...", show_default=False),
]
AnsweredBy = Annotated[Answerer, typer.Option("--answered-by", help="Only with a final answer of theirs.")]
Disagree = Annotated[bool, typer.Option("--disagree", help="Only where the final label is not the small model's.")]

hard = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Hard samples that edge workers keep (keepHardSamples): look at them, and bring them here to train on.",
)


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.add_typer(hard, name="hard")


@hard.command(name="list")
def list_(
    service: Service = "",
    camera: CameraOption = "",
    node: NodeOption = "",
    label: LabelOption = "",
    reason: ReasonOption = "",
    answered_by: AnsweredBy = Answerer.ANY,
    disagree: Disagree = False,
    since: o.Since = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the newest first.")] = 20,
    namespace: o.Namespace = "default",
    everywhere: o.AllNamespaces = False,
    output: o.LinesOption = o.LinesFormat.TABLE,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """List hard samples: when they were kept, what each model said, who had the last word, and why.

    \b
    Examples:
      halimede hard list digits
      halimede hard list digits --disagree --since 1d
      halimede hard list --reason no-cloud -A -o json
    """

    async def command() -> None:
        from halimede.cli.commands import hard_samples_export as room
        from halimede.cli.output import Format

        wanted = _request_of(
            service, namespace, everywhere, camera=camera, node=node, label=label, reason=reason,
            answered_by=answered_by, disagree=disagree, since=since, limit=min(limit, 256),
        )  # fmt: skip
        await room.show_list(o.address(broker, credentials), wanted, limit, Format(output))

    run(command)


@hard.command()
def show(
    sample: Annotated[str, typer.Argument(metavar="ID", help="Its id, as the list has it.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write its picture there; a folder will do.", show_default=False),
    ] = None,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show one hard sample: both answers, why it was hard, and which models they were. Writes its picture to a file.

    \b
    Examples:
      halimede hard show 0123456789abcdef0123456789abcdef
      halimede hard show $(halimede hard list digits --limit 1 -o json | jq -r .id) --out hard.png
    """

    async def command() -> None:
        import re

        from halimede.cli.commands import hard_samples_export as room
        from halimede.errors import InvalidFieldError

        id_ = sample.lower()
        if not re.fullmatch("[0-9a-f]{32}", id_):
            raise InvalidFieldError("ID", sample, "write 32 hexadecimal digits, as `halimede hard list` shows them")
        await room.show(o.address(broker, credentials), id_, out)

    run(command)


@hard.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder.", show_default=False)],
    service: Annotated[
        str,
        typer.Option(
            "--service",
            "-s",
            metavar="NAME",
            help="Only of this service.",
            show_default=False,
            autocompletion=completion.services,
        ),
    ] = "",
    by: Annotated[Truth, typer.Option(help="Whose answer is taken for the truth.")] = Truth.CLOUD,
    form: Annotated[
        ExportLayout, typer.Option("--format", help="Class folders, or pictures with annotations.json (boxes).")
    ] = ExportLayout.FOLDER,
    camera: CameraOption = "",
    node: NodeOption = "",
    label: LabelOption = "",
    reason: ReasonOption = "",
    answered_by: AnsweredBy = Answerer.ANY,
    disagree: Disagree = False,
    since: o.Since = "",
    namespace: o.Namespace = "default",
    everywhere: o.AllNamespaces = False,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Bring hard samples here as a data set to train on, with a manifest of which model said what.

    What they are called is what a model said of them, not the truth: look through them first. manifest.jsonl says of
    each file who said what, how sure, and which model's file that was.

    \b
    Examples:
      halimede hard export hard/ -s digits
      halimede hard export hard/ -s digits --by edge --since 7d
      halimede hard export boxes/ -s yard --format coco
    """  # fmt: skip

    async def command() -> int:
        from halimede.cli.commands import hard_samples_export as room

        wanted = _request_of(
            service, namespace, everywhere, camera=camera, node=node, label=label, reason=reason,
            answered_by=answered_by, disagree=disagree, since=since,
        )  # fmt: skip
        return await room.export(o.address(broker, credentials), wanted, folder, by.value, form.value)

    run(command)


def _request_of(
    service: str,
    namespace: str,
    everywhere: bool,
    *,
    answered_by: Answerer,
    since: str,
    limit: int = 256,
    camera: str,
    node: str,
    label: str,
    reason: str,
    disagree: bool,
) -> KeptRequest:
    """Return what is asked for, with all names checked."""
    from halimede.cli.time_args import since as time
    from halimede.messages import KeptRequest
    from halimede.names import check_label, check_name

    if service:
        check_name("SERVICE", service)
    if camera:
        check_label("--camera", camera)
    if node:
        check_name("--node", node)
    first = time(since)
    return KeptRequest(
        namespace=o.namespace_of(namespace, everywhere=everywhere),
        service=service,
        node=node,
        camera=camera,
        label=label[:1024],
        by="" if answered_by is Answerer.ANY else answered_by.value,
        reason=reason[:256],
        disagree=disagree,
        since_ns=max(0, int(first.timestamp() * 1e9)) if first else 0,
        limit=limit,
    )


COMMANDS = ("list", "show", "export")
