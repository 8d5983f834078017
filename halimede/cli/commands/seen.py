"""``halimede seen``: shows where a service with re-identification saw an object (an identity).

It requests the sightings from the worker that runs the service's joint, in which the findings of all cameras come
together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer
from rich.table import Table

from halimede import codec, topics
from halimede.bus.port import Bus
from halimede.bus.rpc import RpcClient
from halimede.cli import images, manifests
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client, UnreachableError
from halimede.cli.follow import follow
from halimede.cli.options import Format
from halimede.cli.output import clean_cell, console, dump, plain, table, warn
from halimede.cli.runner import run
from halimede.errors import HalimedeError, InvalidFieldError, NoSubscriberError
from halimede.messages import Identity, IdentityAnswer, IdentityQuery, Sighting, Track
from halimede.names import check_label, check_name

#: seconds for the answer
ANSWER_S = 10.0
#: most characters of an identity
MOST_ID = 64
#: titles of the tables of sightings and of identities
SIGHTINGS = ("TIME", "CAMERA", "BOX", "ALIKE", "NODE", "FRAME")
PEOPLE = ("IDENTITY", "SEEN", "CAMERAS", "FIRST", "LAST", "LAST CAMERA", "ALIKE")


def seen(
    service: o.ServiceArgument,
    identity: Annotated[
        str, typer.Argument(metavar="[IDENTITY]", help="The identity. Default: all.", show_default=False)
    ] = "",
    picture: Annotated[
        str,
        typer.Option(metavar="FILE", help="Find what looks like this JPEG or PNG of one object.", show_default=False),
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            metavar="MANIFEST",
            help="With --picture: the manifest of the Model that the service's edge workers use, next to its file.",
            show_default=False,
        ),
    ] = "",
    camera: Annotated[str, typer.Option(metavar="NAME", help="Only of this camera.", show_default=False)] = "",
    since: o.Since = "",
    until: Annotated[
        str, typer.Option(metavar="TIME", help="Only until this time, in the format of --since.", show_default=False)
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many sightings, or identities.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new sightings until Ctrl-C.")] = False,
    namespace: o.Namespace = "default",
    output: o.LinesOption = "table",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show the sightings of an identity, in a service with re-identification. Times are those of the cameras.

    \b
    Examples:
      halimede seen lobby
      halimede seen lobby 8f2b1c7d90e4a35f --since 1h
      halimede seen lobby --camera yard --since 10m -o json
      halimede seen lobby --picture who.jpg --model embedder.yaml
      halimede seen lobby -f
    """
    if bool(picture) != bool(model):
        raise typer.BadParameter("give --picture and --model together: features are only comparable within one model")
    if picture and identity:
        raise typer.BadParameter("give an IDENTITY or a --picture")
    if follow and (picture or since or until):
        raise typer.BadParameter("-f shows new sightings: use it only with IDENTITY and --camera")

    async def command() -> None:
        check_name("SERVICE", service)
        if camera:
            check_label("--camera", camera)
        where, form = ServiceQuery(o.namespace_of(namespace), service), Format(output)
        if follow:
            await follow_tracks(o.address(broker, credentials), where, identity, camera, form)
            return
        first, last = o.time_of(since), o.time_of(until, option="--until")
        query = IdentityQuery(
            identity=identity,
            embedding=features(picture, model) if picture else b"",
            camera=camera,
            since=first.timestamp() if first else 0.0,
            until=last.timestamp() if last else 0.0,
            limit=limit,
        )
        await show_sightings(o.address(broker, credentials), where, query, form)

    run(command)


@dataclass(frozen=True, slots=True)
class ServiceQuery:
    """The service that a query is for."""

    namespace: str
    name: str


async def show_sightings(broker: BrokerAddress, service: ServiceQuery, query: IdentityQuery, form: Format) -> None:
    """Send a query and print the answer. Raises HalimedeError without a reply, or if the identity is unknown."""
    if len(query.identity) > MOST_ID:
        raise InvalidFieldError("IDENTITY", query.identity, f"an identity has at most {MOST_ID} characters")
    async with Client.to(broker) as client:
        answer = await ask(client.bus, service, query)
    if answer.error:
        raise HalimedeError(f"{service.name} could not answer: {answer.error}")
    if query.identity and not answer.identities:
        raise HalimedeError(
            f"{service.name} has no identity {query.identity}: it was never seen, or it expired (parameter ttl)"
        )
    if form is Format.JSON:
        dump(plain(answer), form)
        return
    out = console()
    out.print(people(answer.identities))
    if query.identity:
        out.print()
        out.print(sightings(answer.identities[0].sightings))


