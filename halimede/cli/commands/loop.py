"""``halimede loop``: shows the learning loop of a service and its last rounds; ``--start`` begins a round.

The loop is that of the TrainingModel whose ``spec.loop`` names the service. Its state is in that resource's status.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer

from halimede import topics
from halimede.api.trainingmodel import PLURAL
from halimede.cli import completion
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import ApiRefusedError, Client
from halimede.cli.commands import rollback
from halimede.cli.follow import follow
from halimede.cli.options import Format
from halimede.cli.output import as_json, console, dump, fail, table, warn
from halimede.cli.runner import run
from halimede.errors import HalimedeError
from halimede.learning_loop.states import LoopState, RoundRecord
from halimede.messages import ResourceBody
from halimede.names import Key, check_name
from halimede.stats.agreement import Estimate

#: titles of the table of rounds
HISTORY = ("ROUND", "ENDED", "TRIGGER", "VERSION", "OUTCOME", "REASON", "GAIN", "BEFORE", "AFTER")
#: the error if a service has no loop
NO_LOOP = (
    "no TrainingModel has a loop for service {service} in namespace {namespace}: apply one whose "
    "spec.loop.service.name is {service} (docs/learning-loop.md)"
)


def loop(
    service: Annotated[
        str,
        typer.Argument(metavar="SERVICE", help="A service with a loop.", autocompletion=completion.services),
    ],
    start: Annotated[bool, typer.Option("--start", help="Begin a round now.")] = False,
    follow_: Annotated[bool, typer.Option("--follow", "-f", help="Show each change, until Ctrl-C.")] = False,
    as_document: Annotated[bool, typer.Option("--json", help="Print the state as JSON.")] = False,
    namespace: o.Namespace = "default",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show the learning loop of a service: its state, versions, counts and last rounds; or begin a round.

    \b
    Examples:
      halimede loop digits
      halimede loop digits --start --follow
      halimede loop digits --json
    """

    async def command() -> int:
        check_name("SERVICE", service)
        address = o.address(broker, credentials)
        name = o.namespace_of(namespace)
        if start and (code := await begin(address, service, name, quiet=as_document)):
            return code
        if follow_:
            await watch(address, service, name, as_document=as_document)
        elif not start or as_document:
            await show(address, service, name, as_document=as_document)
        return 0

    run(command)


async def find(client: Client, service: str, namespace: str) -> ResourceBody:
    """Return the TrainingModel with the loop of a service. Raises HalimedeError if there is none, or several."""
    bodies, _ = await client.list(PLURAL, namespace)
    loops = [body for body in bodies if _service_of(body) == service]
    if not loops:
        raise HalimedeError(NO_LOOP.format(service=service, namespace=namespace))
    if len(loops) > 1:
        names = ", ".join(str(body["metadata"]["name"]) for body in loops)
        raise HalimedeError(f"TrainingModels {names} have a loop for service {service}: delete all but one")
    return loops[0]


async def begin(broker: BrokerAddress, service: str, namespace: str, *, quiet: bool = False) -> int:
    """Begin a round: write the number of a new command into the spec. Returns the exit code: 1 if GM refused that.

    On Kubernetes GM refuses it, and this prints the command that does so. ``quiet``: print nothing if it succeeds.
    """
    async with Client.to(broker) as client:
        body = await find(client, service, namespace)
        number = next_command(body)
        change = {"loop": {**body["spec"]["loop"], "command": number}}
        try:
            await client.apply({**body, "spec": {**body["spec"], **change}})
        except ApiRefusedError as error:
            if error.reason != "NotAllowed":
                fail(str(error))
                return 1
            warn("this system runs on Kubernetes, where kubectl changes resources: run")
            print(kubectl(body, number))
            return 1
    if not quiet:
        when = "" if state_of(body).state == "Collecting" else " after the present one"
        console().print(f"{body['metadata']['name']}: command {number} is given: a round begins{when}", style="green")
    return 0


def next_command(body: ResourceBody) -> int:
    """Return the number of the next command: above that in the spec, and above the last one that began a round.

    The spec may have a lower number than that of the round, from a manifest that was applied again.
    Raises HalimedeError if the state of the loop cannot be read.
    """
    return max(int(body["spec"]["loop"].get("command") or 0), state_of(body).served) + 1


def kubectl(body: ResourceBody, number: int) -> str:
    """Return the shell command that begins a round on Kubernetes; ``number`` is that of the command to the loop."""
    key = Key(PLURAL, body["metadata"]["namespace"], body["metadata"]["name"])
    return rollback.kubectl(body, key, {"loop": {"command": number}})


