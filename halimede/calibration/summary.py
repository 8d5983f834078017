"""What came of a calibration, in words and rows of a table. Pure."""

from __future__ import annotations

from halimede.calibration.calibrate import LEARNED, Calibrated

#: figures that are shown, with what they mean
FIGURES = {
    "edge_only": "small model alone",
    "cloud_only": "big model alone",
    "joint": "joint",
    "ratio": "joint / big model alone",
    "upload_ratio": "share that goes up",
    "risk": "stays, small wrong, big right",
    "agreement": "stays, both say the same",
    "calibration_error.before": "calibration error before",
    "calibration_error": "calibration error after",
}


def about(found: Calibrated, low: str, high: str) -> list[str]:
    """Say what was fitted on what; ``low`` and ``high`` are the models' names."""
    artefact, goal = found.artefact, found.goal
    truth = "labels" if found.labelled else f"answers of {high}"
    wanted = (
        f"risk at most {goal.max_risk:.4g}, with probability {goal.confidence:.4g}"
        if goal.max_risk is not None
        else f"upload ratio {goal.target_upload or 0:.4g}"
    )
    settings = ", ".join(f"{key} {value}" for key, value in artefact.parameters.items())
    if artefact.rule == LEARNED and artefact.learned:
        settings = f"cut {artefact.learned.cut:.4g}"
    mixture = artefact.mixture
    fusion = f"mixture, weight of {low} {mixture.edge:.4g}" if mixture else "cloud (a mixture would not help)"
    return [
        f"{artefact.service}: {low} asks {high}, for {wanted}",
        f"fitted on {found.fitted} samples, measured on {found.held_out} others; truth: {truth}",
        f"rule: {artefact.rule} ({settings})",
        f"temperatures: {artefact.temperature_edge:.3g} and {artefact.temperature_cloud:.3g}; fusion: {fusion}",
    ]


def rows(found: Calibrated) -> list[list[str]]:
    """Return the held-out figures: meaning, value, interval."""
    figures = found.artefact.figures
    return [
        [
            meaning,
            f"{figures[name]:.4f}",
            f"{figures[f'{name}.low']:.4f} to {figures[f'{name}.high']:.4f}" if f"{name}.low" in figures else "",
        ]
        for name, meaning in FIGURES.items()
        if name in figures
    ]
