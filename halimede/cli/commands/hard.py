"""``halimede hard``: lists, shows, labels and exports the hard samples that edge workers store."""

from __future__ import annotations

import asyncio
import getpass
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from halimede.cli import completion
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.options import Format
from halimede.cli.output import as_json, console, dump, fail, plain, table, warn, writable
from halimede.cli.runner import run
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.hard_samples.client import NAMES, KeptSamples
from halimede.hard_samples.export import SUFFIXES, By, Export, Form, moment
from halimede.hard_samples.export import as_json as answers_of
from halimede.messages import KeptEntry, KeptReply, KeptRequest, PersonLabel
from halimede.names import check_label, check_name

#: titles of the list of samples
COLUMNS = (
    "TIME",
    "SERVICE",
    "CAMERA",
    "FILE",
    "EDGE",
    "SCORE",
    "FINAL",
    "SCORE",
    "BY",
    "LABELS",
    "REASON",
    "OVER CUT",
    "NODE",
    "ID",
)
#: samples of one worker that are downloaded at a time
AT_ONCE = 8
#: the id of a sample
ID = re.compile("[0-9a-f]{32}")


#: whether the mining found a sample hard, and which tier gave the final answer
Stratum = Literal["hard", "easy", "any"]
Answerer = Literal["any", "edge", "cloud"]

# arguments and options of several commands
Service = Annotated[
    str, typer.Argument(metavar="[SERVICE]", help="Only of this service.", autocompletion=completion.services)
]
CameraOption = Annotated[str, typer.Option(metavar="NAME", help="Only of this camera.", show_default=False)]
NodeOption = Annotated[
    str,
    typer.Option(metavar="NAME", help="Only of this node.", show_default=False, autocompletion=completion.nodes),
]
LabelOption = Annotated[
    str, typer.Option(metavar="TEXT", help="Only if a model's answer has this label.", show_default=False)
]
ReasonOption = Annotated[
    str,
    typer.Option(metavar="WORD", help="Only degraded for this reason: no-cloud, deadline, ...", show_default=False),
]
AnsweredBy = Annotated[Answerer, typer.Option("--answered-by", help="Only if the final answer is theirs.")]
StratumOption = Annotated[
    Stratum, typer.Option("--stratum", help="Hard samples, easy ones that were audited (auditShare), or any.")
]
Disagree = Annotated[bool, typer.Option("--disagree", help="Only if the final label differs from the small model's.")]

#: the command with its subcommands
hard = o.group("List, show, label and export the hard samples that edge workers store (keepHardSamples).")