async def show(broker: BrokerAddress, service: str, namespace: str, *, as_document: bool) -> None:
    """Print the state of the loop of a service, as text or JSON. Raises HalimedeError."""
    async with Client.to(broker) as client:
        body = await find(client, service, namespace)
        services, _ = await client.list("jointinferenceservices", namespace)
    if as_document:
        dump(document(body), Format.JSON)
        return
    # a loop whose service was deleted is shown, too
    statuses = (entry.get("status") or {} for entry in services if entry["metadata"]["name"] == service)
    metrics = next(statuses, {})
    out, state = console(), state_of(body)
    for line in lines(body, state, {entry["key"]: entry["value"] for entry in metrics.get("metrics", [])}):
        out.print(line)
    if state.history:
        out.print(table(HISTORY, [row(record) for record in reversed(state.history)]))


async def watch(broker: BrokerAddress, service: str, namespace: str, *, as_document: bool) -> None:
    """Print each change of a loop on a line, until Ctrl-C or the end of its TrainingModel. Raises HalimedeError."""
    async with Client.to(broker) as client:
        body = await find(client, service, namespace)
    last = ""
    names = {"ns": namespace, "plural": PLURAL, "name": body["metadata"]["name"]}
    async for _, status in follow(broker, topics.STATUS.filter(**names)):
        if status is None:
            warn("the TrainingModel was deleted")
            return
        changed = {**body, "status": msgspec.to_builtins(status.status)}
        text = as_json(document(changed)) if as_document else line(changed)
        if text != last:
            last = text
            print(text, flush=True)


def document(body: ResourceBody) -> dict[str, Any]:
    """Return the state of a loop as plain data: as in the status, with the resource's name and phase."""
    status = body.get("status") or {}
    names = {"name": body["metadata"]["name"], "phase": status.get("phase", "Pending")}
    return {**names, **(status.get("loop") or {})}


def state_of(body: ResourceBody) -> LoopState:
    """Return the state of a loop. Raises HalimedeError if it cannot be read."""
    try:
        return msgspec.convert((body.get("status") or {}).get("loop") or {}, LoopState)
    except msgspec.ValidationError as error:
        raise HalimedeError(f"the state of the loop cannot be read: {error}: install a newer halimede") from error


def line(body: ResourceBody) -> str:
    """Return the state of a loop as one line: round, state, and reason."""
    state, status = state_of(body), body.get("status") or {}
    condition = (status.get("conditions") or [{}])[-1]
    why = ": ".join(text for text in (condition.get("reason", ""), condition.get("message", "")) if text)
    return f"round {state.round} {status.get('phase', 'Pending')}{why and f' {why}'}"


def lines(body: ResourceBody, state: LoopState, counts: dict[str, str]) -> Iterator[str]:
    """Yield the state of a loop as lines; ``counts`` are the service's metrics, empty without them."""
    status = body.get("status") or {}
    condition = (status.get("conditions") or [{}])[-1]
    model = body["spec"]["model"]["name"]
    yield f"Loop:       {body['metadata']['name']} of service {_service_of(body)}, for Model {model}"
    yield f"State:      {status.get('phase', 'Pending')} since {_moment(state.since_s)}"
    if condition.get("reason"):
        yield f"Reason:     {condition['reason']}: {condition.get('message', '')}".rstrip(": ")
    yield f"Round:      {state.round}" + (f", by {state.trigger}" if state.trigger else "")
    if state.base:
        yield f"Version:    {state.base}" + (f", candidate {state.version}" if state.version else "")
    yield f"Rounds:     {state.rolled_out} rolled out, {state.refused} candidates refused"
    if counts:
        yield f"Labelled:   {counts.get('labelled', '0')} samples, {counts.get('labelledEasy', '0')} of them easy"
        tried = f"{counts.get('canaryAnswered', '0')} samples, {counts.get('canaryAudited', '0')} audited"
        yield f"Canaries:   {tried}, {counts.get('canaryAgreed', '0')} agreed"


def row(record: RoundRecord) -> tuple[str, ...]:
    """Return a round as a row, with the cells of ``HISTORY``."""
    return (
        str(record.round),
        _moment(record.ended_s),
        record.trigger,
        record.version or "-",
        record.outcome,
        record.reason,
        _estimate(record.gain, signed=True),
        _estimate(record.before),
        _estimate(record.after),
    )


def _estimate(estimate: Estimate | None, *, signed: bool = False) -> str:
    """Return an estimate with its interval as text; ``-`` without one. ``signed``: positive ones have a sign, too."""
    if estimate is None:
        return "-"
    form = "+.3f" if signed else ".3f"
    return f"{estimate.value:{form}} ({estimate.low:{form}} to {estimate.high:{form}})"


def _moment(seconds: float) -> str:
    """Return seconds since 1970 as a time in UTC; ``-`` for 0."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds").removesuffix("+00:00") if seconds else "-"


def _service_of(body: ResourceBody) -> str:
    """Return the name of the service of a TrainingModel's loop; empty: it has no loop."""
    service = ((body.get("spec") or {}).get("loop") or {}).get("service") or {}
    return str(service.get("name", ""))
