"""``halimede hard``: the hard samples that edge workers keep, listed, shown and brought here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.output import Format, as_json, console, dump, plain, table, warn
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.hard_samples.client import KeptSamples
from halimede.hard_samples.export import SUFFIXES, By, Export, Form, moment
from halimede.hard_samples.export import as_json as told_of
from halimede.messages import KeptEntry, KeptReply, KeptRequest

COLUMNS = ("TIME", "SERVICE", "CAMERA", "EDGE", "SCORE", "FINAL", "SCORE", "BY", "REASON", "HARDNESS", "NODE", "ID")
#: samples of one worker that are brought here at a time
AT_ONCE = 8


@asynccontextmanager
async def asking(broker: BrokerAddress) -> AsyncIterator[KeptSamples]:
    """Connect, and listen for answers."""
    async with Client.to(broker) as client:
        kept = KeptSamples(client.bus)
        await kept.start()
        yield kept


async def show_list(broker: BrokerAddress, wanted: KeptRequest, limit: int, form: Format) -> None:
    """List the newest samples that fit, of all workers together."""
    async with asking(broker) as kept:
        replies = await kept.pages(wanted)
        found = [(reply, entry) for reply in replies for entry in await _first(kept, reply, wanted, limit)]
    found.sort(key=lambda pair: pair[1].kept_ns, reverse=True)
    if form is Format.JSON:
        for reply, entry in found[:limit]:
            told = {"namespace": reply.namespace, "service": reply.service, "worker": reply.worker, "node": reply.node}
            print(as_json({**told, **plain(entry)}), flush=True)
        return
    console().print(table(COLUMNS, [_row(reply, entry) for reply, entry in found[:limit]]))
    samples, room = sum(reply.samples for reply in replies), sum(reply.room for reply in replies)
    warn(f"{min(len(found), limit)} shown; {len(replies)} workers keep {samples} samples in {room / 1e6:.1f} MB")


async def show(broker: BrokerAddress, id_: str, out: Path | None) -> None:
    """Show what is known of one sample as JSON, and write its picture to a file or into a folder."""
    async with asking(broker) as kept:
        reply = await kept.sample(id_)
    assert reply.sample is not None  # noqa: S101  # an answer without one is an error
    shown = told_of(reply)
    if out:
        shown["file"] = str(_write(out, id_ + SUFFIXES[reply.sample.image.form], reply.data))
    dump(shown, Format.JSON)


async def export(broker: BrokerAddress, wanted: KeptRequest, folder: Path, by: By, form: Form) -> int:
    """Write all samples that fit as a data set; return the exit code: 1 when there is none of them."""
    made = Export(folder, by, form)
    async with asking(broker) as kept:
        replies = await kept.pages(wanted)
        try:
            made.open()
            for reply in replies:
                await _bring(kept, reply, wanted, made)
            made.close()
        except OSError as error:
            raise HalimedeError(f"{folder} cannot be written: {error.strerror or error}") from error
    for reason, count in made.left_out.items():
        warn(f"{count} left out: {reason}")
    written = sum(made.written.values())
    console().print(f"{written} samples in {folder}")
    return 0 if written else 1


def _write(out: Path, name: str, data: bytes) -> Path:
    path = out / name if out.is_dir() else out
    try:
        path.write_bytes(data)
    except OSError as error:
        raise InvalidFieldError("--out", str(path), f"it cannot be written: {error.strerror}") from error
    return path


async def _bring(kept: KeptSamples, reply: KeptReply, wanted: KeptRequest, made: Export) -> None:
    """Write a worker's samples. What it no longer gives is left out."""
    waiting: list[KeptEntry] = []

    async def flush() -> None:
        answers = await asyncio.gather(*(kept.sample(entry.id, reply) for entry in waiting), return_exceptions=True)
        waiting.clear()
        for each in answers:
            if isinstance(each, KeptReply):
                made.add(each)
            elif isinstance(each, HalimedeError):
                made.left_out[str(each)] += 1
            else:
                raise each

    async for entry in kept.entries(reply, wanted):
        waiting.append(entry)
        if len(waiting) == AT_ONCE:
            await flush()
    await flush()


async def _first(kept: KeptSamples, reply: KeptReply, wanted: KeptRequest, limit: int) -> list[KeptEntry]:
    found: list[KeptEntry] = []
    async for entry in kept.entries(reply, wanted):
        found.append(entry)
        if len(found) == limit:
            break
    return found


def _row(reply: KeptReply, entry: KeptEntry) -> tuple[str, ...]:
    return (
        moment(entry.kept_ns),
        reply.service,
        entry.camera or "-",
        entry.edge_label or "-",
        _number(entry.edge_score),
        entry.label or "-",
        _number(entry.score),
        entry.by,
        entry.reason or "-",
        _number(entry.hardness),
        reply.node,
        entry.id,
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