async def ask(bus: Bus, service: ServiceQuery, query: IdentityQuery) -> IdentityAnswer:
    """Return a service's answer to a query. Raises UnreachableError if no worker answers within ``ANSWER_S``."""
    names = {"ns": service.namespace, "service": service.name, "client": bus.client_id}
    requests: RpcClient[IdentityAnswer] = RpcClient(bus, topics.IDENTITY_ANSWER.at(**names))
    await requests.start()
    try:
        return (await requests.ask(topics.IDENTITY_QUERY.at(**names), query, timeout_s=ANSWER_S)).body
    except (NoSubscriberError, TimeoutError) as error:
        raise UnreachableError(
            f"no worker that stores identities replies for service {service.name} in namespace {service.namespace}: "
            "see `halimede get mei`, and check that its application is reid"
        ) from error


async def follow_tracks(broker: BrokerAddress, service: ServiceQuery, identity: str, camera: str, form: Format) -> None:
    """Print sightings as they happen, until Ctrl-C; an empty identity or camera means all of them."""
    filter_ = topics.TRACK.filter(ns=service.namespace, service=service.name)
    if form is not Format.JSON:
        print(f"{'TIME':<23}  {'IDENTITY':<16}  {'CAMERA':<16}  {'ALIKE':>5}  BOX", flush=True)
    async for _, track in follow(broker, filter_):
        if track is None or identity not in {"", track.identity} or camera not in {"", track.sighting.camera}:
            continue
        print(codec.encode(topics.TRACK, track).decode() if form is Format.JSON else line(track), flush=True)


def features(picture: str, manifest: str) -> bytes:
    """Return the features of a picture file (float16, little endian) by the one Model of a manifest.

    Raises HalimedeError.
    """
    try:
        import numpy as np

        from halimede.frames.encodings import decode
        from halimede.inference import open_model, pack
        from halimede.messages import Frame
        from halimede.multiedge.stages.model_stages import vector_of
    except ImportError as error:
        raise HalimedeError(f"--picture needs the package {error.name}: install halimede[worker]") from error

    models = [item.resource for item in manifests.load([manifest]) if item.resource.kind.plural == "models"]
    if len(models) != 1:
        raise InvalidFieldError("--model", manifest, f"give a manifest with one Model: this one has {len(models)}")
    url = urlsplit(models[0].spec.url)
    if url.scheme not in {"", "file"}:
        raise InvalidFieldError("--model", models[0].spec.url, "download the model, and write its path as spec.url")
    (picture_file,), _ = images.find([picture])
    images.check_sizes([picture_file], codec.MAX_BYTES)
    frame = Frame(id=bytes(16), encoding=picture_file.encoding, data=memoryview(picture_file.path.read_bytes()))
    model = open_model(Path(unquote(url.path)), models[0].spec)
    try:
        (prediction,) = model.predict([model.prepare(np.asarray(decode(frame)))])
        vector = vector_of(prediction)
    finally:
        model.close()
    if not vector.any():
        raise HalimedeError(f"{picture}: the model returned no features: give a picture of one object")
    return pack(vector)


def people(identities: list[Identity]) -> Table:
    """Return identities as a table; warn if there is none."""
    rows = [
        (
            who.identity,
            str(who.count),
            ",".join(who.cameras) or "-",
            moment(who.first),
            moment(who.last),
            who.sightings[0].camera if who.sightings else "-",
            "-" if who.similarity is None else f"{who.similarity:.3f}",
        )
        for who in identities
    ]
    if not rows:
        warn("no sightings")
    return table(PEOPLE, rows)


def sightings(rows: list[Sighting]) -> Table:
    """Return sightings as a table."""
    return table(
        SIGHTINGS, [(moment(s.time), s.camera, box(s), f"{s.similarity:.3f}", s.node or "-", s.frame) for s in rows]
    )


def line(track: Track) -> str:
    """Return a track as a line of the table that is followed."""
    at = track.sighting
    note = "  new" if track.new else ""
    return clean_cell(
        f"{moment(at.time):<23}  {track.identity:<16}  {at.camera:<16}  {at.similarity:>5.3f}  {box(at)}{note}"
    )


def box(at: Sighting) -> str:
    """Return the corners of a sighting's box in whole pixels, as text."""
    return ",".join(f"{value:.0f}" for value in (at.box.x1, at.box.y1, at.box.x2, at.box.y2))


def moment(seconds: float) -> str:
    """Return seconds since 1970 as readable text, in UTC; ``-`` if no calendar has that time, ``?`` if not finite."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
    except (ValueError, OverflowError, OSError):
        return "-" if math.isfinite(seconds) else "?"
