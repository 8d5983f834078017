"""The parameters of fusion: names, bounds, and errors."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from halimede.errors import InvalidFieldError
from halimede.multiedge.fusion.rules import RULES
from halimede.multiedge.stage import Parameters

DAY_MS = 86_400_000.0
#: of each camera: what it is called, of all in JSON or ``<name>.<camera>`` of one, and its bounds
BY_CAMERA: Mapping[str, tuple[str, float, float]] = {
    "weight": ("weights", 0.0, 100.0),
    "temperature": ("temperatures", 0.05, 20.0),
    "offset": ("offsets", -DAY_MS, DAY_MS),
}
OTHERS = ("rule", "windowMs", "waitMs", "absentMs", "maxOpen", "share")
AT = "spec.application.parameters"


@dataclass(frozen=True, slots=True)
class FusionSettings:
    """What fusion goes by.

    Attributes:
        rule: how findings become one answer.
        window_ms: how far apart the pictures of one instant may have been taken.
        wait_ms: how long an instant waits for cameras that have not come.
        absent_ms: a camera that has been silent for so long is not waited for.
        max_open: so many instants wait at most; the oldest is answered when there are more.
        share: whether peers may ask their model about a frame.
        weights: by camera; 1 where nothing is said.
        temperatures: likewise: over 1 makes a source less sure.
        offsets: milliseconds that a camera's clock is ahead of the others.

    """

    rule: str = "product"
    window_ms: float = 50.0
    wait_ms: float = 500.0
    absent_ms: float = 5000.0
    max_open: int = 256
    share: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)
    temperatures: Mapping[str, float] = field(default_factory=dict)
    offsets: Mapping[str, float] = field(default_factory=dict)

    def check_cameras(self, known: Collection[str]) -> None:
        """Raise InvalidFieldError for a camera that the service does not have."""
        for kind, (plural, _, _) in BY_CAMERA.items():
            for name in getattr(self, plural):
                if name not in known:
                    fix = f"use the name of one of the service's cameras: {', '.join(sorted(known))}"
                    raise InvalidFieldError(f"{AT}.{kind}.{name}", name, fix)


def parse(parameters: Parameters) -> FusionSettings:
    """Read the parameters. Raises InvalidFieldError, also for one that fusion does not know."""
    for name in parameters:
        kind, dot, camera = name.partition(".")
        plurals = {plural for plural, _, _ in BY_CAMERA.values()}
        if name not in OTHERS and name not in plurals and not (kind in BY_CAMERA and dot and camera):
            known = ", ".join([*OTHERS, *(f"{kind}.<camera>" for kind in BY_CAMERA), *sorted(plurals)])
            raise InvalidFieldError(f"{AT}.{name}", parameters[name], f"fusion knows {known}")
    usual = FusionSettings()
    return FusionSettings(
        rule=parameters.text("rule", usual.rule, choices=tuple(RULES)),
        window_ms=parameters.number("windowMs", usual.window_ms, least=0, most=60_000),
        wait_ms=parameters.number("waitMs", usual.wait_ms, least=0, most=60_000),
        absent_ms=parameters.number("absentMs", usual.absent_ms, least=0, most=DAY_MS),
        max_open=int(parameters.number("maxOpen", usual.max_open, least=1, most=4096)),
        share=parameters.flag("share", default=usual.share),
        **{plural: _of_cameras(parameters, kind) for kind, (plural, _, _) in BY_CAMERA.items()},
    )


def _of_cameras(parameters: Parameters, kind: str) -> dict[str, float]:
    """Read one kind of number of all cameras: those of the JSON, then the single ones, which win."""
    plural, least, most = BY_CAMERA[kind]
    texts = {f"{kind}.{name}": str(value) for name, value in _object(parameters, plural).items()}
    texts |= {name: parameters[name] for name in parameters if name.startswith(f"{kind}.")}
    given = Parameters(texts)
    return {name.partition(".")[2]: given.number(name, 0.0, least=least, most=most) for name in given}


def _object(parameters: Parameters, name: str) -> Mapping[str, object]:
    if name not in parameters:
        return {}
    try:
        read = json.loads(parameters[name])
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise InvalidFieldError(f"{AT}.{name}", parameters[name], 'write JSON: {"<camera>": <number>}')
    return read
