"""``halimede seen``: where somebody was seen, asked of the worker in which a service's findings come together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rich.table import Table

from halimede import codec, topics
from halimede.bus.port import Bus
from halimede.bus.rpc import RpcClient
from halimede.cli import images, manifests
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client, UnreachableError
from halimede.cli.follow import follow
from halimede.cli.output import Format, clean, console, dump, plain, table, warn
from halimede.errors import HalimedeError, InvalidFieldError, NoSubscriberError
from halimede.messages import Identity, IdentityAnswer, IdentityQuery, Sighting, Track

ANSWER_S = 10.0
#: longer ones are no identities (messages.multiedge)
MOST_ID = 64
SIGHTINGS = ("TIME", "CAMERA", "BOX", "ALIKE", "NODE", "FRAME")
PEOPLE = ("IDENTITY", "SEEN", "CAMERAS", "FIRST", "LAST", "LAST CAMERA", "ALIKE")


@dataclass(frozen=True, slots=True)
class ServiceQuery:
    """Which service is asked."""

    namespace: str
    name: str


async def seen(broker: BrokerAddress, service: ServiceQuery, query: IdentityQuery, form: Format) -> None:
    """Ask, and show the answer. Raises HalimedeError when nobody answers, or nobody is known by that identity."""
    if len(query.identity) > MOST_ID:
        raise InvalidFieldError("IDENTITY", query.identity, f"an identity has {MOST_ID} characters at most")
    async with Client.to(broker) as client:
        answer = await ask(client.bus, service, query)
    if answer.error:
        raise HalimedeError(f"{service.name} could not answer: {answer.error}")
    if query.identity and not answer.identities:
        raise HalimedeError(
            f"nobody in {service.name} is known as {query.identity}: it was never seen, or is forgotten (parameter ttl)"
        )
    if form is Format.JSON:
        dump(plain(answer), form)
        return
    out = console()
    if not query.identity:
        out.print(people(answer.identities))
    else:
        out.print(people(answer.identities))
        out.print()
        out.print(sightings(answer.identities[0].sightings))


async def ask(bus: Bus, service: ServiceQuery, query: IdentityQuery) -> IdentityAnswer:
    """Ask a service's gallery. Raises UnreachableError."""
    names = {"ns": service.namespace, "service": service.name, "client": bus.client_id}
    requests: RpcClient[IdentityAnswer] = RpcClient(bus, topics.IDENTITY_ANSWER.at(**names))
    await requests.start()
    try:
        return (await requests.ask(topics.IDENTITY_QUERY.at(**names), query, timeout_s=ANSWER_S)).body
    except (NoSubscriberError, TimeoutError) as error:
        raise UnreachableError(
            f"nobody who keeps identities answers for service {service.name} in namespace {service.namespace}: "
            "see `halimede get mei`, and that its application is reid"
        ) from error


async def follow_tracks(broker: BrokerAddress, service: ServiceQuery, identity: str, camera: str, form: Format) -> None:
    """Show who is seen, until Ctrl-C."""
    filter_ = topics.TRACK.filter(ns=service.namespace, service=service.name)
    if form is not Format.JSON:
        print(f"{'TIME':<23}  {'IDENTITY':<16}  {'CAMERA':<16}  {'ALIKE':>5}  BOX", flush=True)
    async for _, track in follow(broker, filter_):
        if track is None or identity not in {"", track.identity} or camera not in {"", track.sighting.camera}:
            continue
        print(codec.encode(topics.TRACK, track).decode() if form is Format.JSON else line(track), flush=True)


def features(picture: str, manifest: str) -> bytes:
    """Return the features of a picture by the model of a manifest. Raises HalimedeError."""
    try:
        import numpy as np

        from halimede.frames.encodings import decode
        from halimede.inference import open_model, pack
        from halimede.messages import Frame
        from halimede.multiedge.stages.embed import vector_of
    except ImportError as error:
        raise HalimedeError(f"--picture needs the package {error.name}: install halimede[worker]") from error

    models = [found.resource for found in manifests.load([manifest]) if found.resource.kind.plural == "models"]
    if len(models) != 1:
        raise InvalidFieldError("--model", manifest, f"name a manifest with one Model: this one has {len(models)}")
    url = urlsplit(models[0].spec.url)
    if url.scheme not in {"", "file"}:
        raise InvalidFieldError("--model", models[0].spec.url, "download the model, and write its path as spec.url")
    (found,), _ = images.find([picture], codec.MAX_BYTES)
    frame = Frame(id=bytes(16), encoding=found.encoding, data=memoryview(found.path.read_bytes()))
    model = open_model(Path(unquote(url.path)), models[0].spec)
    try:
        (said,) = model.predict([model.prepare(np.asarray(decode(frame)))])
        vector = vector_of(said)
    finally:
        model.close()
    if not vector.any():
        raise HalimedeError(f"{picture}: the model says nothing of it: give a picture of one object")
    return pack(vector)


def people(identities: list[Identity]) -> Table:
    """Return identities as a table."""
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
        warn("nobody was seen")
    return table(PEOPLE, rows)


def sightings(found: list[Sighting]) -> Table:
    """Return sightings as a table."""
    return table(
        SIGHTINGS,
        [(moment(s.time), s.camera, box(s), f"{s.similarity:.3f}", s.node or "-", s.frame) for s in found],
    )


def line(track: Track) -> str:
    """Return a track as a line of the table that is followed."""
    at = track.sighting
    note = "  new" if track.new else ""
    return clean(
        f"{moment(at.time):<23}  {track.identity:<16}  {at.camera:<16}  {at.similarity:>5.3f}  {box(at)}{note}"
    )


def box(at: Sighting) -> str:
    """Return the corners of a box in whole pixels."""
    return ",".join(f"{value:.0f}" for value in (at.box.x1, at.box.y1, at.box.x2, at.box.y2))


def moment(seconds: float) -> str:
    """Return a time of a camera's clock as people read it; ``-`` for one that no calendar has."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
    except (ValueError, OverflowError, OSError):
        return "-" if math.isfinite(seconds) else "?"