@hard.command(name="list")
def list_(
    service: Service = "",
    camera: CameraOption = "",
    node: NodeOption = "",
    label: LabelOption = "",
    reason: ReasonOption = "",
    answered_by: AnsweredBy = "any",
    disagree: Disagree = False,
    stratum: StratumOption = "hard",
    since: o.Since = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many samples, the newest first.")] = 20,
    namespace: o.Namespace = "default",
    everywhere: o.AllNamespaces = False,
    output: o.LinesOption = "table",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """List hard samples: their time, the answer of each model, the final answer, and the reason.

    \b
    Examples:
      halimede hard list digits
      halimede hard list digits --disagree --since 1d
      halimede hard list digits --stratum easy
      halimede hard list --reason no-cloud -A -o json
    """

    async def command() -> None:
        request = _request_of(
            service, namespace, everywhere, camera=camera, node=node, label=label, reason=reason,
            answered_by=answered_by, disagree=disagree, stratum=stratum, since=since, limit=min(limit, 256),
        )  # fmt: skip
        await show_list(o.address(broker, credentials), request, limit, Format(output))

    run(command)


@hard.command()
def show(
    sample: Annotated[str, typer.Argument(metavar="ID", help="Its id, from `halimede hard list`.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write its picture to this file or folder.", show_default=False),
    ] = None,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show one hard sample: both answers, its hardness, and the models. Writes its picture to a file.

    \b
    Examples:
      halimede hard show 0123456789abcdef0123456789abcdef
      halimede hard show $(halimede hard list digits --limit 1 -o json | jq -r .id) --out hard.png
    """

    async def command() -> None:
        await show_sample(o.address(broker, credentials), _id_of(sample), out)

    run(command)


@hard.command()
def label(
    sample: Annotated[str, typer.Argument(metavar="[ID]", help="Its id, from `halimede hard list`.")] = "",
    text: Annotated[str, typer.Argument(metavar="[LABEL]", help="Its class, as the Model's labels name it.")] = "",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="FOLDER",
            help="Label all pictures of this folder: `hard export` made it, and you moved them to their classes.",
            show_default=False,
        ),
    ] = None,
    person: Annotated[
        str, typer.Option("--by", metavar="NAME", help="Who labels: the user's name if it is not given.")
    ] = "",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Store your label of a hard sample, or of all samples in a folder with a folder for each class.

    Your label replaces an earlier one of yours. A label of a person counts more than the answer of a model. If it
    differs from a sure answer of the big model, training leaves the sample out until a second person confirms it.

    \b
    Examples:
      halimede hard label 0123456789abcdef0123456789abcdef 7
      halimede hard label --folder hard/ --by anna
    """

    async def command() -> int:
        labels = labels_of(folder) if folder else {}
        if folder and (sample or text):
            raise InvalidFieldError("ID", sample, "leave it out: the names of the files in --folder are the ids")
        if not folder:
            if not text:
                raise InvalidFieldError("LABEL", text, "give an ID and a LABEL, or --folder")
            labels = {_id_of(sample): text}
        by = person or getpass.getuser()
        return await label_samples(o.address(broker, credentials), labels, by[:256])

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
    by: Annotated[By, typer.Option(help="Whose answer to use as the label.")] = "cloud",
    form: Annotated[
        Form, typer.Option("--format", help="Class folders, or pictures with annotations.json (for boxes).")
    ] = "folder",
    camera: CameraOption = "",
    node: NodeOption = "",
    label: LabelOption = "",
    reason: ReasonOption = "",
    answered_by: AnsweredBy = "any",
    disagree: Disagree = False,
    stratum: StratumOption = "hard",
    since: o.Since = "",
    namespace: o.Namespace = "default",
    everywhere: o.AllNamespaces = False,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Export hard samples as a dataset for training, with a manifest of each model's answers.

    The labels are answers of a model, not ground truth: check them before you train. manifest.jsonl has each model's
    answer to each picture, its score, and the digest of the model.

    \b
    Examples:
      halimede hard export hard/ -s digits
      halimede hard export hard/ -s digits --by edge --since 7d
      halimede hard export boxes/ -s yard --format coco
    """  # fmt: skip

    async def command() -> int:
        request = _request_of(
            service, namespace, everywhere, camera=camera, node=node, label=label, reason=reason,
            answered_by=answered_by, disagree=disagree, stratum=stratum, since=since,
        )  # fmt: skip
        return await export_samples(o.address(broker, credentials), request, folder, by, form)

    run(command)


def _id_of(sample: str) -> str:
    """Return the id of a sample in lower case. Raises InvalidFieldError for a text that is no id."""
    id_ = sample.lower()
    if not ID.fullmatch(id_):
        raise InvalidFieldError("ID", sample, "write 32 hexadecimal digits, as `halimede hard list` shows them")
    return id_


def labels_of(folder: Path) -> dict[str, str]:
    """Return the class of each sample, by its id, from a folder with class folders whose pictures are named by ids.

    Raises InvalidFieldError if there is no such picture, or one is in two class folders.
    """
    if not folder.is_dir():
        raise InvalidFieldError("--folder", str(folder), "give a folder with a folder for each class")
    labels: dict[str, str] = {}
    for path in sorted(folder.glob("*/*")):
        if not ID.fullmatch(path.stem) or path.suffix not in SUFFIXES.values():
            continue
        if labels.setdefault(path.stem, path.parent.name) != path.parent.name:
            fix = f"it is in the folders {labels[path.stem]} and {path.parent.name}: remove one"
            raise InvalidFieldError("--folder", str(path), fix)
    if not labels:
        fix = "no picture in it is named by the id of a hard sample: make it with `halimede hard export`"
        raise InvalidFieldError("--folder", str(folder), fix)
    return labels


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
    stratum: Stratum,
) -> KeptRequest:
    """Return the request for samples that match these options. Raises InvalidFieldError for an invalid option.

    ``limit``: samples of one page, at most 256 (``PAGE`` of the message). Texts are cut to the message's limits.
    """
    if service:
        check_name("SERVICE", service)
    if camera:
        check_label("--camera", camera)
    if node:
        check_name("--node", node)
    first = o.time_of(since)
    return KeptRequest(
        namespace=o.namespace_of(namespace, everywhere=everywhere),
        service=service,
        node=node,
        camera=camera,
        label=label[:1024],
        by="" if answered_by == "any" else answered_by,
        reason=reason[:256],
        disagree=disagree,
        stratum="" if stratum == "any" else stratum,
        since_ns=max(0, int(first.timestamp() * 1e9)) if first else 0,
        limit=limit,
    )


@asynccontextmanager
async def _connect(broker: BrokerAddress) -> AsyncIterator[KeptSamples]:
    """Yield a connected client that is subscribed to replies."""
    async with Client.to(broker) as client:
        samples = KeptSamples(client.bus)
        await samples.start()
        yield samples


async def show_list(broker: BrokerAddress, request: KeptRequest, limit: int, form: Format) -> None:
    """Print the newest ``limit`` matching samples of all workers together. Raises HalimedeError."""
    async with _connect(broker) as client:
        replies = await client.pages(request)
        entries = [(reply, entry) for reply in replies for entry in await _first(client, reply, request, limit)]
    entries.sort(key=lambda pair: pair[1].kept_ns, reverse=True)
    if form is Format.JSON:
        for reply, entry in entries[:limit]:
            source = {name: getattr(reply, name) for name in NAMES}
            print(as_json({**source, **plain(entry)}), flush=True)
        return
    console().print(table(COLUMNS, [row_of(reply, entry) for reply, entry in entries[:limit]]))
    samples, size = sum(reply.samples for reply in replies), sum(reply.room for reply in replies)
    warn(f"{min(len(entries), limit)} shown; {len(replies)} workers keep {samples} samples in {size / 1e6:.1f} MB")


async def show_sample(broker: BrokerAddress, id_: str, out: Path | None) -> None:
    """Print one sample as JSON; write its picture to the file or into the folder ``out``, if given."""
    async with _connect(broker) as client:
        reply = await client.sample(id_)
    assert reply.sample is not None  # noqa: S101  # a reply without one raises an error
    shown = answers_of(reply)
    if out:
        shown["file"] = str(_write(out, id_ + SUFFIXES[reply.sample.image.form], reply.data))
    dump(shown, Format.JSON)


async def label_samples(broker: BrokerAddress, labels: Mapping[str, str], person: str) -> int:
    """Store the labels that a person gives, each by its sample's id; return the exit code: 1 if one was not stored."""
    failed = 0
    async with _connect(broker) as client:
        for id_, text in labels.items():
            try:
                await client.label(id_, PersonLabel(label=text[:1024], by=person))
            except HalimedeError as error:
                failed += 1
                fail(f"{id_}: {error}")
    console().print(f"{len(labels) - failed} of {len(labels)} labels stored, by {person}")
    return 1 if failed else 0


async def export_samples(broker: BrokerAddress, request: KeptRequest, folder: Path, by: By, form: Form) -> int:
    """Write all matching samples as a data set; return the exit code: 1 if none was written."""
    dataset = Export(folder, by, form)
    async with _connect(broker) as client:
        replies = await client.pages(request)
        try:
            dataset.open()
            for reply in replies:
                await _export_worker(client, reply, request, dataset)
            dataset.close()
        except OSError as error:
            raise HalimedeError(f"{folder} cannot be written: {error.strerror or error}") from error
    for reason, count in dataset.skipped.items():
        warn(f"{count} left out: {reason}")
    written = sum(dataset.written.values())
    console().print(f"{written} samples in {folder}")
    return 0 if written else 1


def _write(out: Path, name: str, data: bytes) -> Path:
    """Write a file, into ``out`` if that is a folder; return its path. Raises InvalidFieldError."""
    path = out / name if out.is_dir() else out
    with writable("--out", path):
        path.write_bytes(data)
    return path


async def _export_worker(client: KeptSamples, reply: KeptReply, request: KeptRequest, dataset: Export) -> None:
    """Write a worker's samples into a data set; samples that it no longer has count as skipped."""
    waiting: list[KeptEntry] = []

    async def flush() -> None:
        answers = await asyncio.gather(*(client.sample(entry.id, reply) for entry in waiting), return_exceptions=True)
        waiting.clear()
        for answer in answers:
            if isinstance(answer, KeptReply):
                dataset.add(answer)
            elif isinstance(answer, HalimedeError):
                dataset.skipped[str(answer)] += 1
            else:
                raise answer

    async for entry in client.entries(reply, request):
        waiting.append(entry)
        if len(waiting) == AT_ONCE:
            await flush()
    await flush()


async def _first(client: KeptSamples, reply: KeptReply, request: KeptRequest, limit: int) -> list[KeptEntry]:
    """Return a worker's newest ``limit`` samples; ``reply`` is its first page."""
    entries: list[KeptEntry] = []
    async for entry in client.entries(reply, request):
        entries.append(entry)
        if len(entries) == limit:
            break
    return entries


def row_of(reply: KeptReply, entry: KeptEntry) -> tuple[str, ...]:
    """Return a row of the list, with the cells of ``COLUMNS``.

    OVER CUT is hardness less cut, because the hardness alone may be negative.
    """
    return (
        moment(entry.kept_ns),
        reply.service,
        entry.camera or "-",
        entry.image.file or "-",
        entry.edge_label or "-",
        _number(entry.edge_score),
        entry.label or "-",
        _number(entry.score),
        entry.by,
        " ".join(person_label.label for person_label in entry.labels) or "-",
        entry.reason or "-",
        _number(None if entry.hardness is None or entry.cut is None else entry.hardness - entry.cut),
        reply.node,
        entry.id,
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
