"""Which share of samples can be back in time, by the measured time of models and link. Pure."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from halimede.calibration.temperature import Vector

#: of the samples that go up, so many are to be back in time
IN_TIME = 0.95
STEPS = 200


class UploadPath(Struct, kw_only=True):
    """What a sample passes that goes up. Times are milliseconds; ``per_second``: samples that the edge takes, 0: few.

    ``link_ms`` is a round trip without data, ``link_kbps`` the speed in kbit/s.
    """

    edge_ms: float = 0.0
    cloud_ms: float = 0.0
    link_ms: float
    link_kbps: float
    per_second: float = 0.0


def share_in_time(sizes: Vector, way: UploadPath, deadline_ms: float) -> float:
    """Return the largest share of samples that can go up so that 95 % of them are back within the deadline.

    ``sizes``: bytes of each. Alone, a sample takes the sum of its parts. Where many come they wait for the slowest part
    (link or model), a queue with constant service time s and load rho: P(wait > t) is about
    rho * exp(-2 (1 - rho) t / s) (M/D/1 in heavy traffic; Kingman 1962).
    """
    sending = sizes * 8 / way.link_kbps
    spare = deadline_ms - (way.edge_ms + way.link_ms + way.cloud_ms + sending)
    able = float(np.mean(spare >= 0))
    if not able or way.per_second <= 0:
        return able
    slowest = max(way.cloud_ms, float(sending[spare >= 0].mean()))
    room = float(np.median(spare[spare >= 0]))
    for step in range(STEPS, 0, -1):
        share = able * step / STEPS
        load = way.per_second * share * slowest / 1000
        if load < 1 and load * math.exp(-2 * (1 - load) * room / max(slowest, 1e-9)) <= 1 - IN_TIME:
            return share
    return 0.0
