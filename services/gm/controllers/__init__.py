"""One file a kind; ``plan`` finds the right one by the plural."""

from services.gm.controllers import dataset, inferencemodel, jointinference, model, multiedge
from services.gm.controllers.base import CONTROLLERS, Controller, Observed, plan

__all__ = [
    "CONTROLLERS",
    "Controller",
    "Observed",
    "dataset",
    "inferencemodel",
    "jointinference",
    "model",
    "multiedge",
    "plan",
]
