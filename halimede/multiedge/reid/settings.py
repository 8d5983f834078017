"""The parameters of re-identification, as the matcher reads them from the application's parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

from halimede.errors import InvalidFieldError
from halimede.multiedge.reid.identity_eviction import EvictionLimits
from halimede.multiedge.stage import Parameters

#: names of the joint's parameters; stages have further ones
PARAMETERS = (
    "threshold", "learn", "trackMs", "speed", "travelMs", "features", "identities", "vectors", "ttl", "confirm",
    "passing", "novelty", "sightings", "every",
)  # fmt: skip
#: most vectors in memory
MOST_VECTORS = 500_000
#: the longest time that a parameter may set
YEAR_S = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class ReidSettings:
    """The parameters of a matcher.

    Attributes:
        threshold: cosine similarity (0..1) from which two pictures show the same object.
        learn: cosine similarity (0..1) from which the vector of a picture may be stored for its identity.
        track_s: seconds for which an object is expected along its trajectory, where a lower similarity is enough.
        speed: the most times its own size that an object moves in a second; 0: no limit.
        travel_s: the least seconds from one camera to another; 0: the cameras' views overlap.
        features: a name of the feature space; another name begins a new gallery.
        limits: numbers and times at which the gallery deletes identities.

    """

    threshold: float = 0.7
    learn: float = 0.75
    track_s: float = 1.0
    speed: float = 20.0
    travel_s: float = 0.0
    features: str = ""
    limits: EvictionLimits = field(default_factory=EvictionLimits)


def parse(parameters: Parameters) -> ReidSettings:
    """Return the parameters of an application. Raises InvalidFieldError for invalid ones; ignores unknown ones.

    Without the parameter ``learn`` its default is used, or ``threshold`` if that is higher.
    """
    usual, limits = ReidSettings(), EvictionLimits()
    threshold = parameters.number("threshold", usual.threshold, least=0, most=1)
    chosen = EvictionLimits(
        identities=int(parameters.number("identities", limits.identities, least=100, most=100_000)),
        vectors=int(parameters.number("vectors", limits.vectors, least=1, most=32)),
        ttl_s=parameters.number("ttl", limits.ttl_s, least=1, most=YEAR_S),
        confirm=int(parameters.number("confirm", limits.confirm, least=1, most=100)),
        passing_s=parameters.number("passing", limits.passing_s, least=1, most=YEAR_S),
        novelty=parameters.number("novelty", limits.novelty, least=0, most=1),
        sightings=int(parameters.number("sightings", limits.sightings, least=1000, most=5_000_000)),
        every_s=parameters.number("every", limits.every_s, least=0, most=3600),
    )
    if chosen.identities * chosen.vectors > MOST_VECTORS:
        fix = f"identities times vectors must be {MOST_VECTORS} at most: they are held in memory"
        raise InvalidFieldError("spec.application.parameters.vectors", chosen.vectors, fix)
    return ReidSettings(
        threshold=threshold,
        learn=parameters.number("learn", max(usual.learn, threshold), least=0, most=1),
        track_s=parameters.number("trackMs", usual.track_s * 1000, least=0, most=60_000) / 1000,
        speed=parameters.number("speed", usual.speed, least=0, most=10_000),
        travel_s=parameters.number("travelMs", 0, least=0, most=86_400_000) / 1000,
        features=parameters.text("features", usual.features)[:256],
        limits=chosen,
    )
