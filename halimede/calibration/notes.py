"""What a user should know of a calibration in addition to its metrics, as sentences. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halimede.api.deferral import Costs
from halimede.calibration.temperature import Vector
from halimede.calibration.thresholds import reachable_shares

#: number of held-out samples below which a note says that the intervals are wide
FEW_SAMPLES = 200
#: share of equally hard samples above which a note says so
TIED_SHARE = 0.02


def sample_notes(tested: int, target_upload: float | None, hardness: Vector, *, labelled: bool) -> list[str]:
    """Return notes on the number of samples, their labels, and shares of uploads that no cut reaches.

    ``tested``: number of held-out samples; ``target_upload``: the goal, None: there is another goal; ``hardness``: of
    the samples by the selected rule; ``labelled``: there are labels.
    """
    notes = []
    if 0 < tested < FEW_SAMPLES:
        notes.append(f"{tested} held-out samples are few: the intervals say how little they show")
    if not labelled:
        notes.append("the data have no labels: the big model's answers count as true, and cannot be bettered")
    low, high = reachable_shares(hardness, target_upload) if target_upload is not None else (0.0, 0.0)
    if high - low > TIED_SHARE:
        notes.append(
            f"{high - low:.1%} of the samples are equally hard, so no cut alone sends a share between {low:.1%} and"
            f" {high:.1%}; the budget keeps {target_upload:.1%}, and of these samples sends those that come while"
            " it has room"
        )
    return notes


def cost_notes(costs: Costs | None, is_up: NDArray[np.bool_]) -> list[str]:
    """Return a note if the costs leave nothing to choose. ``is_up``: for each sample whether it is uploaded."""
    if costs is None or (is_up.any() and not is_up.all()):
        return []
    if is_up.any():
        return [f"an upload costs {costs.upload:g}, less than it saves for any sample: all go up"]
    return [f"an upload costs {costs.upload:g}, more than it saves for any sample: none goes up"]


def block_notes(length: int, needed: int, *, has_risk: bool, has_costs: bool) -> list[str]:
    """Return notes on samples that are counted in blocks of ``length``, though they need blocks of ``needed``.

    ``has_risk``, ``has_costs``: the goal is a limit on the risk, or least costs.
    """
    if length == 1:
        return []
    cause = "neighbouring samples depend on one another, as frames of a film do"
    notes = [f"{cause}: the intervals count blocks of {length} neighbours"]
    if needed > length:
        notes.append(
            f"the samples depend on {needed} neighbours, but there are only enough for blocks of {length}, so the"
            " intervals are too narrow: give samples of more scenes"
        )
    if has_risk:
        notes.append("--max-risk is shown for independent samples only, and these are not: give less than you allow")
    if has_costs:
        notes.append("the bound on the cost takes the means of blocks as independent")
    return notes
